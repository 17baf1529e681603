package app

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/incident"
	"github.com/millrace/millrace/streams/schedule"
)

// everyRole are the roles that handle what a sweep finds.
var everyRole = []schemas.Role{schemas.RolePlanner, schemas.RoleCopier, schemas.RoleDeleter, schemas.RoleChecker,
	schemas.RoleSteward, schemas.RoleDelayer, schemas.RoleSink}

// behind writes a file into a store as another program does.
func (x *archive) behind(id, item, text string) {
	x.t.Helper()
	n := slices.IndexFunc(x.cfg.Accounts[0].Stores, func(s config.Store) bool { return s.ID == id })
	path := filepath.Join(x.cfg.Accounts[0].Stores[n].Root, "photos", item)
	written := time.Now().Add(-time.Minute)
	x.must(errors.Join(os.WriteFile(path, []byte(text), 0o600), os.Chtimes(path, written, written)))
}

// reconcile runs a round over the stores 1 and 2, and returns what it found in all of them.
func (x *archive) reconcile() map[string]int64 {
	x.t.Helper()
	sum := map[string]int64{}
	for _, id := range []string{"1", "2"} {
		found, err := x.app.SweepReconcile(x.t.Context(),
			ReconcileRequest{SpacesRequest: SpacesRequest{Account: "acme", Store: id, Begun: time.Now().Add(x.later)}})
		x.must(err)
		for _, s := range found {
			for k, n := range s.Counts {
				sum[k] += n
			}
		}
	}
	return sum
}

// idle waits until all messages are handled and on record.
func (x *archive) idle() {
	x.t.Helper()
	for _, role := range everyRole[:4] {
		x.until(func() error {
			lag, err := x.app.Lag(x.t.Context(), role)
			if err == nil && lag > 0 {
				err = errors.New("messages are left of role " + string(role))
			}
			return err
		})
	}
	x.must(x.app.freshTables(x.t.Context()))
}

// holds waits until the items have these contents in a store.
func (x *archive) holds(id string, want map[string]string) {
	x.t.Helper()
	x.until(func() error {
		for item, text := range want {
			if got := x.content(item, id); got != text {
				return errors.New(item + " in store " + id + " is " + got + ", want " + text)
			}
		}
		return nil
	})
}

// expect compares some counts of a round; all others but equal are to be 0.
func (x *archive) expect(when string, got map[string]int64, want map[string]int64) {
	x.t.Helper()
	for k, n := range got {
		if !isBytes(k) && k != "equal" && n != want[k] {
			x.t.Errorf("%s: %d %s, want %d", when, n, k, want[k])
		}
	}
	for k, n := range want {
		if got[k] != n {
			x.t.Errorf("%s: %d %s, want %d", when, got[k], k, n)
		}
	}
}

func isBytes(key string) bool { return len(key) > 6 && key[len(key)-6:] == "_bytes" }

// What was put, replaced and removed behind the system's back is known after two rounds, and nothing was deleted
// anywhere because of it.
func TestReconcile(t *testing.T) {
	t.Parallel()
	x := newArchive(t, everyRole...)
	x.app.cfg.Reconcile.Settle = 10 * time.Millisecond
	contents := map[string]string{}
	for _, item := range []string{"kept", "replaced", "removed"} {
		x.put(item, item, nil, "1", "2")
		contents[item] = item
	}
	x.idle()
	x.expect("nothing has happened", x.reconcile(), nil)

	x.behind("1", "new", "put by another program")
	x.behind("2", "orphan", "put into a copy")
	x.behind("1", "replaced", "replaced by another program")
	x.must(os.Remove(filepath.Join(x.cfg.Accounts[0].Stores[0].Root, "photos", "removed")))
	x.expect("the first round", x.reconcile(), map[string]int64{"adopted": 2, "different": 1, "missing": 1})
	x.holds("2", map[string]string{"new": "put by another program"})
	x.idle()
	x.expect("a round at once", x.reconcile(), map[string]int64{"different": 1, "missing": 1})
	x.later = time.Hour
	x.expect("the second round", x.reconcile(), map[string]int64{"different": 1, "lost": 1})

	// What is checked is judged against the records: the pair holds the good content, and nothing is deleted.
	contents["new"], contents["orphan"] = "put by another program", "put into a copy"
	x.holds("2", contents)
	if got := x.content("orphan", "1"); got != "absent" {
		t.Errorf("the orphan was carried to the source: %s", got)
	}
	copies := []schemas.Copy{{Account: "acme", Store: "1", Space: "photos", Item: "new"},
		{Account: "acme", Store: "2", Space: "photos", Item: "orphan"}}
	records, err := read.Records(t.Context(), x.app.db, copies)
	x.must(err)
	for i, r := range records {
		m := r.GetManifest()
		guess := m.GetOrigin() == pb.Origin_ORIGIN_SWEEP || m.GetOrigin() == pb.Origin_ORIGIN_FIXITY
		if m.GetState() != pb.RecordState_RECORD_STATE_LIVE || !guess {
			t.Errorf("%v is on record as %v", copies[i], m)
		}
	}
}

