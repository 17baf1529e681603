package app

import (
	"crypto/md5" //nolint:gosec // a digest, not a secret
	"encoding/hex"
	"fmt"
	"os"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/held"
	"github.com/millrace/millrace/streams/incident"
	"github.com/millrace/millrace/streams/restore"
)

// A script deletes a whole space: the brake stops, and the refused list brings back the sources of its items, byte for
// byte, except one that a client has put again and one whose copy has rotted.
func TestRefusedListComesBack(t *testing.T) {
	need.Integration(t)
	const limit = 5
	items := need.Amount(40, 10_000+limit, 10_000+limit)
	s := newSite(t)
	s.cfg.Deletes.MaxShare, s.cfg.Deletes.MaxCount = 1, limit
	x := s.archive(schemas.RoleCopier, schemas.RoleDeleter, schemas.RoleSteward, schemas.RoleSink, schemas.RoleDelayer)
	ctx, a := t.Context(), x.app
	s.inForce(a, "acme", "2")
	name := func(n int) string { return fmt.Sprintf("item-%05d", n) }
	var changes, deletes []schemas.Message
	written := time.Now().Add(-time.Hour).Truncate(time.Millisecond)
	for n := range items { // the source is deleted, the copy is there
		item := name(n)
		x.must(os.WriteFile(x.path(1, item), []byte(item), 0o600))
		x.must(os.Chtimes(x.path(1, item), written, written))
		sum := md5.Sum([]byte(item)) //nolint:gosec // a digest, not a secret
		add := func(store string, op pb.Op, at time.Time) *pb.Change {
			c := &pb.Change{Op: op, Account: "acme", Store: store, Space: "photos", Item: item, Version: "v",
				Size: int64(len(item)), Digests: map[string]string{"md5": hex.EncodeToString(sum[:])},
				Provenance: pb.Provenance_PROVENANCE_VERIFIED, Time: timestamppb.New(at), Origin: pb.Origin_ORIGIN_CLIENT}
			if store == "2" {
				c.Origin, c.SourceTime, c.SourceVersion = pb.Origin_ORIGIN_DUPLICATION, timestamppb.New(written), "v"
				c.Version = "" // the file has one that its store gives it; size and time identify it
			}
			c.Id = schemas.ChangeID(c)
			changes = append(changes, schemas.Message{Topic: schemas.Changes, Body: c})
			return c
		}
		add("1", pb.Op_OP_ADD, written)
		add("2", pb.Op_OP_ADD, written)
		gone := add("1", pb.Op_OP_DELETE, time.Now().Truncate(time.Millisecond))
		deletes = append(deletes, schemas.Message{Topic: schemas.Deletions, Body: &pb.DeletionCommand{
			Id: schemas.ID("delete", item), Account: "acme", Space: "photos", Item: item, SourceStore: "1",
			DestinationStore: "2", Deleted: gone.GetTime(), Command: schemas.ID("c", item), Time: gone.GetTime()}})
	}
	x.publish(changes...)
	x.publish(deletes...)
	var list *pb.Incident
	progress := func() read.ListProgress { return x.progress(list) }
	isOpen := func() bool {
		open := x.open(incident.DeletesHeld)
		if len(open) > 0 {
			list = open[0]
		}
		return len(open) > 0
	}
	listed := uint64(items - limit)
	const limit10k = 5 * time.Minute
	s.within(limit10k, func() error {
		if !isOpen() || progress().Items != listed {
			return fmt.Errorf("no list of %d items: incident %v", listed, list)
		}
		return nil
	})
	q, _, err := QueryOfList(ctx, a.DB(), list)
	x.must(err)
	q.Limit = items
	waiting, err := read.ListedDeletes(ctx, a.DB(), q)
	x.must(err)
	again, rotten := waiting[0].Item, waiting[1].Item
	x.must(os.WriteFile(x.path(0, again), []byte("newer"), 0o600))
	x.must(os.WriteFile(x.path(1, rotten), []byte("ITEM-xxx"), 0o600))

	refused := time.Now()
	action, n, err := a.DecideList(ctx, list, Actor{Who: "ann", Reason: "a script", From: "cli"}, held.ActionRefuse)
	if err != nil || n != listed {
		t.Fatalf("refused %d: %v", n, err)
	}
	second := x.decides(list, Actor{Who: "bob"}, held.ActionApprove) // at the same time
	s.within(limit10k, func() error {
		if isOpen() {
			return fmt.Errorf("the list is still open: %+v", progress())
		}
		return nil
	})
	t.Logf("%d items in %v", listed, time.Since(refused).Round(time.Millisecond))
	if p := progress(); p.Restored != listed-2 || p.Ended != p.Items {
		t.Errorf("got %+v", p)
	}
	waiting, err = read.ListedDeletes(ctx, a.DB(), q)
	x.must(err)
	for _, d := range waiting {
		want, result := d.Item, "restored"
		switch d.Item {
		case again:
			want, result = "newer", "restore-moot"
		case rotten:
			want, result = "", "restore-failed"
		}
		got, err := os.ReadFile(x.path(0, d.Item))
		if string(got) != want || (err == nil) != (want != "") || d.Result != result || (d.Why == "") {
			t.Errorf("%s: got %q (%v), result %s: %s; want %q, %s", d.Item, got, err, d.Result, d.Why, want, result)
		}
	}
	x.loses(list, second, "not-ordered", "ann decided before (refuse-list)")
	if r, err := read.ResultOfDecision(ctx, a.DB(), q.Space, action); err != nil || r.Result != "restores-ordered" {
		t.Errorf("got %+v, %v", r, err)
	}
	if q, _, err = QueryOfList(ctx, a.DB(), list); err != nil || q.Until == nil { // of the decision
		t.Errorf("got %+v, %v", q, err)
	}
	source := schemas.Copy{Account: "acme", Store: "1", Space: "photos", Item: waiting[2].Item}
	records, err := a.reader.Fresh(ctx, []schemas.Copy{source})
	x.must(err)
	if m := records[0].GetManifest(); m.GetState() != pb.RecordState_RECORD_STATE_LIVE ||
		m.GetOrigin() != pb.Origin_ORIGIN_REPAIR {
		t.Errorf("the source's record: %v", m)
	}
	if i := ListOfKey(schemas.IncidentKey(list)); schemas.IncidentKey(i) != schemas.IncidentKey(list) {
		t.Errorf("got %v", i)
	}
}

