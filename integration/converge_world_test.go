package integration

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/integration/converge"
	"github.com/millrace/millrace/integration/harness"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/admin"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/kafka/deadletter"
	broker "github.com/millrace/millrace/streams/kafka/embedded"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/storage/emit"
	"github.com/millrace/millrace/streams/storage/s3/s3test"
)

// Stores: clients write to the source, the S3 store has its own clock, and the last one is removable. The S3 store is
// the source of no other store: its clock may date deletes before the rule for deletes, and such deletes are correctly
// kept. Its properties change only with the bytes, because the copier does not rewrite bytes on S3 to change
// properties.
const (
	sourceStore = "1"
	clockStore  = "2"
	outStore    = "4"
	clockBucket = "two"
)

// Spaces.
const (
	fanSpace   = "fan"   // two copies, both of the source
	chainSpace = "chain" // a copy, and a copy of that copy
	keptSpace  = "kept"  // copies are kept when their source is deleted
	lostSpace  = "lost"  // one copy, in a store that loses the whole space
)

// lostAt is the store that loses lostSpace.
const lostAt = "3"

// clockLag is the initial offset by which the S3 store's clock is slow.
const clockLag = 90 * time.Second

// convergePolicies returns the first revisions of the policy. The first revision does not contain the removable store.
func convergePolicies() []string {
	return []string{convergePolicy("", "", 0),
		convergePolicy(`, {"srcStoreId": "1", "destStoreId": "4"}`, `"kept": {"deletes": "keep"}`, 0)}
}

// laterPolicy returns a revision with the rules of the last one of convergePolicies that ignores another space.
func laterPolicy(revision int64) string {
	return convergePolicy(`, {"srcStoreId": "1", "destStoreId": "4"}`, `"kept": {"deletes": "keep"}`, revision)
}

func convergePolicy(kept, spaces string, ignored int64) string {
	return fmt.Sprintf(`{"spaceDuplicationStorePolicies": {
		"lost": [{"srcStoreId": "1", "destStoreId": "3"}],
		"fan": [{"srcStoreId": "1", "destStoreId": "2"}, {"srcStoreId": "1", "destStoreId": "3"}],
		"chain": [{"srcStoreId": "1", "destStoreId": "3"}, {"srcStoreId": "3", "destStoreId": "2"}],
		"kept": [{"srcStoreId": "1", "destStoreId": "2"}%s]}, "spaces": {%s}, "spacesToIgnore": ["ignored-%d"]}`,
		kept, spaces, ignored)
}

func convergeRules() map[string]converge.Rule {
	return map[string]converge.Rule{
		fanSpace:   {Pairs: []converge.Pair{{From: "1", To: "2"}, {From: "1", To: "3"}}},
		chainSpace: {Pairs: []converge.Pair{{From: "1", To: "3"}, {From: "3", To: "2"}}},
		keptSpace:  {Pairs: []converge.Pair{{From: "1", To: "2"}, {From: "1", To: "4"}}, Keep: true},
		lostSpace:  {Pairs: []converge.Pair{{From: "1", To: lostAt}}},
	}
}

// Processes and their roles.
const (
	sinkProcess    = "sink"
	headProcess    = "head"
	stewardProcess = "care" // separate: after a kill a planning process plans again, which repairs many deviations
	workProcess    = "work"
	otherProcess   = "other"
)

func processRoles() map[string]string {
	return map[string]string{
		sinkProcess: "sink", headProcess: "planner,delayer", stewardProcess: "steward", workProcess: "copier,deleter",
		otherProcess: "copier,deleter,checker,sweeper",
	}
}

// convergeWorld has a broker in this process, ClickHouse and roles in separate processes, three file stores, an S3
// store, clients, and a model of their mutations.
type convergeWorld struct {
	setup
	binary   string // millrace
	seed     uint64
	short    bool // the short form, with the embedded broker
	model    *converge.Model
	backup   string // backup of the engine from before the clients started
	app      *app.App
	client   *emit.Store
	producer *kafka.Producer
	admin    *admin.Admin
	dead     *deadletter.Letters
	s3       *s3test.Server
	clock    atomic.Int64 // offset of the S3 store's clock in ns
	s3Away   atomic.Bool
	hooks    hooks
	events   sync.Mutex   // held during a fault of processes, roles, stores or clocks
	mutating sync.RWMutex // read-locked during a client operation, locked to read a consistent model

	mu        sync.Mutex // guards what follows
	revision  int64      // of the policy
	without   bool       // processes are started without the removable store
	processes map[string]*process
	used      map[string]int                   // number of used items by group
	puts      map[converge.ItemRef]converge.Op // last put by item
	reasons   map[string]string                // reasons of decisions, also of those that failed, by incident id
	took      map[string]int                   // number of faults and decisions that had their effect, by name

	items   sync.Map // converge.ItemRef before a rename, to its *sync.Mutex
	decided sync.Map // ids of incidents that an operator has decided about
}

func newConvergeWorld(t *testing.T, seed uint64, short bool) *convergeWorld {
	t.Helper()
	dir := t.TempDir()
	w := &convergeWorld{
		binary: binaries(t), seed: seed, short: short, model: converge.NewModel(sourceStore, convergeRules(), clockStore),
		processes: map[string]*process{},
		used:      map[string]int{}, took: map[string]int{}, puts: map[converge.ItemRef]converge.Op{},
		reasons: map[string]string{},
		hooks:   hooks{before: map[string]func(){}, after: map[string]func(){}, statted: map[string]chan struct{}{}},
	}
	w.clock.Store(int64(-clockLag))
	t.Setenv("PATH", filepath.Dir(w.binary)+string(os.PathListSeparator)+os.Getenv("PATH"))
	cfg := config.Default()
	w.brokers(t, &cfg, filepath.Join(dir, "kafka"))
	w.engine = newEngine(t, dir)
	t.Cleanup(func() { w.engine.revive(t) }) // libchdb may abort when its clients are killed
	w.serveS3(t)
	w.configure(t, dir, cfg)
	w.want(t, 0, "applied", "migrate")
	for _, s := range w.cfg.Accounts[0].Stores {
		w.want(t, 0, "has its marker", "store", "init", "acme/"+s.ID)
	}
	w.open(t)
	for _, text := range convergePolicies() {
		must(t, w.revise(t.Context(), text))
	}
	for name := range processRoles() {
		w.start(t, name)
	}
	return w
}

