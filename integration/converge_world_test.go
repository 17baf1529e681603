package integration

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/integration/converge"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse/clickhousetest"
	"github.com/millrace/millrace/sinks/clickhouse/embedded"
	"github.com/millrace/millrace/streams/kafka"
	broker "github.com/millrace/millrace/streams/kafka/embedded"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/record"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/emit"
	"github.com/millrace/millrace/streams/storage/s3/s3test"
)

// Stores of a world: clients use the source; the one on S3 has a clock of its own; the last one may be taken out.
const (
	sourceStore = "1"
	clockStore  = "2"
	outStore    = "4"
	clockBucket = "two"
)

// Spaces of a world.
const (
	fanSpace   = "fan"   // two copies, both of the source
	chainSpace = "chain" // a copy, and a copy of that
	keptSpace  = "kept"  // copies stay when their source is deleted
)

// behind is how far the clock of the store on S3 is behind at first.
const behind = 90 * time.Second

// convergePolicies are the revisions of the policy. The first one does not know the store that is taken out.
func convergePolicies() []string {
	const pairs = `{"spaceDuplicationStorePolicies": {
		"fan": [{"srcStoreId": "1", "destStoreId": "2"}, {"srcStoreId": "1", "destStoreId": "3"}],
		"chain": [{"srcStoreId": "1", "destStoreId": "2"}, {"srcStoreId": "2", "destStoreId": "3"}],
		"kept": [{"srcStoreId": "1", "destStoreId": "2"}%s]}%s}`
	return []string{
		fmt.Sprintf(pairs, "", ""),
		fmt.Sprintf(pairs, `, {"srcStoreId": "1", "destStoreId": "4"}`, `, "spaces": {"kept": {"deletes": "keep"}}`),
	}
}

func convergeRules() map[string]converge.Rule {
	return map[string]converge.Rule{
		fanSpace:   {Pairs: []converge.Pair{{From: "1", To: "2"}, {From: "1", To: "3"}}},
		chainSpace: {Pairs: []converge.Pair{{From: "1", To: "2"}, {From: "2", To: "3"}}},
		keptSpace:  {Pairs: []converge.Pair{{From: "1", To: "2"}, {From: "1", To: "4"}}, Keep: true},
	}
}

// Processes of a world, and their roles.
const (
	sinkProcess  = "sink"
	headProcess  = "head"
	workProcess  = "work"
	otherProcess = "other"
)

func processRoles() map[string]string {
	return map[string]string{
		sinkProcess: "sink", headProcess: "planner,steward,delayer", workProcess: "copier,deleter", otherProcess: "copier,deleter,checker,sweeper",
	}
}

// A convergeWorld is a broker in this process, a ClickHouse and roles in processes of their own, three stores of files, one on
// S3, clients, and a model of what they did.
type convergeWorld struct {
	plant
	seed     uint64
	model    *converge.Model
	engineAt embedded.Config
	engine   *embedded.Server
	app      *app.App
	client   *emit.Store
	producer *kafka.Producer
	admin    *kafka.Admin
	s3       *s3test.Server
	clock    atomic.Int64 // ns that the clock of the store on S3 is ahead
	s3Away   atomic.Bool
	hooks    hooks

	mu        sync.Mutex // guards what follows
	without   bool       // processes are started without the store that is taken out
	processes map[string]*process
	turn      map[string]int                 // how many items of a group were used
	puts      map[converge.Place]converge.Op // the last of each item

	items sync.Map // converge.Place before it was renamed, to the *sync.Mutex of who works with it
}

// hooks are called once when the store on S3 is asked to do something with a key.
type hooks struct {
	mu     sync.Mutex // guards what follows
	before map[string]func()
	after  map[string]func()
	asked  map[string]chan struct{} // closed when a key is looked at
}