// An item that comes back with an old disk is neither adopted nor copied.
func TestReconcileAfterARestore(t *testing.T) {
	t.Parallel()
	x := newArchive(t, everyRole...)
	x.app.cfg.Reconcile.Settle = 10 * time.Millisecond
	x.put("deleted", "text", nil, "1", "2")
	x.idle()
	x.remove("deleted", "1", "2")
	x.idle()
	x.behind("1", "deleted", "text")
	x.expect("a round", x.reconcile(), map[string]int64{"resurrected": 1})
	x.expect("again", x.reconcile(), map[string]int64{"resurrected": 1})
	if got := x.content("deleted", "2"); got != "absent" {
		t.Errorf("it was copied: %s", got)
	}
}

// A store that is emptied, or unmounted, concludes nothing: an incident opens, and closes when the items are back.
func TestReconcileOfAnEmptiedStore(t *testing.T) {
	t.Parallel()
	x := newArchive(t, everyRole...)
	x.put("a", "a", nil, "1", "2")
	x.put("b", "b", nil, "1", "2")
	x.idle()
	root := x.cfg.Accounts[0].Stores[1].Root
	away := filepath.Join(t.TempDir(), "photos")
	x.must(os.Rename(filepath.Join(root, "photos"), away))
	x.must(os.Mkdir(filepath.Join(root, "photos"), 0o755))
	incidents := func(want int) {
		t.Helper()
		x.until(func() error {
			open, err := read.OpenIncidents(t.Context(), x.app.db, "acme")
			n := 0
			for _, i := range open {
				if i.GetKind() == "listing-incomplete" && i.GetStore() == "2" && i.GetSpace() == "photos" {
					n++
				}
			}
			if n != want {
				return errors.Join(err, errors.New("no such incident, or one too many"))
			}
			return err
		})
	}
	for range 3 {
		x.expect("emptied", x.reconcile(), map[string]int64{"missing": 2, "inconclusive": 2})
	}
	incidents(1)
	x.must(os.Remove(filepath.Join(root, "photos")))
	x.must(os.Rename(away, filepath.Join(root, "photos")))
	x.expect("back", x.reconcile(), nil)
	incidents(0)
	x.must(os.Rename(root, root+".away"))
	r := SpacesRequest{Account: "acme", Store: "2", Begun: time.Now()}
	if _, err := x.app.SweepReconcile(t.Context(), ReconcileRequest{SpacesRequest: r}); err == nil {
		t.Error("an unmounted store has no error")
	}
	x.must(os.Rename(root+".away", root))
}