// brokers starts a broker: the embedded one in the short form, Kafka in the full form. In the full form processes are
// killed while they join a group; the embedded broker may keep such members for minutes.
func (w *convergeWorld) brokers(t *testing.T, cfg *config.Config, dir string) {
	t.Helper()
	if !w.short {
		k := harness.Kafka(t, harness.Options{Brokers: 1}).Config("millrace.")
		cfg.Kafka.Brokers, cfg.Kafka.TopicPrefix = k.Brokers, k.Prefix
		return
	}
	b, err := broker.StartBroker(broker.BrokerConfig{Dir: dir, SyncWrites: true})
	must(t, err)
	t.Cleanup(b.Close)
	cfg.Kafka.Brokers = []string{b.Addr()}
}

// configure writes the two configurations: with all stores, and without the removable one.
func (w *convergeWorld) configure(t *testing.T, dir string, cfg config.Config) {
	t.Helper()
	acc := config.Account{ID: "acme"}
	for _, id := range []string{"1", "2", "3", "4"} {
		s := config.Store{ID: id, Driver: "file", Root: filepath.Join(dir, "store-"+id), Primary: id == sourceStore}
		if id == clockStore {
			s = config.Store{ID: id, Driver: "s3", Endpoint: w.s3.URL(), Bucket: clockBucket, PathStyle: true}
		} else if err := os.Mkdir(s.Root, 0o755); err != nil {
			t.Fatal(err)
		}
		acc.Stores = append(acc.Stores, s)
	}
	cfg.Accounts = []config.Account{acc}
	cfg.Kafka.Partitions, cfg.Kafka.Replication, cfg.Kafka.MinInSync = 3, 1, 1
	cfg.Kafka.SessionTimeout = 6 * time.Second
	cfg.ClickHouse.Addresses = []string{w.engine.server.Addr()}
	// Waits are short, except for the sink's batch age, so that decisions are made before the sink stores.
	cfg.Delay.Lanes = []config.Lane{{Name: "200ms", Delay: 200 * time.Millisecond}, {Name: "1s", Delay: time.Second}}
	cfg.Duplication.Wait = []time.Duration{200 * time.Millisecond, time.Second, 2 * time.Second}
	cfg.Fixity.Settle, cfg.Fixity.MinInterval = 2*time.Second, time.Millisecond
	// A copier that was killed or suspended after it wrote a copy publishes it later. The last recheck is after that, so
	// that such a copy causes no incident.
	cfg.Fixity.Recheck = []time.Duration{500 * time.Millisecond, time.Second, 15 * time.Second}
	cfg.Roles.Drain = 2 * time.Second
	cfg.Deletes.MaxShare, cfg.Deletes.MaxCount = 1, 1_000_000   // clients delete most of what they write
	cfg.Replaced.MaxShare, cfg.Replaced.MaxCount = 1, 1_000_000 // and rewrite it
	w.file = filepath.Join(dir, "millrace.yaml")
	write := func(name string) {
		var text bytes.Buffer
		must(t, config.Print(&text, &cfg, nil))
		w.write(t, name, text.String())
	}
	write("millrace.yaml")
	cfg.Accounts[0].Stores = slices.DeleteFunc(slices.Clone(acc.Stores),
		func(s config.Store) bool { return s.ID == outStore })
	write("without.yaml")
	var err error
	if w.cfg, _, err = config.Load(config.Sources{File: w.file}); err != nil {
		t.Fatal(err)
	}
}

// open opens the clients' stores.
func (w *convergeWorld) open(t *testing.T) {
	t.Helper()
	w.app, w.client = w.openClient(t)
	k := client.Config{Brokers: w.cfg.Kafka.Brokers, Prefix: w.cfg.Kafka.TopicPrefix, ClientID: "converge",
		Log: slog.New(slog.DiscardHandler)}
	for _, l := range w.cfg.Delay.Lanes {
		k.Lanes = append(k.Lanes, client.Lane{Name: l.Name, Delay: l.Delay})
	}
	var err error
	if w.producer, err = kafka.NewProducer(k, "converge"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.producer.Close)
	if w.admin, err = admin.New(k); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.admin.Close)
	if w.dead, err = deadletter.New(k); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.dead.Close)
}

// revise publishes the next revision of the policy.
func (w *convergeWorld) revise(ctx context.Context, text string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	doc, err := policy.Parse([]byte(text))
	if err != nil {
		return err
	}
	rec, err := policy.Record("acme", w.revision, doc, "ann", time.Now().UTC())
	if err != nil {
		return err
	}
	w.revision++
	return w.producer.Publish(ctx, schemas.Message{Topic: schemas.Policies, Body: rec})
}

// start starts or restarts a process.
func (w *convergeWorld) start(t *testing.T, name string) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	file := w.file
	if w.without {
		file = filepath.Join(filepath.Dir(w.file), "without.yaml")
	}
	w.processes[name] = startProgram(t, name,
		exec.Command(w.binary, "run", "--config", file, "--roles", processRoles()[name]))
}

func (w *convergeWorld) process(name string) *process {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.processes[name]
}