func newConvergeWorld(t *testing.T, seed uint64) *convergeWorld {
	t.Helper()
	dir := t.TempDir()
	w := &convergeWorld{
		seed: seed, model: converge.NewModel(sourceStore, convergeRules()), processes: map[string]*process{},
		turn: map[string]int{}, puts: map[converge.Place]converge.Op{},
		hooks:    hooks{before: map[string]func(){}, after: map[string]func(){}, asked: map[string]chan struct{}{}},
		engineAt: embedded.Config{Dir: filepath.Join(dir, "engine"), Binary: clickhousetest.Binary(t), Port: freePort(t)},
	}
	w.clock.Store(int64(-behind))
	t.Setenv("PATH", filepath.Dir(binaries(t))+string(os.PathListSeparator)+os.Getenv("PATH"))
	b, err := broker.StartBroker(broker.BrokerConfig{Dir: filepath.Join(dir, "kafka"), SyncWrites: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	w.rise(t)
	t.Cleanup(func() {
		if err := w.engine.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	w.serveS3(t)
	w.configure(t, dir, b.Addr())
	w.want(t, 0, "applied", "migrate")
	for _, s := range w.cfg.Accounts[0].Stores {
		w.want(t, 0, "has its marker", "store", "init", "acme/"+s.ID)
	}
	w.open(t)
	for i, text := range convergePolicies() {
		w.publishPolicy(t, int64(i), text)
	}
	for name := range processRoles() {
		w.start(t, name)
	}
	return w
}

// rise starts the engine on its data.
func (w *convergeWorld) rise(t *testing.T) {
	t.Helper()
	var err error
	if w.engine, err = embedded.Start(context.WithoutCancel(t.Context()), w.engineAt); err != nil {
		t.Fatal(err)
	}
}

// configure writes the two configurations: with all stores, and without the one that is taken out.
func (w *convergeWorld) configure(t *testing.T, dir, addr string) {
	t.Helper()
	cfg := config.Default()
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
	cfg.Kafka.Brokers = []string{addr}
	cfg.Kafka.Partitions, cfg.Kafka.Replication, cfg.Kafka.MinInSync = 3, 1, 1
	cfg.Kafka.SessionTimeout = 6 * time.Second
	cfg.ClickHouse.Addresses = []string{w.engine.Addr()}
	// Waits are short, but for the age of what the sink stores: what is decided meanwhile is decided without it.
	cfg.Delay.Lanes = []config.Lane{{Name: "200ms", Delay: 200 * time.Millisecond}, {Name: "1s", Delay: time.Second}}
	cfg.Duplication.Wait = []time.Duration{200 * time.Millisecond, time.Second, 2 * time.Second}
	cfg.Fixity.Settle, cfg.Fixity.MinInterval = 2*time.Second, time.Millisecond
	cfg.Fixity.Recheck = []time.Duration{500 * time.Millisecond, time.Second}
	cfg.Roles.Drain = 2 * time.Second
	w.file = filepath.Join(dir, "millrace.yaml")
	write := func(name string) {
		var text bytes.Buffer
		if err := config.Print(&text, &cfg, nil); err != nil {
			t.Fatal(err)
		}
		w.write(t, name, text.String())
	}
	write("millrace.yaml")
	cfg.Accounts[0].Stores = slices.DeleteFunc(slices.Clone(acc.Stores), func(s config.Store) bool { return s.ID == outStore })
	write("without.yaml")
	var err error
	if w.cfg, _, err = config.Load(config.Sources{File: w.file}); err != nil {
		t.Fatal(err)
	}
}

// serveS3 starts the service, whose clock is not that of this machine.
func (w *convergeWorld) serveS3(t *testing.T) {
	t.Helper()
	w.s3 = s3test.New(s3test.Options{
		Versions: true,
		Clock:    func() time.Time { return time.Now().Add(time.Duration(w.clock.Load())) },
		Before: func(rw http.ResponseWriter, r *http.Request) bool {
			if w.s3Away.Load() {
				rw.WriteHeader(http.StatusServiceUnavailable)
				return true
			}
			w.hooks.call(w.hooks.before, r)
			return false
		},
		After: func(_ http.ResponseWriter, r *http.Request) bool {
			w.hooks.call(w.hooks.after, r)
			return false
		},
	})
	t.Cleanup(w.s3.Close)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, w.s3.URL()+"/"+clockBucket, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
}

// hookKey is a request that a hook may wait for: a method and the key of an item.
func hookKey(method string, p converge.Place) string { return method + " " + p.Space + "/" + p.Item }

func (h *hooks) call(set map[string]func(), r *http.Request) {
	key := r.Method + " " + strings.TrimPrefix(r.URL.Path, "/"+clockBucket+"/")
	h.mu.Lock()
	f := set[key]
	delete(set, key)
	if c := h.asked[key]; c != nil {
		close(c)
		delete(h.asked, key)
	}
	h.mu.Unlock()
	if f != nil {
		f()
	}
}

// set has f called at the next request of a method for an item.
func (h *hooks) set(set map[string]func(), method string, p converge.Place, f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	set[hookKey(method, p)] = f
}

// next returns what is closed at the next request of a method for an item.
func (h *hooks) next(method string, p converge.Place) <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := make(chan struct{})
	h.asked[hookKey(method, p)] = c
	return c
}

// open opens what the clients use.
func (w *convergeWorld) open(t *testing.T) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	var err error
	if w.app, err = app.Open(t.Context(), w.cfg, app.Options{Log: log, Drain: time.Second}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.app.Close)
	if w.client, err = w.app.Emitting("acme", sourceStore, "client"); err != nil {
		t.Fatal(err)
	}
	k := kafka.Config{Brokers: w.cfg.Kafka.Brokers, Prefix: w.cfg.Kafka.TopicPrefix, ClientID: "converge", Log: log}
	for _, l := range w.cfg.Delay.Lanes {
		k.Lanes = append(k.Lanes, kafka.Lane{Name: l.Name, Delay: l.Delay})
	}
	if w.producer, err = kafka.NewProducer(k, "converge"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.producer.Close)
	if w.admin, err = kafka.NewAdmin(k); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.admin.Close)
}

func (w *convergeWorld) publishPolicy(t *testing.T, base int64, text string) {
	t.Helper()
	doc, err := policy.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	rec, err := policy.Record("acme", base, doc, "ann", time.Now().UTC())
	if err != nil {
		t.Fatal(err)
	}
	if err := w.producer.Publish(t.Context(), schemas.Message{Topic: schemas.Policies, Body: rec}); err != nil {
		t.Fatal(err)
	}
}

// start starts a process, or starts it again.
func (w *convergeWorld) start(t *testing.T, name string) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	file := w.file
	if w.without {
		file = filepath.Join(filepath.Dir(w.file), "without.yaml")
	}
	w.processes[name] = begin(t, name, exec.Command(binaries(t), "run", "--config", file, "--roles", processRoles()[name]))
}