// A space that was declared gone has no incident while it is absent, also for a round by hand in another process. If it
// is back and is emptied later, it has one.
func TestReconcileOfADeclaredSpace(t *testing.T) {
	t.Parallel()
	x := newArchive(t, everyRole...)
	x.put("a", "a", nil, "1", "2")
	x.idle()
	photos, away := filepath.Join(x.cfg.Accounts[0].Stores[1].Root, "photos"), filepath.Join(t.TempDir(), "photos")
	x.must(os.Rename(photos, away))
	by := Actor{Who: "ann", Reason: "test", From: "cli"}
	x.must(x.app.SpaceGone(t.Context(), StoreName{"acme", "2"}, "photos", by))
	command, err := Open(t.Context(), x.cfg, Options{Log: x.said.Log(), Drain: time.Second})
	x.must(err)
	defer command.Close()
	r := SpacesRequest{Account: "acme", Store: "2", Begun: time.Now()}
	_, err = command.SweepReconcile(t.Context(), ReconcileRequest{SpacesRequest: r})
	x.must(err)
	s := incident.Subject{Account: "acme", Store: "2", Space: "photos", Kind: incident.ListingIncomplete}
	x.must(x.app.readIncidents(t.Context()))
	if x.app.incidentBoard.IsOpen(s) {
		t.Error("an incident although the space was declared gone")
	}
	x.must(os.Rename(away, photos))
	x.reconcile()
	x.must(os.Rename(photos, away))
	x.must(os.Mkdir(photos, 0o755)) // an empty mount point
	x.reconcile()
	x.untilTrue("incident listing-incomplete", func() bool { return x.app.incidentBoard.IsOpen(s) })
}

// The sweep of a pair copies what the destination lacks, and reports what only it has. A sweeper compares a new pair by
// itself.
func TestDuplicationSweep(t *testing.T) {
	t.Parallel()
	x := newArchive(t, append(slices.Clone(everyRole), schemas.RoleSweeper)...)
	x.put("both", "both", nil, "1", "2")
	x.put("lost", "lost", nil, "1", "2")
	x.idle()
	x.must(os.Remove(filepath.Join(x.cfg.Accounts[0].Stores[1].Root, "photos", "lost")))
	x.behind("2", "orphan", "orphan")
	found, err := x.app.SweepDuplication(t.Context(), SpacesRequest{Account: "acme", Begun: time.Now()}, false)
	x.must(err)
	if len(found) != 1 || found[0].Store != "1" || found[0].Destination != "2" {
		t.Fatalf("compared %v", found)
	}
	x.expect("a round", found[0].Counts, map[string]int64{"missing": 1, "extra": 1})
	x.holds("2", map[string]string{"both": "both", "lost": "lost", "orphan": "orphan"})

	// A new pair: the way back.
	x.put("unseen", "unseen", func(c *pb.Change) { c.Origin = pb.Origin_ORIGIN_DUPLICATION }, "2")
	x.must(x.app.producer.Publish(t.Context(), schemas.Message{Topic: schemas.Policies, Body: &pb.Policy{
		Id: schemas.NewID(), Account: "acme", Base: 1,
		Document: `{"defaultPolicies":[{"srcStoreId":"2","destStoreId":"1"}]}`, By: "ann", Time: timestamppb.Now()}}))
	x.holds("1", map[string]string{"unseen": "unseen"})
}

// The file that was there before its watch began is found by the round that the watch asks for, although the schedule
// has none, and is copied.
func TestRoundOfAWatch(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.cfg.Reconcile.Settle = 10 * time.Millisecond
	s.cfg.Sweep.Reconcile, s.cfg.Sweep.Duplication = schedule.Schedule{}, schedule.Schedule{}
	st := &s.cfg.Accounts[0].Stores[0]
	st.Watch, st.ExternalWrites, st.Corrections = true, "expected", "auto"
	s.hasSpace(0)
	s.write("1", "photos/before", "was there")
	x := s.archive(append(slices.Clone(everyRole), schemas.RoleIngester, schemas.RoleSweeper)...)
	x.holds("2", map[string]string{"before": "was there"})
	x.idle()
	records, err := read.Records(t.Context(), x.app.db,
		[]schemas.Copy{{Account: "acme", Store: "1", Space: "photos", Item: "before"}})
	x.must(err)
	if m := records[0].GetManifest(); m.GetOrigin() != pb.Origin_ORIGIN_SWEEP && m.GetOrigin() != pb.Origin_ORIGIN_FIXITY {
		t.Errorf("got %v", m)
	}
}
