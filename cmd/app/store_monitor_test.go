package app

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/incident"
)

// publishedIncidents keeps the published incidents.
type publishedIncidents []*pb.Incident

func (p *publishedIncidents) Publish(_ context.Context, msgs ...schemas.Message) error {
	for _, m := range msgs {
		*p = append(*p, m.Body.(*pb.Incident))
	}
	return nil
}

// A store that does not answer for five minutes has one incident until it answers, also if another process monitors the
// stores meanwhile, or it is removed. One that is away for less has none.
func TestMonitorStores(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var published publishedIncidents
		a := &App{stores: openTestStores(t, dir), log: slog.New(slog.DiscardHandler)}
		a.incidentBoard = incident.NewBoard(&published, a.log)
		root := filepath.Join(dir, "acme-a")
		rename := func(from, to string) {
			t.Helper()
			must(t, os.Rename(from, to))
		}
		var mu sync.Mutex // guards owns and, since the monitor asks for it before it publishes, published
		owns := true
		own := func(is bool) {
			mu.Lock()
			defer mu.Unlock()
			owns = is
		}
		go func() {
			_ = newStoreMonitor(a).run(ctx, func(string, string) bool {
				mu.Lock()
				defer mu.Unlock()
				return owns
			})
		}()
		go func() { _ = a.stores.run(ctx) }()
		var all string
		after := func(d time.Duration, states string) {
			t.Helper()
			time.Sleep(d)
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			got := ""
			for _, i := range published {
				got += schemas.IncidentKey(i) + " " + strings.TrimPrefix(i.GetState().String(), "INCIDENT_STATE_") + " "
			}
			if all += states; got != all {
				t.Fatalf("got %q, want %q", got, all)
			}
		}
		const opened, closed = "acme/a///store-unavailable OPEN ", "acme/a///store-unavailable CLOSED "
		after(time.Hour, "")
		rename(root, root+".unplugged")
		after(4*time.Minute, "")
		rename(root+".unplugged", root)
		after(10*time.Minute, "")
		rename(root, root+".unplugged")
		after(7*time.Minute, opened)
		steps := published[0].GetSteps()
		if d := steps[len(steps)-1].GetDetail(); !strings.Contains(d, "marker is missing") ||
			!strings.Contains(d, "mount its root") {
			t.Errorf("the incident says %q", d)
		}
		after(24*time.Hour, "")
		own(false)
		after(2*time.Minute, "")
		own(true) // it has not asked before
		after(2*time.Minute, "")
		rename(root+".unplugged", root)
		after(2*time.Minute, closed)
		rename(root, root+".unplugged")
		after(7*time.Minute, opened)
		a.stores.accounts = map[string]accountState{}
		a.stores.rebuild()
		after(2*time.Minute, closed)
		cancel()
		synctest.Wait()
	})
}
