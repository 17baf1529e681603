package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/cmd/precondition"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/record"
)

// compare runs a round of the duplication sweep, and returns what it found.
func (x *archive) compare(full bool) map[string]int64 {
	x.t.Helper()
	sum := map[string]int64{}
	found, err := x.app.SweepDuplication(x.t.Context(), SpacesRequest{Account: "acme", Begun: time.Now()}, full)
	x.must(err)
	for _, p := range found {
		for k, n := range p.Counts {
			sum[k] += n
		}
	}
	return sum
}

// files returns the names of the items in a store.
func (x *archive) files(store int) (names []string) {
	x.t.Helper()
	all, err := os.ReadDir(filepath.Join(x.cfg.Accounts[0].Stores[store].Root, "photos"))
	x.must(err)
	for _, f := range all {
		if !strings.HasPrefix(f.Name(), ".") {
			names = append(names, f.Name())
		}
	}
	return names
}

// A source that has lost 5, 50 or 100 % of a space takes nothing away from its copies, and a destination gets what it
// has lost again. A store that is unmounted concludes nothing.
func TestDuplicationSweepOfAnEmptiedStore(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.cfg.Sweep.MaxMissing = 1 // what is lost is copied again at once
	x := s.archive(everyRole...)
	const items = 20
	var all []string
	for i := range items {
		all = append(all, fmt.Sprintf("i%02d", i))
		x.put(all[i], all[i], nil, "1", "2")
	}
	x.idle()
	for _, lost := range []int{1, 10, items} {
		away := t.TempDir()
		for _, item := range all[:lost] {
			x.must(os.Rename(x.path(0, item), filepath.Join(away, item)))
		}
		got := x.compare(false)
		x.idle()
		if got["extra"] != int64(lost) || got["equal"] != int64(items-lost) || !slices.Equal(x.files(1), all) {
			t.Errorf("the source lacks %d: found %v, the destination has %q", lost, got, x.files(1))
		}
		for _, item := range all[:lost] {
			x.must(os.Rename(filepath.Join(away, item), x.path(0, item)))
		}
		for _, item := range all[:lost] {
			x.must(os.Remove(x.path(1, item)))
		}
		if got := x.compare(false); got["missing"] != int64(lost) || !slices.Equal(x.files(0), all) {
			t.Errorf("the destination lacks %d: found %v, the source has %q", lost, got, x.files(0))
		}
		x.untilTrue("all copies are back", func() bool { return slices.Equal(x.files(1), all) })
	}
	stores := x.cfg.Accounts[0].Stores
	for _, away := range [][]config.Store{stores[:1], stores[1:2], stores[:2]} {
		before := len(x.sent(schemas.DuplicationLow))
		for _, s := range away {
			x.must(errors.Join(os.Rename(s.Root, s.Root+".away"), os.Mkdir(s.Root, 0o755))) // the mount point
		}
		if found, err := x.app.SweepDuplication(t.Context(),
			SpacesRequest{Account: "acme", Begun: time.Now()}, false); err == nil || errors.Is(err, precondition.Err) {
			t.Errorf("%v are unmounted: found %v, %v", away, found, err)
		}
		for _, s := range away {
			x.must(errors.Join(os.Remove(s.Root), os.Rename(s.Root+".away", s.Root)))
		}
		if n := len(x.sent(schemas.DuplicationLow)); n != before {
			t.Errorf("%v are unmounted: %d commands", away, n-before)
		}
	}
}

// sent returns the messages of a topic.
func (x *archive) sent(topic schemas.Topic) (all []schemas.Body) {
	x.t.Helper()
	e, err := x.app.admin.Extent(x.t.Context(), topic)
	x.must(err)
	x.must(x.app.admin.Read(x.t.Context(), topic, e, func(d *schemas.Delivery, unreadable error) error {
		all = append(all, d.Body)
		return unreadable
	}))
	return all
}