// A script deletes a space, and a client has replaced an item of it in the hour before. What the brake did not hold is
// counted, and comes back in both stores as it was before, whether or not the list is worked off yet.
func TestAllOfAScriptComesBack(t *testing.T) {
	need.Integration(t)
	const limit, items, lost = 5, 20, 5 + 2
	s := newSite(t)
	s.cfg.Deletes.MaxShare, s.cfg.Deletes.MaxCount = 1, limit
	x := s.archive(schemas.RoleCopier, schemas.RoleDeleter, schemas.RoleSteward, schemas.RoleSink, schemas.RoleDelayer)
	ctx, a, ann := t.Context(), x.app, Actor{Who: "ann", Reason: "a script", From: "cli"}
	s.inForce(a, "acme", "2")
	before := timestamppb.New(time.Now().Add(-2 * time.Hour).Truncate(time.Millisecond))
	aged := func(c *pb.Change) {
		if c.Time = before; c.GetStore() == "2" {
			c.SourceTime, c.SourceVersion = before, "v"
		}
	}
	want := map[string]string{"edited": "before", "new": "new", "untouched": "untouched", "young": "young"}
	x.put("untouched", "untouched", aged, "1", "2")
	x.put("edited", "before", aged, "1", "2")
	x.put("edited", "after", nil, "1", "2")
	x.put("new", "new", nil, "1", "2")
	x.put("young", "young", nil, "1", "2")
	x.remove("young", "1", "2")
	for n := range items {
		item := fmt.Sprintf("item-%02d", n)
		want[item] = "content of " + item
		x.put(item, want[item], aged, "1", "2")
		gone := x.remove(item, "1")
		x.publish(schemas.Message{Topic: schemas.Deletions, Body: &pb.DeletionCommand{
			Id: schemas.ID("delete", item), Account: "acme", Space: "photos", Item: item, SourceStore: "1",
			DestinationStore: "2", Deleted: gone.GetTime(), Command: schemas.ID("c", item), Time: gone.GetTime()}})
	}
	var r RestoreRequest
	s.within(time.Minute, func() (err error) {
		open, n := x.open(incident.DeletesHeld), uint64(0)
		if len(open) == 1 && x.progress(open[0]).Items == items-limit {
			r, n, err = a.Earlier(ctx, open[0], ann)
		}
		if err != nil || n != lost {
			return fmt.Errorf("%d items were lost before the list: %w, %v", n, err, open)
		}
		return nil
	})
	list := x.open(incident.DeletesHeld)[0]
	if _, n, err := a.DecideList(ctx, list, ann, held.ActionRefuse); err != nil || n != items-limit {
		t.Fatalf("refused %d: %v", n, err)
	}
	report, outcome := x.restored(r)
	if report.Items != lost || report.Copies[restore.Ordered] != 2*lost || outcome.Results["restored"] != 2*lost {
		t.Fatalf("got %+v, %+v\n%s", report, outcome, s.said.String())
	}
	s.within(time.Minute, func() error {
		if len(x.open(incident.DeletesHeld)) > 0 {
			return fmt.Errorf("the list is still open: %+v", x.progress(list))
		}
		return nil
	})
	for item, text := range want {
		for _, id := range []string{"1", "2"} {
			if got := x.content(item, id); got != text {
				t.Errorf("store %s, %s: got %q, want %q", id, item, got, text)
			}
		}
	}
	if report, err := a.Restore(ctx, r); err != nil || report.Copies[restore.Already] != 2*lost {
		t.Errorf("the same again: %+v, %v", report, err)
	}
}
