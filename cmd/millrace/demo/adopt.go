package demo

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse/read"
)

// unreported returns the name of an item that no client reports.
func (d *demo) unreported() string {
	name := "put-by-another-program.txt"
	for slices.ContainsFunc(d.checkpoint.Files, func(f file) bool { return f.Item == name }) {
		name += "~"
	}
	return name
}

// adopt puts a file into the first store bypassing millrace, lets the reconcile sweep find it, and waits for its copies
// in all stores. It is idempotent, so that a killed demo can repeat it.
func (d *demo) adopt(ctx context.Context) error {
	item := d.unreported()
	path := filepath.Join(d.cfg.State, "stores", primary, space, item)
	if _, err := os.Stat(path); err != nil {
		if err := os.WriteFile(path, []byte("no event has reported this file\n"), 0o644); err != nil {
			return fmt.Errorf("put a file by another program: %w", err)
		}
	}
	step := d.display.Step("adopt a file that no event has reported", int64(len(stores)))
	_, err := d.app.SweepReconcile(ctx, app.ReconcileRequest{SpacesRequest: app.SpacesRequest{
		Account: account, Store: primary, Space: space, Begun: time.Now().UTC().Truncate(time.Millisecond)}})
	if err == nil {
		err = d.until(ctx, "the adopted file in all stores", func(ctx context.Context) (app.Progress, error) {
			n, err := d.countAdopted(ctx)
			step.Set(n)
			return app.Progress{Done: n, Total: int64(len(stores))}, err
		})
	}
	step.End(err == nil)
	if err != nil {
		return err
	}
	// Nothing has read the file in the first store yet but the copies.
	rounds, err := d.round(ctx, roundAdopt, 1, false, primary)
	if err != nil {
		return err
	}
	err = d.untilEnded(ctx, "the check of the adopted file", rounds, func(ctx context.Context) (app.Progress, error) {
		records, err := read.Records(ctx, d.app.DB(), d.copiesOf(item))
		p := app.Progress{Total: int64(len(stores))}
		for _, r := range records {
			if r.GetLastPass() != nil {
				p.Done++
			}
		}
		return p, err
	})
	if err != nil {
		return err
	}
	return d.until(ctx, "reports recorded", d.app.Stored(schemas.Reports))
}

// copiesOf returns the copies of an item in all stores.
func (d *demo) copiesOf(item string) (all []schemas.Copy) {
	for _, id := range stores {
		all = append(all, schemas.Copy{Account: account, Store: id, Space: space, Item: item})
	}
	return all
}

// countAdopted returns the number of stores that have the adopted file according to the records.
func (d *demo) countAdopted(ctx context.Context) (n int64, err error) {
	records, err := read.Records(ctx, d.app.DB(), d.copiesOf(d.unreported()))
	for _, r := range records {
		if r.GetManifest().GetState() == pb.RecordState_RECORD_STATE_LIVE {
			n++
		}
	}
	return n, err
}