// Of a store that is restored with 1,000 items that were deleted since, none is copied. Their
// incidents are one group.
func TestReconcileAfterARestoreOfMany(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.cfg.Fixity.Recheck, s.cfg.Fixity.Settle = nil, 0
	x := s.archive(everyRole...)
	x.app.cfg.Reconcile.Settle = 10 * time.Millisecond
	const items = 1000
	var messages []schemas.Message
	for i := range items {
		for _, id := range []string{"1", "2"} {
			item := fmt.Sprintf("i%04d", i)
			c := record.Delete(schemas.Copy{Account: "acme", Store: id, Space: "photos", Item: item},
				storage.Deleted{Time: time.Now(), Object: storage.Object{Item: item, Size: int64(len(item)), Version: "v"}})
			if c.Origin = pb.Origin_ORIGIN_CLIENT; id != "1" {
				c.Origin = pb.Origin_ORIGIN_DUPLICATION
			}
			messages = append(messages, schemas.Message{Topic: schemas.Changes, Body: record.Seal(c)})
		}
	}
	x.publish(messages...)
	x.idle()
	for i := range items {
		item := fmt.Sprintf("i%04d", i)
		x.behind("1", item, item)
	}
	x.expect("a round", x.reconcile(), map[string]int64{"resurrected": items})
	x.within(3*time.Minute, func() error {
		groups, err := read.GroupIncidents(t.Context(), x.app.DB(), read.IncidentSelection{})
		if err != nil || len(groups) != 1 || groups[0].Kind != "resurrected" || groups[0].Open != items {
			return fmt.Errorf("the groups of open incidents are %v, %w", groups, err)
		}
		return nil
	})
	x.idle()
	if copied := x.files(1); len(copied) > 0 {
		t.Errorf("%d were copied", len(copied))
	}
}

// What appears in the middle of a chain of pairs by itself is put on record, and carried to no other store: not by the
// planner, nor by the duplication sweep.
func TestOrphanInAChain(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	marked(t, schemas.Key("acme", "3"), s.cfg.Accounts[0].Stores[2].Root)
	s.hasSpace(2)
	x := s.archive(everyRole...)
	x.app.cfg.Reconcile.Settle = 10 * time.Millisecond
	x.publish(schemas.Message{Topic: schemas.Policies, Body: &pb.Policy{Id: schemas.NewID(), Account: "acme", Base: 1,
		Document: `{"defaultPolicies":[{"srcStoreId":"1","destStoreId":"2"},{"srcStoreId":"2","destStoreId":"3"}]}`,
		By:       "ann", Time: timestamppb.Now()}})
	x.untilTrue("the policy is in force", func() bool {
		rules, _ := x.app.policyRegistry.Rules("acme", "photos")
		return len(rules.Pairs) == 2
	})
	x.put("put", "text", nil, "1")
	x.holds("3", map[string]string{"put": "text"})
	x.idle()
	x.behind("2", "orphan", "put into the middle")
	x.expect("the first round", x.reconcile(), map[string]int64{"adopted": 1})
	x.idle()
	x.expect("the second round", x.reconcile(), nil)
	for _, full := range []bool{false, true} {
		if got := x.compare(full); got["extra"] != 1 || got["missing"] != 1 {
			t.Errorf("full %t: found %v", full, got)
		}
		x.idle()
	}
	x.holds("2", map[string]string{"orphan": "put into the middle", "put": "text"})
	for _, id := range []string{"1", "3"} {
		if got := x.content("orphan", id); got != "absent" {
			t.Errorf("store %s has the orphan: %s", id, got)
		}
	}
	r, err := read.Records(t.Context(), x.app.db, []schemas.Copy{
		{Account: "acme", Store: "2", Space: "photos", Item: "orphan"}})
	x.must(err)
	if m := r[0].GetManifest(); m.GetState() != pb.RecordState_RECORD_STATE_LIVE {
		t.Errorf("the orphan is on record as %v", m)
	}
}

// A live change during the import of 3,000 files is copied long before these, although the destination takes only
// twenty copies in a second: when its copy is there, most of the files are not. That is an order, not a time.
func TestLiveChangeOvertakesAnImport(t *testing.T) {
	t.Parallel()
	const items = 3000
	s := newSite(t)
	s.cfg.Accounts[0].Stores[1].Limits = config.Limits{TasksPerSecond: 20}
	s.cfg.Sweep.MaxBacklog = 200
	x := s.archive(everyRole...)
	x.app.cfg.Reconcile.Settle = 10 * time.Millisecond
	for i := range items {
		x.behind("1", fmt.Sprintf("i%04d", i), "text")
	}
	ctx, cancel := context.WithCancel(t.Context())
	imported := make(chan error, 1)
	go func() {
		_, err := x.app.SweepReconcile(ctx,
			ReconcileRequest{SpacesRequest: SpacesRequest{Account: "acme", Store: "1", Begun: time.Now()}})
		imported <- err
	}()
	x.untilTrue("the import is under way", func() bool { return len(x.files(1)) > 10 })
	x.put("live", "text", nil, "1")
	x.holds("2", map[string]string{"live": "text"})
	if n := len(x.files(1)); n > items/2 {
		t.Errorf("%d of %d files were copied before the live change", n, items)
	} else {
		t.Logf("%d files were copied before the live change", n)
	}
	cancel()
	if err := <-imported; err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
