package app

import (
	"context"
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
	"github.com/millrace/millrace/streams/storage"
)

// Stores are cleaned up at startup and periodically: replaced bytes are removed after their
// retention, each run is recorded as a job per store, an unavailable store is reported and does not
// block others, and a paused one is skipped.
func TestExpirer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
		a := trimming(t, b, 0)
		a.cfg.Expire.Every, a.cfg.Replaced.Keep = 6*time.Hour, 3*24*time.Hour
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
		if err := a.controls.Apply(key, ctl); err != nil {
			t.Fatal(err)
		}
		unavailable := filepath.Join(dir, "acme-a")
		if err := os.Rename(unavailable, unavailable+"-unplugged"); err != nil {
			t.Fatal(err)
		}
		left := func(n StoreName) int {
			all, err := filepath.Glob(filepath.Join(dir, n.Account+"-"+n.Store+"*", ".millrace", "quarantine", "*", "*",
				"bytes"))
			if err != nil {
				t.Fatal(err)
			}
			return len(all)
		}
		expirer := a.periodic("expirer", a.cfg.Expire.Every, a.expirer())
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		time.Sleep(2 * 24 * time.Hour)
		go func() { ended <- expirer.run(ctx) }()
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
		if err := os.Rename(unavailable+"-unplugged", unavailable); err != nil {
			t.Fatal(err)
		}
		ctl.Paused = false
		if err := a.controls.Apply(key, ctl); err != nil {
			t.Fatal(err)
		}
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
	if err != nil {
		t.Fatal(err)
	}
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
