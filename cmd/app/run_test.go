package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/cmd/precondition"
	"github.com/millrace/millrace/internal/logtest"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/sinks/clickhouse/clickhousetest"
	"github.com/millrace/millrace/streams/kafka/access"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/kafka/embedded"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/emit"
)

// A site is a process with its own broker, an unavailable ClickHouse, and stores of which acme/3 is
// unavailable.
type site struct {
	t    *testing.T
	cfg  *config.Config
	said logtest.Lines
	url  string
}

func newSite(t *testing.T) *site {
	t.Helper()
	b, err := embedded.StartBroker(embedded.BrokerConfig{Dir: t.TempDir()})
	must(t, err)
	t.Cleanup(b.Close)
	cfg := config.Default()
	cfg.Kafka.Brokers, cfg.Kafka.Replication, cfg.Kafka.MinInSync, cfg.Kafka.Partitions = []string{b.Addr()}, 1, 1, 1
	cfg.ClickHouse.Addresses = []string{free(t)}
	cfg.HTTP.Listen = free(t)
	cfg.Delay.Lanes = []config.Lane{{Name: "200ms", Delay: 200 * time.Millisecond}}
	acc := config.Account{ID: "acme"}
	dir := t.TempDir()
	for _, id := range []string{"1", "2", "3"} {
		acc.Stores = append(acc.Stores,
			config.Store{ID: id, Driver: "file", Root: filepath.Join(dir, id), Primary: id == "1"})
	}
	marked(t, schemas.Key("acme", "1"), acc.Stores[0].Root)
	marked(t, schemas.Key("acme", "2"), acc.Stores[1].Root)
	cfg.Accounts = []config.Account{acc}
	return &site{t: t, cfg: &cfg, url: "http://" + cfg.HTTP.Listen}
}

// client returns store 1 of an account, whose Changes are published until the test ends.
func (s *site) client(a *App, account string) *emit.Store {
	s.t.Helper()
	a.cfg.Outbox.Dir = s.t.TempDir()
	store, err := a.EmittingStore(account, "1", "test")
	s.must(err)
	ctx, stop := context.WithCancel(s.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- store.Run(ctx) }()
	s.t.Cleanup(func() {
		stop()
		s.must(<-ended)
	})
	return store
}

// hasClickHouse gives the site a database, whose sink stores at once.
func (s *site) hasClickHouse() {
	s.t.Helper()
	s.cfg.ClickHouse.Addresses = []string{clickhousetest.Addr(s.t)}
	s.cfg.ClickHouse.Database = "site_" + schemas.NewID()
	clickhousetest.Make(s.t, s.cfg.ClickHouse.Database)
	s.cfg.Sink.Age = 50 * time.Millisecond
}

// must fails the test with an error, and with the log of the site.
func (s *site) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatalf("%v\n%s", err, s.said.String())
	}
}

// free returns an address without a listener.
func free(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	return l.Addr().String()
}

// run runs roles until the end of the test.
func (s *site) run(roles ...schemas.Role) *App {
	s.t.Helper()
	a, err := Open(s.t.Context(), s.cfg, Options{Log: s.said.Log(), Drain: time.Second})
	must(s.t, err)
	a.folder, a.republishInterval = a.newFolder(50*time.Millisecond), 100*time.Millisecond
	ctx, cancel := context.WithCancel(s.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx, roles) }()
	s.t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			s.t.Errorf("%v\n%s", err, s.said.String())
		}
		a.Close()
	})
	return a
}

// hasSpace creates the space photos in a store. Copiers create a missing space only if the records
// do not expect it; there are no records here.
func (s *site) hasSpace(store int) {
	s.t.Helper()
	must(s.t, os.Mkdir(filepath.Join(s.cfg.Accounts[0].Stores[store].Root, "photos"), 0o755))
}

// asked requests path, and returns 0 if there is no answer.
func (s *site) asked(path string) (code int, body string) {
	ctx, cancel := context.WithTimeout(s.t.Context(), 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+path, nil)
	must(s.t, err)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(b)
}

func (s *site) await(path string, code int, holds ...string) {
	s.t.Helper()
	s.until(func() error {
		got, body := s.asked(path)
		for _, h := range holds {
			if !strings.Contains(body, h) {
				return fmt.Errorf("%s: no %q in %d %s", path, h, got, body)
			}
		}
		if got != code {
			return fmt.Errorf("%s: got %d, want %d: %s", path, got, code, body)
		}
		return nil
	})
}

