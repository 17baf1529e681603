package demo

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/fixity"
	"github.com/millrace/millrace/streams/storage"
)

// A finding is the expected and the actual result for a damaged item.
type finding struct {
	Item     string     `json:"item"`
	Store    string     `json:"store"`
	Harm     string     `json:"harm"`
	Expected fixity.Row `json:"expected_row,omitempty"` // 0: none, for the deleted item
	Row      fixity.Row `json:"row,omitempty"`
	Finding  string     `json:"finding"`
	Found    bool       `json:"found"`
	Repaired bool       `json:"repaired"` // for the deleted item: deleted in all stores
}

// expected returns the five expected findings, without results.
func (p picks) expected() []finding {
	return []finding{
		{Item: p.Flip, Store: "2", Harm: "one byte flipped", Expected: fixity.RowContentCorrupt},
		{Item: p.Truncate, Store: "3", Harm: "truncated", Expected: fixity.RowContentCorrupt},
		{Item: p.Remove, Store: "2", Harm: "bytes removed", Expected: fixity.RowContentMissing},
		{Item: p.Replace, Store: "3", Harm: "replaced, unreported", Expected: fixity.RowReplaced},
		{Item: p.Delete, Store: "1", Harm: "deleted, reported"},
	}
}

// waitDeleted waits until the item is deleted in all stores.
func (d *demo) waitDeleted(ctx context.Context) error {
	step := d.display.Step("delete copies", int64(len(stores)))
	err := d.until(ctx, "deletes in all stores", func(ctx context.Context) (app.Progress, error) {
		n, err := d.countDeleted(ctx)
		step.Set(n)
		return app.Progress{Done: n, Total: int64(len(stores))}, err
	})
	step.End(err == nil)
	return err
}

// countDeleted returns the number of stores in which the deleted item is absent and has a
// tombstone.
func (d *demo) countDeleted(ctx context.Context) (n int64, err error) {
	for _, id := range stores {
		c := schemas.Copy{Account: account, Store: id, Space: space, Item: d.checkpoint.Picks.Delete}
		st, _ := d.app.Stores().Store(account, id)
		if _, err := st.Stat(ctx, space, c.Item); err == nil {
			continue
		} else if !errors.Is(err, storage.ErrNotFound) {
			return n, err
		}
		recs, err := read.Records(ctx, d.app.DB(), []schemas.Copy{c})
		if err != nil {
			return n, err
		}
		if recs[0].GetManifest().GetState() == pb.RecordState_RECORD_STATE_TOMBSTONE {
			n++
		}
	}
	return n, nil
}

// repair approves the incidents that wait for it, and waits until every incident is closed and
// every damaged copy equals the item in the first store.
func (d *demo) repair(ctx context.Context) error {
	damaged := d.checkpoint.Picks.expected()[:4]
	step := d.display.Step("repair from good copies", int64(len(damaged)))
	approved := map[string]bool{}
	err := d.until(ctx, "damaged copies repaired and checked", func(ctx context.Context) (app.Progress, error) {
		open, err := read.OpenIncidents(ctx, d.app.DB(), account)
		if err != nil {
			return app.Progress{}, err
		}
		for _, i := range open {
			key := schemas.IncidentKey(i)
			if i.GetState() == pb.IncidentState_INCIDENT_STATE_AWAITING_APPROVAL && !approved[key] {
				by := app.Actor{Who: agent, Reason: "part of the demo", From: "cli"}
				if _, err := d.app.ApproveRepair(ctx, i, by); err != nil {
					return app.Progress{}, err
				}
				approved[key] = true
			}
		}
		var n int64
		for _, f := range damaged {
			ok, err := d.isRepaired(ctx, f, open)
			if err != nil {
				return app.Progress{}, err
			}
			if ok {
				n++
			}
		}
		step.Set(n)
		return app.Progress{Done: n, Total: int64(len(damaged))}, nil
	})
	step.End(err == nil)
	return err
}

// isRepaired reports whether a damaged copy has no open incident, was checked since, and has the
// good bytes.
func (d *demo) isRepaired(ctx context.Context, f finding, open []*pb.Incident) (bool, error) {
	for _, i := range open {
		if i.GetStore() == f.Store && i.GetItem() == f.Item {
			return false, nil
		}
	}
	recs, err := read.Records(ctx, d.app.DB(),
		[]schemas.Copy{{Account: account, Store: f.Store, Space: space, Item: f.Item}})
	if err != nil {
		return false, err
	}
	if p := recs[0].GetLastPass(); p == nil || !p.AsTime().After(d.checkpoint.Damaged) {
		return false, nil
	}
	good, err := d.bytes(ctx, primary, f.Item)
	if err != nil {
		return false, err
	}
	is, err := d.bytes(ctx, f.Store, f.Item)
	if errors.Is(err, storage.ErrNotFound) {
		return false, nil
	}
	return is == good, err
}

// bytes returns the SHA-256 of an item in a store.
func (d *demo) bytes(ctx context.Context, store, item string) (string, error) {
	st, _ := d.app.Stores().Store(account, store)
	r, _, err := st.Open(ctx, space, item, "")
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

// findings returns the expected findings with their results.
func (d *demo) findings(ctx context.Context) ([]finding, error) {
	found := d.checkpoint.Picks.expected()
	for i := range found {
		f := &found[i]
		c := schemas.Copy{Account: account, Store: f.Store, Space: space, Item: f.Item}
		if f.Expected == 0 {
			n, err := d.countDeleted(ctx)
			if err != nil {
				return nil, err
			}
			f.Found = n == int64(len(stores))
			f.Repaired, f.Finding = f.Found, "deleted in all stores"
			if !f.Found {
				f.Finding = fmt.Sprintf("deleted in %d of %d stores", n, len(stores))
			}
			continue
		}
		checks, err := read.ResultsOf(ctx, d.app.DB(), c)
		if err != nil {
			return nil, err
		}
		for _, k := range checks { // oldest first
			if k.Final && k.Started.After(d.checkpoint.Damaged) && k.Verdict != "pass" && f.Row == 0 {
				f.Row, f.Finding = fixity.Row(k.Row), k.Finding
			}
		}
		f.Found = f.Row == f.Expected
	}
	return found, nil
}