func (w *convergeWorld) process(name string) *process {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.processes[name]
}

// store returns a store without its emitting decorator.
func (w *convergeWorld) store(id string) storage.Store {
	s, _ := w.app.Stores().Store("acme", id)
	return s
}

// hold has nobody else work with an item until release is called.
func (w *convergeWorld) hold(p converge.Place) (release func()) {
	m, _ := w.items.LoadOrStore(p.Original(), new(sync.Mutex))
	m.(*sync.Mutex).Lock()
	return m.(*sync.Mutex).Unlock
}

// actLimit bounds how long a client tries to do what it must, while its store is away.
const actLimit = 2 * time.Minute

// do has a client do something, and tells the model. A client whose store is away tries again.
func (w *convergeWorld) do(ctx context.Context, o converge.Op) error {
	ctx, cancel := context.WithTimeout(emit.WithUser(ctx, o.User), actLimit)
	defer cancel()
	a := converge.Act{Place: o.Place, Kind: o.Kind, User: o.User, Bare: bare(o.Place)}
	if o.Kind != converge.Delete {
		a.Content = converge.Content{MediaType: o.MediaType, User: o.Props}
	}
	if o.Kind == converge.Put {
		sum := sha256.Sum256([]byte(o.Body))
		a.Content.SHA256 = hex.EncodeToString(sum[:])
	}
	var held []string
	if o.Kind == converge.Delete && w.model.Rule(o.Space).Keep {
		held = w.holders(ctx, o.Place)
	}
	for tries := 0; ; tries++ {
		err := w.try(ctx, o, a.Bare)
		if errors.Is(err, storage.ErrNotFound) && o.Kind == converge.Delete && tries > 0 {
			err = nil // an earlier try did it
		}
		if err == nil {
			break
		}
		if errors.Is(err, storage.ErrNotFound) || retry.Sleep(ctx, 200*time.Millisecond) != nil {
			return fmt.Errorf("%s %v: %w", o.Kind, o.Place, err)
		}
	}
	w.model.Did(a)
	if o.Kind == converge.Put {
		w.mu.Lock()
		w.puts[o.Place] = o
		w.mu.Unlock()
	}
	for _, store := range held {
		w.model.Kept(converge.Copy{Store: store, Place: o.Place})
	}
	return nil
}