// until waits until done returns nil. After a minute the test fails with its error.
func (s *site) until(done func() error) {
	s.t.Helper()
	s.within(time.Minute, done)
}

// untilTrue waits until ok returns true. After a minute the test fails with what it has waited for.
func (s *site) untilTrue(what string, ok func() bool) {
	s.t.Helper()
	s.until(func() error {
		if !ok() {
			return fmt.Errorf("not in time: %s", what)
		}
		return nil
	})
}

// within is until with another limit.
func (s *site) within(limit time.Duration, done func() error) {
	s.t.Helper()
	end, tick := time.Now().Add(limit), time.NewTicker(50*time.Millisecond)
	defer tick.Stop()
	for {
		err := done()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			s.t.Fatalf("%v\n%s", err, s.said.String())
		}
		<-tick.C
	}
}

// A role without ClickHouse and stores starts, and is ready, whatever is unavailable.
func TestRunNeedsWhatItsRolesUse(t *testing.T) {
	s := newSite(t)
	marked(t, "another", s.cfg.Accounts[0].Stores[2].Root) // nor is a wrong marker its business
	s.run(schemas.RoleDelayer)
	s.await("/startupz", 200)
	s.await("/readyz", 200, `"kafka": "ok"`, `"breakers": []`)
	if _, body := s.asked("/readyz"); strings.Contains(body, "clickhouse") {
		t.Errorf("it tells of ClickHouse: %s", body)
	}
}

// The sweeper, which has no group, has started when it has read the checkpoints.
func TestRunSweeper(t *testing.T) {
	s := newSite(t)
	a := s.run(schemas.RoleSweeper)
	s.await("/startupz", 200, `"role": "sweeper",
      "member": true`)
	s.await("/livez", 200)
	s.until(func() error { // the rounds wait for ClickHouse, and are retried
		if states := a.kafka.Metrics.State(); len(states) != 1 || states[0].Active.IsZero() {
			return fmt.Errorf("no progress: %+v", states)
		}
		return nil
	})
}

// While ClickHouse and a store are unavailable, all roles run, and work that needs neither is done:
// an item is copied. The process is live and not ready.
func TestRunWhileClickHouseIsAway(t *testing.T) {
	s := newSite(t)
	a := s.run(Roles()...)
	s.await("/startupz", 200)
	s.await("/readyz", 503, "clickhouse is unavailable: ", `"state": "open"`)
	s.await("/livez", 200)
	s.await("/metrics", 200, `millrace_limit_breaker_state{account="acme",state="open",store="3"} 1`)
	for what, n := range map[string]int{"wait for ClickHouse": 1, "wait for unavailable store": 1} {
		if s.said.Count(what) < n {
			t.Errorf("the log does not say %q", what)
		}
	}
	doc, err := policy.Parse([]byte(`{"defaultPolicies": [{"srcStoreId": "1", "destStoreId": "2"}, {"srcStoreId": ` +
		`"1", "destStoreId": "3"}]}`))
	must(t, err)
	must(t, a.SetPolicy(t.Context(), "acme", doc, "test"))
	store := s.client(a, "acme")
	must(t, store.CreateSpace(t.Context(), storage.Space{Name: "photos"}))
	if _, err := store.Put(t.Context(), "photos", "a", strings.NewReader("bytes"),
		storage.PutOptions{Size: 5}); err != nil {
		t.Fatal(err)
	}
	s.hasSpace(1)
	copied := func(id string) func() error {
		st, _ := a.Stores().Store("acme", id)
		return func() error {
			_, err := st.Stat(t.Context(), "photos", "a")
			return err
		}
	}
	s.until(copied("2"))
	// When the third store becomes available, it is found, and the work that waits for it is done.
	marked(t, schemas.Key("acme", "3"), s.cfg.Accounts[0].Stores[2].Root)
	s.hasSpace(2)
	s.until(copied("3"))
}

// The process answers before the roles run, and reports that it has not started. Here no broker
// ever answers.
func TestRunAnswersAtOnce(t *testing.T) {
	s := newSite(t)
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	s.cfg.Kafka.Brokers = []string{silent.Addr().String()}
	s.run(schemas.RoleDelayer, schemas.RoleSweeper)
	t.Cleanup(func() { silent.Close() }) // first, so that nobody waits for it when the process stops
	s.await("/startupz", 503, "the state of the engines is not known", "role delayer is not in its group",
		"role sweeper has not read the checkpoints")
	s.await("/readyz", 503)
	s.await("/livez", 200)
	s.await("/metrics", 200, "go_goroutines ")
}

