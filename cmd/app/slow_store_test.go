package app

import (
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/sinks/clickhouse/clickhousetest"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/s3/s3test"
)

// A slowS3 is an S3 service whose responses are late, or do not come.
type slowS3 struct {
	*s3test.Server
	delay  atomic.Int64 // of each request, in ns
	silent atomic.Bool  // no request is carried out, and none gets a response
	lost   atomic.Int64 // how many of the next PUTs are carried out and get no response
	ended  chan struct{}

	mu    sync.Mutex                  // guards the fields below
	held  map[*http.Request]time.Time // requests that get no response, by their starts
	peak  int                         // the most of them
	young int                         // the most that began within slowYoung
	puts  map[string]int
}

// slowStall is the time after which the copier gives up a request. The service learns of that later, when the copier
// may have sent another one.
const slowStall = 2 * time.Second

// slowYoung is the age up to which the copier has not given up a request, also if the service gets it late.
const slowYoung = slowStall / 10

const slowBucket = "copies"

// newSlowS3 starts the service, with a bucket.
func newSlowS3(t *testing.T) *slowS3 {
	t.Helper()
	s := &slowS3{ended: make(chan struct{}), held: map[*http.Request]time.Time{}, puts: map[string]int{}}
	s.Server = s3test.New(s3test.Options{
		Before: func(_ http.ResponseWriter, r *http.Request) bool {
			select {
			case <-time.After(time.Duration(s.delay.Load())):
			case <-s.ended:
			}
			return s.silent.Load() && s.hold(r)
		},
		After: func(_ http.ResponseWriter, r *http.Request) bool {
			item, isItem := strings.CutPrefix(r.URL.Path, "/"+slowBucket+"/photos/")
			if r.Method != http.MethodPut || !isItem {
				return false
			}
			s.mu.Lock()
			s.puts[item]++
			s.mu.Unlock()
			return s.lost.Add(-1) >= 0 && s.hold(r)
		},
	})
	t.Cleanup(func() {
		close(s.ended)
		s.Close()
	})
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, s.URL()+"/"+slowBucket, nil)
	must(t, err)
	resp, err := http.DefaultClient.Do(req)
	must(t, err)
	resp.Body.Close()
	return s
}

// hold keeps a request without a response until its client gives up.
func (s *slowS3) hold(r *http.Request) bool {
	s.begin(r)
	defer s.end(r)
	select {
	case <-r.Context().Done():
	case <-s.ended:
	}
	return true
}

func (s *slowS3) begin(r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held[r] = time.Now()
	young := 0
	for _, begun := range s.held {
		if time.Since(begun) < slowYoung {
			young++
		}
	}
	s.peak, s.young = max(s.peak, len(s.held)), max(s.young, young)
}

func (s *slowS3) end(r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.held, r)
}

// mostHeld returns how many requests got no response at the same time, at most. Of some, the copier may have given up.
// young are those that it has not.
func (s *slowS3) mostHeld() (all, young int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.peak, s.young
}

// A slowSite copies each item of acme/1 to acme/2 and to acme/3, which is slow, and each item of bell/1 to bell/2.
type slowSite struct {
	*site
	app *App
	s3  *slowS3
}

// newSlowSite runs a site whose copier has one worker more than acme/3 has slots.
func newSlowSite(t *testing.T, slots int) *slowSite {
	t.Helper()
	x := &slowSite{site: newSite(t), s3: newSlowS3(t)}
	cfg := x.cfg
	x.hasClickHouse()
	cfg.Roles.Stall = slowStall
	cfg.Roles.Copier.Workers, cfg.Roles.Copier.Reserved = slots+1, 0
	bell, dir := config.Account{ID: "bell"}, t.TempDir()
	for _, id := range []string{"1", "2"} {
		c := config.Store{ID: id, Driver: "file", Root: filepath.Join(dir, id), Primary: id == "1"}
		marked(t, schemas.Key("bell", id), c.Root)
		x.must(os.Mkdir(filepath.Join(c.Root, "photos"), 0o755))
		bell.Stores = append(bell.Stores, c)
	}
	x.hasSpace(0)
	x.hasSpace(1)
	cfg.Accounts[0].Stores[2] = config.Store{ID: "3", Driver: "s3", Endpoint: x.s3.URL(), Bucket: slowBucket,
		PathStyle: true, Limits: config.Limits{Tasks: slots}}
	cfg.Accounts = append(cfg.Accounts, bell)
	x.must(InitStore(t.Context(), cfg, x.said.Log(), StoreName{"acme", "3"}))
	x.app = x.run(schemas.RolePlanner, schemas.RoleCopier, schemas.RoleSteward, schemas.RoleSink, schemas.RoleDelayer)
	x.await("/startupz", 200)
	for account, pairs := range map[string]string{
		"acme": `{"srcStoreId": "1", "destStoreId": "2"}, {"srcStoreId": "1", "destStoreId": "3"}`,
		"bell": `{"srcStoreId": "1", "destStoreId": "2"}`,
	} {
		doc, err := policy.Parse([]byte(`{"defaultPolicies": [` + pairs + `]}`))
		x.must(err)
		x.must(x.app.SetPolicy(t.Context(), account, doc, "test"))
	}
	return x
}

