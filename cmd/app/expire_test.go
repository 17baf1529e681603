package app

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/cmd/health"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
	"github.com/millrace/millrace/streams/schedule"
	"github.com/millrace/millrace/streams/storage"
)

// Stores are cleaned up at startup and periodically: replaced bytes are removed after their
// retention, each run is recorded as a job per store, an unavailable store is reported and does not
// block others, and a paused one is skipped.
func TestExpirer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		const ahead = 2 * 24 * time.Hour // of the process, of which nothing comes
		b := kafkatest.New(t, kafkatest.Options{Partitions: 1, Behind: ahead})
		a := trimming(t, b, 0)
		a.cfg.Replaced.Keep, a.kafka.Clock = 3*24*time.Hour, new(client.Clock)
		a.stores, a.controls, a.registry = openTestStores(t, dir), &client.Controls{}, health.NewRegistry()
		for _, n := range a.stores.storeNames() {
			st := a.stores.of(n)
			if err := st.CreateSpace(t.Context(), storage.Space{Name: "s"}); err != nil {
				t.Fatal(err)
			}
			for _, text := range []string{"replaced", "now"} {
				if _, err := st.Put(t.Context(), "s", "a", strings.NewReader(text),
					storage.PutOptions{Size: int64(len(text)), KeepReplaced: true}); err != nil {
					t.Fatal(err)
				}
			}
		}
		ctl := &pb.Control{Paused: true, Role: string(schemas.RoleSweeper), Account: "zoo"}
		key := []byte(schemas.Key(ctl.GetRole(), "", "zoo", ""))
		must(t, a.controls.Apply(key, ctl))
		unavailable := filepath.Join(dir, "acme-a")
		must(t, os.Rename(unavailable, unavailable+"-unplugged"))
		left := func(n StoreName) int {
			all, err := filepath.Glob(filepath.Join(dir, n.Account+"-"+n.Store+"*", ".millrace", "quarantine", "*", "*",
				"bytes"))
			must(t, err)
			return len(all)
		}
		a.spaceHolds = newSpaceHolds()
		e := &expiry{app: a, metrics: newExpireMetrics(a.registry, a.stores), incidents: known}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		time.Sleep(2*24*time.Hour + ahead)
		go func() { ended <- runJobs(ctx, t, a, expireJob, schedule.MustParse("every 6h"), e.splits()...) }()
		time.Sleep(time.Hour)
		synctest.Wait()
		if got := left(StoreName{"acme", "b"}); got != 1 {
			t.Errorf("after two days %d are kept, want 1", got)
		}
		time.Sleep(2 * 24 * time.Hour)
		synctest.Wait()
		for n, want := range map[StoreName]int{{"acme", "b"}: 0, {"acme", "a"}: 1, {"zoo", "a"}: 1} {
			if got := left(n); got != want {
				t.Errorf("%v: %d are kept, want %d", n, got, want)
			}
		}
		must(t, os.Rename(unavailable+"-unplugged", unavailable))
		ctl.Paused = false
		must(t, a.controls.Apply(key, ctl))
		time.Sleep(7 * time.Hour)
		synctest.Wait()
		for _, n := range a.stores.storeNames() {
			if got := left(n); got != 0 {
				t.Errorf("%v: %d are kept at the end", n, got)
			}
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		wantJobs(t, b)
		wantExpireMetrics(t, a)
	})
}

func wantJobs(t *testing.T, b *kafkatest.Broker) {
	t.Helper()
	removed, failed := map[string]int64{}, map[string]int{}
	for _, body := range b.Bodies(schemas.Jobs) {
		j := body.(*pb.Job)
		removed[j.GetName()] += j.GetCounts()["kept"]
		if j.GetError() != "" {
			failed[j.GetName()]++
		}
	}
	for _, name := range []string{"expire/acme/a", "expire/acme/b", "expire/zoo/a"} {
		if removed[name] != 1 {
			t.Errorf("jobs %s removed %d, want 1", name, removed[name])
		}
		if unavailable := name == "expire/acme/a"; failed[name] > 0 != unavailable {
			t.Errorf("%d jobs %s failed, that some did: want %t", failed[name], name, unavailable)
		}
	}
}

func wantExpireMetrics(t *testing.T, a *App) {
	t.Helper()
	families, err := a.registry.Gather()
	must(t, err)
	sums := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if strings.HasPrefix(f.GetName(), "millrace_expire_") {
				sums[f.GetName()] += m.GetCounter().GetValue()
			}
		}
	}
	if sums["millrace_expire_removed_total"] != 3 || sums["millrace_expire_removed_bytes_total"] != 24 ||
		sums["millrace_expire_failures_total"] == 0 {
		t.Errorf("metrics: %v, want 3 things of 24 bytes removed, and failures", sums)
	}
}

