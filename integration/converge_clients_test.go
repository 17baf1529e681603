package integration

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/integration/converge"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/emit"
	"github.com/millrace/millrace/streams/storage/record"
)

// store returns a store without its emitting decorator.
func (w *convergeWorld) store(id string) storage.Store {
	s, _ := w.app.Stores().Store("acme", id)
	return s
}

// lockItem locks an item until release is called.
func (w *convergeWorld) lockItem(p converge.ItemRef) (release func()) {
	m, _ := w.items.LoadOrStore(p.Original(), new(sync.Mutex))
	m.(*sync.Mutex).Lock()
	return m.(*sync.Mutex).Unlock
}

// actLimit is how long a client retries an operation while its store is unavailable.
const actLimit = 2 * time.Minute

// apply executes a client operation and records it in the model. It retries while the store is unavailable.
func (w *convergeWorld) apply(ctx context.Context, o converge.Op) error {
	ctx, cancel := context.WithTimeout(emit.WithUser(ctx, o.User), actLimit)
	defer cancel()
	a := converge.Mutation{ItemRef: o.ItemRef, Kind: o.Kind, User: o.User, NoDigests: bare(o.ItemRef)}
	if o.Kind != converge.Delete {
		a.Content = converge.Content{MediaType: o.MediaType, User: o.Props}
	}
	if o.Kind == converge.Put {
		sum := sha256.Sum256([]byte(o.Body))
		a.Content.SHA256 = hex.EncodeToString(sum[:])
	}
	var held []string
	if o.Kind == converge.Delete && w.model.Rule(o.Space).Keep {
		held = w.holders(ctx, o.ItemRef)
	}
	for tries := 0; ; tries++ {
		err := w.applyOnce(ctx, o, a, held, tries > 0)
		if err == nil {
			return nil
		}
		if errors.Is(err, storage.ErrNotFound) || retry.Sleep(ctx, 200*time.Millisecond) != nil {
			return fmt.Errorf("%s %v: %w", o.Kind, o.ItemRef, err)
		}
	}
}

// applyOnce tries an operation once, and records it in the model if this or an earlier attempt has executed it.
func (w *convergeWorld) applyOnce(
	ctx context.Context, o converge.Op, a converge.Mutation, held []string, again bool,
) error {
	w.mutating.RLock()
	defer w.mutating.RUnlock()
	err := w.tryApply(ctx, o, a.NoDigests)
	if err != nil && !(again && o.Kind == converge.Delete && errors.Is(err, storage.ErrNotFound)) {
		return err
	}
	w.model.RecordMutation(a)
	if o.Kind == converge.Put {
		w.mu.Lock()
		w.puts[o.ItemRef] = o
		w.mu.Unlock()
	}
	for _, store := range held {
		w.model.RecordKept(converge.Copy{Store: store, ItemRef: o.ItemRef})
	}
	return nil
}

// tryApply executes an operation once.
func (w *convergeWorld) tryApply(ctx context.Context, o converge.Op, bare bool) error {
	props := storage.Properties{MediaType: o.MediaType, User: o.Props}
	put := storage.PutOptions{Size: storage.UnknownSize, Properties: props}
	var err error
	switch {
	case bare: // a program that writes to the store and publishes the Change itself
		var obj storage.Object
		if obj, err = w.store(sourceStore).Put(ctx, o.Space, o.Item, strings.NewReader(o.Body), put); err != nil {
			return err
		}
		c := record.Content(schemas.Copy{Account: "acme", Store: sourceStore, Space: o.Space, Item: o.Item}, obj)
		c.Digests, c.Provenance = nil, pb.Provenance_PROVENANCE_UNSPECIFIED
		c.Origin, c.User, c.Agent = pb.Origin_ORIGIN_CLIENT, o.User, "program"
		return w.producer.Publish(ctx, schemas.Message{Topic: schemas.Changes, Body: record.Seal(c)})
	case o.Kind == converge.Put:
		_, err = w.client.Put(ctx, o.Space, o.Item, strings.NewReader(o.Body), put)
	case o.Kind == converge.Delete:
		_, err = w.client.Delete(ctx, o.Space, o.Item, storage.DeleteOptions{})
	default:
		_, err = w.client.SetProperties(ctx, o.Space, o.Item, props, storage.Condition{})
	}
	if errors.Is(err, emit.ErrNotPublished) {
		return w.client.Flush(ctx)
	}
	return err
}

// holders returns the destinations that have the latest content of an item.
func (w *convergeWorld) holders(ctx context.Context, p converge.ItemRef) (all []string) {
	want, ok := w.model.Content(p)
	for _, pair := range w.model.Rule(p.Space).Pairs {
		if sha, err := w.read(ctx, converge.Copy{Store: pair.To, ItemRef: p}); ok && err == nil && sha == want.SHA256 {
			all = append(all, pair.To)
		}
	}
	return all
}

// read returns the SHA256 of a copy's bytes.
func (w *convergeWorld) read(ctx context.Context, c converge.Copy) (string, error) {
	r, _, err := w.store(c.Store).Open(ctx, c.Space, c.Item, "")
	if err != nil {
		return "", err
	}
	defer r.Close()
	h := sha256.New()
	if _, err := io.Copy(h, r); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// Groups of items by purpose. The clients use the other items.
const (
	bareItems  = "bare"
	backItems  = "back"
	lostItems  = "lost"
	againItems = "again"
	outItems   = "out"
)

// groups returns the number of items of each group per space, 200 in total.
func groups() map[string]map[string]int {
	return map[string]map[string]int{
		fanSpace:   {bareItems: 8, backItems: 16, lostItems: 8, againItems: 8, "": 34},
		chainSpace: {lostItems: 8, "": 52},
		keptSpace:  {outItems: 12, "": 48},
		lostSpace:  {lostItems: 6},
	}
}

func bare(p converge.ItemRef) bool { return strings.HasPrefix(p.Item, bareItems) }

// itemsOf returns the items of a group in a space, or in all spaces.
func itemsOf(space, group string) (all []converge.ItemRef) {
	for _, s := range slices.Sorted(maps.Keys(groups())) {
		if space != "" && s != space {
			continue
		}
		name := group
		if name == "" {
			name = "item"
		}
		for i := range groups()[s][group] {
			all = append(all, converge.ItemRef{Space: s, Item: fmt.Sprintf("%s/%d", name, i)})
		}
	}
	return all
}

// fill puts every item for the first time.
func (w *convergeWorld) fill(t *testing.T) {
	t.Helper()
	for space := range groups() {
		must(t, w.client.CreateSpace(t.Context(), storage.Space{Name: space}))
	}
	all := itemsOf("", "")
	for _, group := range []string{bareItems, backItems, lostItems, againItems, outItems} {
		all = append(all, itemsOf("", group)...)
	}
	var g errgroup.Group
	g.SetLimit(8)
	for _, o := range converge.First(w.seed, all) {
		g.Go(func() error { return w.apply(t.Context(), o) })
	}
	must(t, g.Wait())
}
