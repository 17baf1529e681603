package app

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/restore"
	"github.com/millrace/millrace/streams/storage"
)

// looksAtOnce is the number of items that are looked at in one store at once.
const looksAtOnce = 16

// holdings reads what stores and audit log have of the items of one space.
type holdings struct {
	stores         *Stores
	db             *clickhouse.DB
	account, space string
}

// items returns what the audit log knows of items, and what all stores of the account hold of them now.
func (h holdings) items(ctx context.Context, ids []string) ([]*restore.Item, error) {
	items, err := h.records(ctx, ids)
	if err != nil {
		return nil, err
	}
	return items, h.looks(ctx, items)
}

// records returns what the audit log knows of items.
func (h holdings) records(ctx context.Context, ids []string) ([]*restore.Item, error) {
	changes, ahead, err := read.ContentChanges(ctx, h.db, h.account, h.space, ids)
	if err != nil {
		return nil, err
	}
	passed, err := read.PassedContents(ctx, h.db, h.account, h.space, ids)
	if err != nil {
		return nil, err
	}
	byID := map[string][]*pb.Change{}
	for _, c := range changes {
		byID[c.GetItem()] = append(byID[c.GetItem()], c)
	}
	items := make([]*restore.Item, len(ids))
	for i, id := range ids {
		items[i] = &restore.Item{Account: h.account, Space: h.space, ID: id, Changes: byID[id], Ahead: ahead,
			Passed: passed[id],
			Looks:  map[string]restore.Look{}, Kept: map[string][]storage.Kept{}, KeptUnknown: map[string]error{}}
	}
	return items, nil
}

// looks adds what all stores of the account hold of items now.
func (h holdings) looks(ctx context.Context, items []*restore.Item) error {
	return h.eachStore(ctx, func(ctx context.Context, id string, st store) error {
		looks := h.look(ctx, st, items)
		for i, l := range looks {
			items[i].Looks[id] = l
		}
		return ctx.Err()
	})
}

// eachStore calls do for the stores of the account, one after the other: an unavailable store fails at once, since its
// breaker is open.
func (h holdings) eachStore(ctx context.Context, do func(context.Context, string, store) error) error {
	for _, id := range h.stores.IDs(h.account) {
		if err := do(ctx, id, h.stores.of(StoreName{h.account, id})); err != nil {
			return err
		}
	}
	return nil
}

// look looks at items in one store. An absence counts only if the marker could be read after it.
func (h holdings) look(ctx context.Context, st store, items []*restore.Item) []restore.Look {
	looks := make([]restore.Look, len(items))
	var g errgroup.Group
	g.SetLimit(looksAtOnce)
	for i, item := range items {
		g.Go(func() error {
			o, err := st.Stat(ctx, h.space, item.ID)
			if looks[i] = (restore.Look{Present: err == nil, Object: o}); err != nil && !absent(err) {
				looks[i].Err = err
			}
			return nil
		})
	}
	_ = g.Wait() // no call returns an error
	if err := st.Marker(ctx); err != nil {
		for i := range looks {
			if !looks[i].Present && looks[i].Err == nil {
				looks[i].Err = fmt.Errorf("confirm that the item is absent: %w", err)
			}
		}
	}
	return looks
}

// absent reports whether an error says that the store does not have an item, or cannot hold one of this name.
func absent(err error) bool {
	return errors.Is(err, storage.ErrNotFound) || errors.Is(err, storage.ErrNoSpace) || errors.Is(err, storage.ErrName)
}

// kept adds what the stores keep of items, which are in the order of their ids. A store that does not list all of it is
// recorded as unknown.
func (h holdings) kept(ctx context.Context, items []*restore.Item) error {
	if len(items) == 0 {
		return nil
	}
	ids, byID := make([]string, len(items)), map[string]*restore.Item{}
	for i, item := range items {
		ids[i], byID[item.ID] = item.ID, item
	}
	return h.eachStore(ctx, func(ctx context.Context, id string, st store) error {
		var failure error
		for k, err := range storage.ListKept(ctx, st, h.space, ids) {
			if err != nil {
				failure = err
				break
			}
			if item := byID[k.Object.Item]; item != nil {
				item.Kept[id] = append(item.Kept[id], k)
			}
		}
		if errors.Is(failure, storage.ErrUnsupported) {
			return ctx.Err() // it keeps nothing
		}
		if err := st.Marker(ctx); failure == nil && err != nil {
			failure = fmt.Errorf("confirm that nothing more is kept: %w", err)
		}
		if failure != nil {
			for _, item := range items {
				item.KeptUnknown[id] = failure
			}
		}
		return ctx.Err()
	})
}