// A right that is withdrawn from a running part ends the process, but is no precondition, as it is at the start.
func TestRunningPartIsNoPrecondition(t *testing.T) {
	w := appRun{App: &App{log: slog.New(slog.DiscardHandler), drain: time.Second}}
	refused := fmt.Errorf("poll: %w", client.ErrAccess)
	err := w.work(t.Context(), nil, []part{{"reader", func(context.Context) error { return refused }}})
	if !errors.Is(err, client.ErrAccess) || errors.Is(err, precondition.Err) {
		t.Errorf("got %v, want %v without precondition.Err", err, refused)
	}
	if err := asPrecondition(refused); !errors.Is(err, precondition.Err) {
		t.Errorf("got %v at the start, want precondition.Err", err)
	}
}

// On a new cluster the rights on groups cannot be asked for: that is no warning, and says what was not checked.
func TestCheckRightsOfANewCluster(t *testing.T) {
	for name, tt := range map[string]struct {
		preparing bool
		want      []string // in the log
	}{
		"the offsets topic is prepared": {true,
			[]string{"level=INFO", "skip the check of Kafka rights on groups", "the brokers are preparing their offsets topic",
				"groups=[millrace.delayer]"}},
		"another failure": {false,
			[]string{"level=WARN", "skip the check of Kafka rights on groups", "groups=[millrace.delayer]",
				"UNKNOWN_SERVER_ERROR"}},
	} {
		t.Run(name, func(t *testing.T) {
			var said logtest.Lines
			cfg := config.Default()
			w := appRun{App: &App{log: said.Log(), cfg: &cfg, kafka: kafkatest.WithoutCoordinators(t, tt.preparing)}}
			must(t, w.checkRights(t.Context(), []schemas.Role{schemas.RoleDelayer}))
			for _, want := range tt.want {
				if !strings.Contains(said.String(), want) || said.Count("\n") != 1 {
					t.Errorf("got\n%s\nwant %q", said.String(), want)
				}
			}
		})
	}
}

// A role that is started before millrace migrate says to run it, with a login that has the rights of the role only.
func TestRunBeforeMigrate(t *testing.T) {
	s := newSite(t)
	s.cfg.Kafka.Brokers = kafkatest.WithRights(t, "planner", "p",
		access.Rights(client.Config{Prefix: "millrace."}, schemas.RolePlanner))
	s.cfg.Kafka.TopicPrefix = "millrace."
	t.Setenv("PLANNER", "p")
	secret, _, err := config.Load(config.Sources{Env: []string{"MILLRACE_CLICKHOUSE__PASSWORD=env:PLANNER"}})
	must(t, err)
	s.cfg.Kafka.SASL = config.SASL{Mechanism: "PLAIN", User: "planner", Password: secret.ClickHouse.Password}
	a, err := Open(t.Context(), s.cfg, Options{Log: s.said.Log(), Drain: time.Second})
	must(t, err)
	defer a.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	const want = "topics are missing, and the login may not create them: run millrace migrate: "
	if err := a.Run(ctx, []schemas.Role{schemas.RolePlanner}); !errors.Is(err, precondition.Err) ||
		!strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "millrace.changes") {
		t.Errorf("got %v, want %q", err, want)
	}
}

// A root with the marker of another store prevents the start of a role that uses stores.
func TestRunRefusesAWrongMarker(t *testing.T) {
	s := newSite(t)
	marked(t, "another", s.cfg.Accounts[0].Stores[2].Root)
	a, err := Open(t.Context(), s.cfg, Options{Log: s.said.Log(), Drain: time.Second})
	must(t, err)
	defer a.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := a.Run(ctx, []schemas.Role{schemas.RoleCopier}); !errors.Is(err, precondition.Err) ||
		!errors.Is(err, storage.ErrWrongMarker) {
		t.Errorf("got %v, want the wrong marker", err)
	}
	if code, _ := s.asked("/livez"); code != 0 {
		t.Errorf("it still answers: %d", code)
	}
}

// must fails the test with an error.
func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