// known is the incidents function of an expiry whose incidents have been read.
func known(context.Context) error { return nil }

// What is kept of a space stays while an incident of the space is open in any store, and while the open incidents are
// unknown. What is kept of other spaces and accounts expires.
func TestExpiryGuard(t *testing.T) {
	t.Parallel()
	open := func(account, store, space, item, kind string) *pb.Incident {
		return &pb.Incident{Id: "i", Account: account, Store: store, Space: space, Item: item, Kind: kind,
			State: pb.IncidentState_INCIDENT_STATE_OPEN}
	}
	closed := open("acme", "b", "s", "a", "content-corrupt")
	closed.State = pb.IncidentState_INCIDENT_STATE_CLOSED
	inWork := open("acme", "b", "s", "a", "content-corrupt")
	inWork.State = pb.IncidentState_INCIDENT_STATE_REPAIRING
	for name, tt := range map[string]struct {
		incidents  []*pb.Incident
		unreadable string
		unknown    error
		remaining  int // of the two kept objects, in the spaces s and other
	}{
		"no incident":                {remaining: 0},
		"of a copy":                  {incidents: []*pb.Incident{open("acme", "b", "s", "x", "replaced")}, remaining: 1},
		"of a copy in another store": {incidents: []*pb.Incident{open("acme", "a", "s", "x", "replaced")}, remaining: 1},
		"of a store that is no more": {incidents: []*pb.Incident{open("acme", "z", "s", "x", "replaced")}, remaining: 1},
		"of a list":                  {incidents: []*pb.Incident{open("acme", "b", "s", "", "deletes-held")}, remaining: 1},
		"of the space":               {incidents: []*pb.Incident{open("acme", "b", "s", "", "space-missing")}, remaining: 1},
		"being repaired":             {incidents: []*pb.Incident{inWork}, remaining: 1},
		"closed":                     {incidents: []*pb.Incident{inWork, closed}, remaining: 0},
		"of another account":         {incidents: []*pb.Incident{open("zoo", "a", "s", "", "deletes-held")}, remaining: 0},
		"of a policy":                {incidents: []*pb.Incident{open("acme", "", "", "", "policy-diverged")}, remaining: 0},
		"tables lack records":        {incidents: []*pb.Incident{open("-", "", "", "", "records-behind")}, remaining: 2},
		"a record cannot be read":    {unreadable: "acme/b/s/x/replaced", remaining: 2},
		"a later record can be read": {unreadable: "acme/b/s/a/content-corrupt", incidents: []*pb.Incident{closed},
			remaining: 0},
		"the incidents are not known": {unknown: context.DeadlineExceeded, remaining: 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := trimming(t, kafkatest.New(t, kafkatest.Options{Partitions: 1}), 0)
			a.cfg.Replaced.Keep = time.Nanosecond
			a.stores, a.registry, a.spaceHolds = openTestStores(t, t.TempDir()), health.NewRegistry(), newSpaceHolds()
			n := StoreName{"acme", "b"}
			st := a.stores.of(n)
			for _, space := range []string{"s", "other"} {
				if err := st.CreateSpace(t.Context(), storage.Space{Name: space}); err != nil {
					t.Fatal(err)
				}
				for range 2 {
					if _, err := st.Put(t.Context(), space, "a", strings.NewReader("x"),
						storage.PutOptions{Size: 1, KeepReplaced: true}); err != nil {
						t.Fatal(err)
					}
				}
			}
			if tt.unreadable != "" {
				a.spaceHolds.Unreadable([]byte(tt.unreadable), time.Now(), nil)
			}
			for _, i := range tt.incidents {
				a.spaceHolds.Apply([]byte(schemas.IncidentKey(i)), i)
			}
			e := &expiry{app: a, metrics: newExpireMetrics(a.registry, a.stores),
				incidents: func(context.Context) error { return tt.unknown }}
			if _, err := e.expire(t.Context(), e.app.log, n); !errors.Is(err, tt.unknown) {
				t.Errorf("got %v, want %v", err, tt.unknown)
			}
			remaining := 0
			for _, space := range []string{"s", "other"} {
				for _, err := range storage.ListKept(t.Context(), st, space, []string{"a"}) {
					if remaining++; err != nil {
						t.Fatal(err)
					}
				}
			}
			if remaining != tt.remaining {
				t.Errorf("%d objects are kept, want %d; held because of %q", remaining, tt.remaining,
					a.spaceHolds.reasons("acme", 10))
			}
			for _, i := range tt.incidents {
				a.spaceHolds.Apply([]byte(schemas.IncidentKey(i)), nil) // a tombstone
			}
			if a.spaceHolds.holds("acme", "s") != (tt.unreadable != "" && len(tt.incidents) == 0) {
				t.Error("the space is held after its incidents were removed")
			}
		})
	}
}