// add puts n items into store 1 of an account.
func (x *slowSite) add(account, name string, n int) {
	x.t.Helper()
	client := x.client(x.app, account)
	for i := range n {
		item := fmt.Sprintf("%s-%02d", name, i)
		_, err := client.Put(x.t.Context(), "photos", item, strings.NewReader(item),
			storage.PutOptions{Size: int64(len(item))})
		x.must(err)
	}
}

// rows waits for n rows of a query for the text of the store's rows, and returns them.
func (x *slowSite) rows(n int, query string, of StoreName) (all []string) {
	x.t.Helper()
	x.until(func() (err error) {
		all, err = clickhousetest.Strings(x.t.Context(), x.app.DB(), query, of.Account, of.Store)
		if err == nil && len(all) < n {
			err = fmt.Errorf("%v: %d rows, want %d: %q", of, len(all), n, all)
		}
		return err
	})
	return all
}

// ended waits for the results of n commands of a destination, and returns all of them.
func (x *slowSite) ended(n int, account, store string) []string {
	x.t.Helper()
	return x.rows(n, `SELECT concat(item, ' ', decision, ' ', result) FROM {db}.duplication_log_v
		WHERE account = ? AND destination_store = ? ORDER BY item`, StoreName{account, store})
}

// each returns a text for each of the items that add has added.
func each(format string, n int, names ...string) (all []string) {
	for _, name := range names {
		for i := range n {
			all = append(all, fmt.Sprintf(format, fmt.Sprintf("%s-%02d", name, i)))
		}
	}
	return all
}

// A store that is slow, or that does not respond within the time limit, delays no copy to another store and none of
// another account: it occupies its slots and no other worker. A request without a response is cancelled, and is taken
// for no fact: whether it had an effect is found out, and each item is written once. When the store responds again,
// every command ends as if there had been no fault.
func TestSlowStore(t *testing.T) {
	need.Full(t)
	t.Parallel()
	const slots, items, lost = 5, 8, 3
	x := newSlowSite(t, slots)

	x.s3.silent.Store(true)
	x.add("acme", "silent", items)
	x.untilTrue("all slots taken", func() bool { n, _ := x.s3.mostHeld(); return n >= slots })
	x.add("bell", "meanwhile", items)
	for account, name := range map[string]string{"acme": "silent", "bell": "meanwhile"} {
		if got, want := x.ended(items, account, "2"), each("%s C5 copied", items, name); !slices.Equal(got, want) {
			t.Errorf("copies of %s: %q, want %q", account, got, want)
		}
	}
	x.await("/metrics", 200, `millrace_limit_breaker_state{account="acme",state="open",store="3"} 1`)
	if _, n := x.s3.mostHeld(); n > slots {
		t.Errorf("%d requests at a time, want %d", n, slots)
	}
	if got := x.ended(0, "acme", "3"); len(got) > 0 {
		t.Errorf("ended without a response: %q", got)
	}

	x.s3.lost.Store(lost)
	x.s3.silent.Store(false)
	x.ended(items, "acme", "3")
	x.s3.delay.Store(int64(50 * time.Millisecond))
	x.add("acme", "slow", items)
	got := x.ended(2*items, "acme", "3")
	inSync := 0
	for i, row := range got {
		if strings.HasSuffix(row, " C2 in-sync") {
			inSync++
			got[i] = strings.Replace(row, "C2 in-sync", "C5 copied", 1)
		}
	}
	if want := each("%s C5 copied", items, "silent", "slow"); inSync < lost || !slices.Equal(got, want) {
		t.Errorf("copies to acme/3, %d of them in-sync: %q, want %q, and %d", inSync, got, want, lost)
	}
	x.writtenOnce(each("%s", items, "silent", "slow"))
}

// writtenOnce checks that each item was written to acme/3 once and has one Change there, and that nothing is reported
// as missing.
func (x *slowSite) writtenOnce(items []string) {
	x.t.Helper()
	x.s3.mu.Lock()
	puts := maps.Clone(x.s3.puts)
	x.s3.mu.Unlock()
	var changes []string
	for _, item := range items {
		if n := puts[item]; n != 1 {
			x.t.Errorf("%s was written %d times", item, n)
		}
		changes = append(changes, item+" add")
	}
	got := x.rows(len(items), `SELECT concat(item, ' ', op) FROM {db}.audit_log_v
		WHERE account = ? AND store = ? AND item != '' ORDER BY item`, StoreName{"acme", "3"})
	if !slices.Equal(got, changes) {
		x.t.Errorf("Changes of acme/3: %q, want %q", got, changes)
	}
	open, err := read.OpenIncidents(x.t.Context(), x.app.DB(), "")
	x.must(err)
	if len(open) > 0 {
		x.t.Errorf("open incidents: %v", open)
	}
}
