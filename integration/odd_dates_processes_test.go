package integration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/integration/harness"
	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/streams/schedule"
	"github.com/millrace/millrace/streams/storage/s3/s3test"
)

// oddYears are before the beginning of Unix time, at the end of its unsigned seconds, and at that of ext4.
var oddYears = map[string]time.Time{"1965": time.Date(1965, 7, 13, 1, 2, 3, 0, time.UTC),
	"2106": time.Unix(1<<32-1, 0).UTC(), "2446": time.Date(2446, 5, 1, 0, 0, 0, 0, time.UTC)}

// TestOddDatesOfProcesses checks that files of a watched tree and objects of a bucket are copied, on record, checked,
// reported and repaired whatever their dates are. The bucket keeps whole seconds.
func TestOddDatesOfProcesses(t *testing.T) {
	need.Integration(t)
	var service atomic.Pointer[time.Time] // the time of the bucket's service; nil: now
	clock := func() time.Time {
		if at := service.Load(); at != nil {
			return *at
		}
		return time.Now()
	}
	server := s3test.New(s3test.Options{Clock: clock})
	t.Cleanup(server.Close)
	requestS3(t, server, http.MethodPut, objectBucket, nil)
	p := newSetup(t, func(c *config.Config) {
		stores := c.Accounts[0].Stores
		stores[0].Layout, stores[0].Expect, stores[0].Watch = "plain", "mounted", true
		stores[2] = config.Store{ID: objectStore, Driver: "s3", Endpoint: server.URL(), Bucket: objectBucket, PathStyle: true,
			Primary: true}
		stores[0].Primary = false
		c.Reconcile.Settle = 1
		never := schedule.Schedule{}
		c.Sweep.Fixity, c.Sweep.Duplication, c.Sweep.Reconcile = never, never, never
		c.Sweep.Stats, c.Sweep.Groups = never, never
	})
	p.write(t, "policies/acme-duplication-policy.json",
		`{"spaceDuplicationStorePolicies": {"tree": [{"srcStoreId": "1", "destStoreId": "2"}],
			"objects": [{"srcStoreId": "3", "destStoreId": "2"}]}}`)
	p.want(t, 0, "applied", "migrate")
	tree, copies := p.cfg.Accounts[0].Stores[0].Root, p.cfg.Accounts[0].Stores[1].Root
	must(t, errors.Join(os.WriteFile(filepath.Join(tree, "mounted"), nil, 0o600),
		os.MkdirAll(filepath.Join(tree, "tree"), 0o755)))
	for _, id := range []string{"2", "3"} {
		p.want(t, 0, "has its marker", "store", "init", "acme/"+id)
	}
	file := func(name, year string) string { // arrives whole, with its date
		path, made := filepath.Join(tree, "tree", name+year), filepath.Join(filepath.Dir(p.file), name+year)
		at := syscall.NsecToTimespec(0)
		at.Sec = oddYears[year].Unix()
		err := errors.Join(os.WriteFile(made, []byte(name+year), 0o600),
			syscall.UtimesNano(made, []syscall.Timespec{at, at}), os.Rename(made, path))
		must(t, err)
		if st, err := os.Stat(path); err != nil || !st.ModTime().Equal(oddYears[year]) {
			need.Missing(t, need.Kernel("a file system with dates until 2446"), fmt.Sprint(st, err))
		}
		return "tree/" + name + year
	}
	var items []string
	for year, at := range oddYears {
		items = append(items, file("found", year), "objects/object"+year)
		service.Store(&at)
		server.Put(objectBucket, "objects/object"+year, []byte("object"+year))
		service.Store(nil)
	}
	p.serve(t, "ingester,planner,copier,deleter,checker,steward,sweeper,delayer,sink")
	p.want(t, 0, "", "sweep", "start", "reconcile", "--wait")
	for year := range oddYears {
		items = append(items, file("arrived", year))
	}
	good := func(item string) []byte { return []byte(item[strings.Index(item, "/")+1:]) }
	copied := func(ctx context.Context) error {
		for _, item := range items {
			if b, err := os.ReadFile(filepath.Join(copies, item)); err != nil || !bytes.Equal(b, good(item)) {
				return fmt.Errorf("the copy of %s has %q (%w)", item, b, err)
			}
		}
		return ctx.Err()
	}
	harness.Eventually(t, 2*time.Minute, "copy the items", copied)
	for _, item := range items {
		p.want(t, 0, "", "object", "show", "acme/"+item)
	}
	p.want(t, 0, "", "fixity", "check", "acme", "--wait")
	if _, out := p.millrace(t, "fixity", "rounds", "-o", "ndjson"); strings.Count(out, `"result":"success"`) != 4 {
		t.Errorf("not each round of the 2 spaces in 2 stores is a success:\n%s", out)
	}
	_, report := p.millrace(t, "fixity", "report", "-o", "tsv")
	for _, item := range items {
		if n := strings.Count(report, "\t"+string(good(item))+"\tsuccess\t"); n != 2 {
			t.Errorf("the reports name %d copies of %s, want 2:\n%s", n, item, report)
		}
	}
	for _, item := range items { // rot, which keeps the date
		path := filepath.Join(copies, item)
		st, err := os.Stat(path)
		must(t, err)
		at := syscall.NsecToTimespec(int64(st.ModTime().Nanosecond()))
		at.Sec = st.ModTime().Unix()
		if err := errors.Join(os.WriteFile(path, bytes.ToUpper(good(item)), 0o600),
			syscall.UtimesNano(path, []syscall.Timespec{at, at})); err != nil {
			t.Fatal(err)
		}
	}
	p.want(t, 3, "", "fixity", "check", "acme/2", "--wait")
	harness.Eventually(t, 2*time.Minute, "repair the copies", copied)
	p.want(t, 0, "", "fixity", "check", "acme", "--wait")
	if _, out := p.millrace(t, "dead", "list", "-o", "json", "--all"); strings.TrimSpace(out) != "[]" {
		t.Errorf("dead letters: %s", out)
	}
}