// try does it once.
func (w *convergeWorld) try(ctx context.Context, o converge.Op, bare bool) error {
	props := storage.Properties{MediaType: o.MediaType, User: o.Props}
	put := storage.PutOptions{Size: storage.UnknownSize, Properties: props}
	var err error
	switch {
	case bare: // a program that stores by itself, and publishes what it knows
		var obj storage.Object
		if obj, err = w.store(sourceStore).Put(ctx, o.Space, o.Item, strings.NewReader(o.Body), put); err != nil {
			return err
		}
		c := record.Content(schemas.Copy{Account: "acme", Store: sourceStore, Space: o.Space, Item: o.Item}, obj)
		c.Digests, c.Provenance = nil, pb.Provenance_PROVENANCE_UNSPECIFIED
		c.Origin, c.User, c.Agent = pb.Origin_ORIGIN_CLIENT, o.User, "program"
		return w.producer.Publish(ctx, schemas.Message{Topic: schemas.Changes, Body: record.Seal(c)})
	case o.Kind == converge.Put:
		_, err = w.client.Put(ctx, o.Space, o.Item, strings.NewReader(o.Body), put)
	case o.Kind == converge.Delete:
		_, err = w.client.Delete(ctx, o.Space, o.Item, storage.DeleteOptions{})
	default:
		_, err = w.client.SetProperties(ctx, o.Space, o.Item, props, storage.Condition{})
	}
	if errors.Is(err, emit.ErrNotPublished) {
		return w.client.Flush(ctx)
	}
	return err
}

// holders returns the destinations that hold what clients have put last.
func (w *convergeWorld) holders(ctx context.Context, p converge.Place) (all []string) {
	want, ok := w.model.Content(p)
	for _, pair := range w.model.Rule(p.Space).Pairs {
		if sha, err := w.read(ctx, converge.Copy{Store: pair.To, Place: p}); ok && err == nil && sha == want.SHA256 {
			all = append(all, pair.To)
		}
	}
	return all
}

