package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/internal/heaptest"
	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/restore"
)

// A command that restores many items needs the memory of a page of them, a fifth of what all of them need, and reports
// its progress. One that is cut off has ordered what it counted, and the same command begins again.
func TestRestoreManyItems(t *testing.T) {
	need.Full(t)
	const items, cutAt, most = 100_000, 25_000, 128 << 20
	x := newArchive(t, schemas.RoleSink)
	written := time.Now().Add(-2 * time.Hour).Truncate(time.Millisecond)
	name := func(n int) string { return fmt.Sprintf("item-%06d", n) }
	digests := map[string]string{"md5": "9dd4e461268c8034f5c8564e155c67a6"} // of "x"
	var changes []schemas.Message
	for n := range items { // the source is deleted, the copy is there
		path := filepath.Join(x.cfg.Accounts[0].Stores[1].Root, "photos", name(n))
		x.must(errors.Join(os.WriteFile(path, []byte("x"), 0o600), os.Chtimes(path, written, written)))
		o, err := x.store("2").Stat(t.Context(), "photos", name(n))
		x.must(err)
		for _, c := range []*pb.Change{
			{Op: pb.Op_OP_ADD, Store: "1", Version: "v", Time: timestamppb.New(written), Origin: pb.Origin_ORIGIN_CLIENT},
			{Op: pb.Op_OP_ADD, Store: "2", Version: o.Version, Time: timestamppb.New(written), SourceVersion: "v",
				Origin: pb.Origin_ORIGIN_DUPLICATION},
			{Op: pb.Op_OP_DELETE, Store: "1", Version: "v", Time: timestamppb.New(written.Add(time.Hour)),
				Origin: pb.Origin_ORIGIN_CLIENT},
		} {
			c.Account, c.Space, c.Item, c.Size, c.Digests = "acme", "photos", name(n), 1, digests
			c.Provenance = pb.Provenance_PROVENANCE_VERIFIED
			c.Id = schemas.ChangeID(c)
			changes = append(changes, schemas.Message{Topic: schemas.Changes, Body: c})
		}
		if len(changes) >= 3000 || n == items-1 {
			x.must(x.app.producer.Publish(t.Context(), changes...))
			changes = nil
		}
	}
	x.cfg.Fixity.FreshWait = 10 * time.Minute
	x.must(x.app.freshTables(t.Context()))
	all := x.request("", func(r *RestoreRequest) {
		r.Prefix, r.Store, r.At = true, "1", written.Add(time.Minute)
	})
	ctx, cut := context.WithCancel(t.Context())
	all.Progress = func(r RestoreReport) {
		if r.Items >= cutAt {
			cut()
		}
	}
	part, err := x.app.Restore(ctx, all)
	if err == nil || part.Copies[restore.Ordered] != cutAt {
		t.Fatalf("a run that is cut off: %v, %v", part.Copies, err)
	}
	var report RestoreReport
	var seen []int64
	all.Progress = func(r RestoreReport) {
		if seen = append(seen, r.Items); r.Selected < items*9/10 || r.Selected > items*11/10 {
			t.Errorf("%d items of %d", r.Items, r.Selected)
		}
	}
	began := time.Now()
	peak := heaptest.Peak(func() { report, err = x.app.Restore(t.Context(), all) })
	x.must(err)
	t.Logf("%d items in %v, %d MiB at most", report.Items, time.Since(began), peak>>20)
	if report.Copies[restore.Ordered] != items || report.Action != part.Action || len(seen) != items/restorePage {
		t.Errorf("got %+v, and progress at %v", report, seen)
	}
	if peak > most {
		t.Errorf("it needs %d MiB, want at most %d", peak>>20, most>>20)
	}
}