// read returns the SHA256 of a copy's bytes.
func (w *convergeWorld) read(ctx context.Context, c converge.Copy) (string, error) {
	r, _, err := w.store(c.Store).Open(ctx, c.Space, c.Item, "")
	if err != nil {
		return "", err
	}
	defer r.Close()
	h := sha256.New()
	if _, err := io.Copy(h, r); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// Items of a world, by what they are for. The others are those of the clients.
const (
	bareItems  = "bare"
	backItems  = "back"
	lostItems  = "lost"
	againItems = "again"
	outItems   = "out"
)

// groups says how many items of each kind a space has: 200 in all.
func groups() map[string]map[string]int {
	return map[string]map[string]int{
		fanSpace:   {bareItems: 8, backItems: 16, lostItems: 8, againItems: 8, "": 40},
		chainSpace: {lostItems: 8, "": 52},
		keptSpace:  {outItems: 12, "": 48},
	}
}

func bare(p converge.Place) bool { return strings.HasPrefix(p.Item, bareItems) }

// places returns the items of a space that are for one thing, or of all spaces.
func places(space, group string) (all []converge.Place) {
	for _, s := range slices.Sorted(maps.Keys(groups())) {
		if space != "" && s != space {
			continue
		}
		name := group
		if name == "" {
			name = "item"
		}
		for i := range groups()[s][group] {
			all = append(all, converge.Place{Space: s, Item: fmt.Sprintf("%s/%d", name, i)})
		}
	}
	return all
}

// fill puts every item for the first time.
func (w *convergeWorld) fill(t *testing.T) {
	t.Helper()
	for space := range groups() {
		if err := w.client.CreateSpace(t.Context(), storage.Space{Name: space}); err != nil {
			t.Fatal(err)
		}
	}
	all := places("", "")
	for _, group := range []string{bareItems, backItems, lostItems, againItems, outItems} {
		all = append(all, places("", group)...)
	}
	var g errgroup.Group
	g.SetLimit(8)
	for _, o := range converge.First(w.seed, all) {
		g.Go(func() error { return w.do(t.Context(), o) })
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
}

// rest waits until nothing is under way: no group lags behind its topics, nothing waits in a delay lane, and two looks find
// the same.
func (w *convergeWorld) rest(t *testing.T, limit time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	begun := time.Now()
	last := int64(-1)
	for {
		lag, written, err := w.lag(ctx)
		if err == nil && len(lag) == 0 && written == last {
			t.Logf("at rest after %v", time.Since(begun).Round(100*time.Millisecond))
			return
		}
		last = written
		if retry.Sleep(ctx, 400*time.Millisecond) != nil {
			t.Fatalf("not at rest after %v: %v, %v", limit, lag, err)
		}
	}
}

// lag returns the lag of the roles that have any, what waits in delay lanes included, and how many records there are.
func (w *convergeWorld) lag(ctx context.Context) (lag map[schemas.Role]int64, written int64, err error) {
	if lag, err = w.admin.Lag(ctx, append(app.Roles(), schemas.RoleState)...); err != nil {
		return nil, 0, err
	}
	maps.DeleteFunc(lag, func(_ schemas.Role, n int64) bool { return n == 0 })
	for _, topic := range []schemas.Topic{schemas.Changes, schemas.DuplicationHigh, schemas.DuplicationLow, schemas.Deletions, schemas.DuplicationResults,
		schemas.FixityHigh, schemas.FixityLow, schemas.FixityResults, schemas.Incidents, schemas.Admin, schemas.Dead} {
		ends, err := w.admin.EndOffsets(ctx, topic)
		if err != nil {
			return nil, 0, err
		}
		for _, end := range ends {
			written += end
		}
	}
	return lag, written, nil
}

// heal ends what was broken, has what died handled once more and every copy checked, and waits until all is at rest.
func (w *convergeWorld) heal(t *testing.T, limit time.Duration) {
	t.Helper()
	w.rest(t, limit)
	for range 3 {
		code, out := w.millrace(t, "dead", "redrive", "--since", "24h", "--reason", "the faults are over")
		t.Logf("dead redrive: exit code %d: %s", code, strings.TrimSpace(out))
		if code != 0 || strings.Contains(out, "redriven 0 ") {
			break
		}
		w.rest(t, limit)
	}
	w.want(t, 0, "checks asked for", "sweep", "start", "fixity", "--all")
	w.rest(t, limit)
}
