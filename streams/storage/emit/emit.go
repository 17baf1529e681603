// Package emit is a decorator of a storage.Store: it publishes a Change for every mutation made through it.
//
// Delivery is at least once. The intent of a mutation is recorded in an outbox before the mutation is made,
// and the resulting Change after it; the record is deleted when the Change is acknowledged. A Change that
// is published again has the same id, so consumers can deduplicate it. Mutations continue while the publisher is
// unavailable: their Changes stay pending, and Run publishes them.
//
// A mutation is refused before it is made if its intent cannot be recorded, if its Change would not fit
// into a message, or if the store's marker is missing or wrong (see Config.Unmarked).
//
// The outcome of a mutation is unknown if its call fails without proof that nothing was applied
// (storage.NotApplied), or if the process dies. Then emit compares the store with the intent: it publishes
// the Change of a mutation that was applied and drops the intent of one that was not. If the store's state
// proves neither, emit publishes that state as a Change without a user and reports the intent (outbox.Reports).
//
// Changes of one item are published in the order of its mutations.
package emit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/outbox"
)

// ErrNotPublished is wrapped by the error of a mutation that was applied, and whose Change the publisher rejected, or
// could neither be recorded nor be published.
var ErrNotPublished = errors.New("mutation was done but is not published yet")

// Config configures a Store. Account, Store and Outbox are required.
type Config struct {
	Account string
	Store   string // the id of the inner store
	Agent   string // the program that reports the changes [emit]
	// User returns the user who makes a mutation; nil: the user set by WithUser.
	User func(ctx context.Context) string
	// Origin of the changes [client].
	Origin pb.Origin
	// Digests are the algorithms that are computed of every Put [md5, sha256].
	Digests []string
	// Unmarked: the store has no marker. Otherwise the marker is read before the first mutation, again before
	// an absence is accepted as a fact, and before and after the outcome of a mutation is looked up. If the
	// marker is missing or wrong, nothing is written and nothing that was read is published: the directory may
	// be an unmounted mount point, or another store.
	Unmarked bool
	// Outbox holds the mutations until their Changes are acknowledged.
	Outbox outbox.Outbox
	// Wait is how long a call waits for the acknowledgement of its Change [1 s].
	// While nothing is acknowledged at all, calls do not wait.
	Wait time.Duration
	// Publishers is how many items are published concurrently [256].
	Publishers int
	// Retry is the first backoff after a failure to publish or to read the store [500 ms]. It doubles up to 30
	// s.
	Retry time.Duration
	// Now returns the time of changes for which the store reports none [time.Now].
	Now func() time.Time
	// Metrics and Log may be nil.
	Metrics *Metrics
	Log     *slog.Logger
}

// A Store emits a Change for every mutation of the inner store.
type Store struct {
	inner    storage.Store
	cfg      Config
	out      schemas.Publisher
	log      *slog.Logger
	counters *counters
	// largestFields has the fields that a store fills in, each at its maximum size.
	largestFields *pb.Change
	markers       storage.Markers

	sequence atomic.Int64
	running  atomic.Bool
	wakeup   chan struct{} // wakes the dispatcher: a queue is ready or has an orphan

	mu             sync.Mutex            // guards the fields below
	lastTimes      map[string]int64      // by key: the last time in ms given to a change that the store does not date
	queues         map[string]*itemQueue // by key; empty queues are removed
	withOrphans    map[string]*itemQueue // the subset of queues that have orphans
	ready          queueHeap             // queues with a Change to publish, oldest first
	retrying       queueHeap             // queues after a failed publish, by retry time
	unrecordedDone []outbox.Ticket       // finished mutations that the outbox failed to delete
	completed      uint64                // Changes acknowledged or rejected so far
	degraded       bool                  // a publish failed or timed out, and none was acknowledged since
	failures       int                   // publish failures since the last acknowledgement
	resumedAt      time.Time             // when all retrying queues were last made due at once
	inFlight       int                   // publishes that the dispatcher has started
	probeAt        time.Time             // earliest start of the next publish while degraded
}

var (
	_ storage.Store  = (*Store)(nil)
	_ storage.Keeper = (*Store)(nil)
)

// New returns a Store around inner, which it does not close. The Store publishes one Change per call of out, to the
// topic changes; a permanent error of out rejects the Change, and any other error is retried. Changes that the outbox
// holds from an earlier process are published by Run or Flush. An outbox serves one Store: New refuses an outbox.File
// that serves another Store or holds changes of another account or store.
func New(inner storage.Store, cfg Config, out schemas.Publisher) (*Store, error) {
	if inner == nil || out == nil || cfg.Account == "" || cfg.Store == "" || cfg.Outbox == nil {
		return nil, errors.New("emit: store, publisher, account, store id and outbox are required")
	}
	cfg.fill()
	if _, err := digest.New(cfg.Digests...); err != nil {
		return nil, err
	}
	if err := cfg.Outbox.Claim(cfg.Account + "/" + cfg.Store); err != nil {
		return nil, err
	}
	s := &Store{
		inner: inner, cfg: cfg, out: out, wakeup: make(chan struct{}, 1),
		lastTimes: map[string]int64{}, queues: map[string]*itemQueue{}, withOrphans: map[string]*itemQueue{},
		ready:    queueHeap{less: func(a, b *itemQueue) bool { return a.first < b.first }},
		retrying: queueHeap{less: func(a, b *itemQueue) bool { return a.retryAt.Before(b.retryAt) }},
		log:      cfg.Log.With("account", cfg.Account, "store", cfg.Store),
	}
	s.sequence.Store(cfg.Now().UnixNano())
	s.largestFields = s.largestReported()
	s.load()
	s.counters = cfg.Metrics.add(s)
	return s, nil
}

// fill sets the defaults.
func (cfg *Config) fill() {
	if cfg.Agent == "" {
		cfg.Agent = "emit"
	}
	if cfg.User == nil {
		cfg.User = user
	}
	if cfg.Origin == pb.Origin_ORIGIN_UNSPECIFIED {
		cfg.Origin = pb.Origin_ORIGIN_CLIENT
	}
	if cfg.Digests == nil {
		cfg.Digests = []string{digest.MD5, digest.SHA256}
	}
	if cfg.Wait <= 0 {
		cfg.Wait = time.Second
	}
	if cfg.Publishers <= 0 {
		cfg.Publishers = 256
	}
	if cfg.Retry <= 0 {
		cfg.Retry = 500 * time.Millisecond
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
}

type userKey struct{}

// WithUser returns a context in which mutations are made on behalf of user.
func WithUser(ctx context.Context, user string) context.Context {
	return context.WithValue(ctx, userKey{}, user)
}

func user(ctx context.Context) string {
	u, _ := ctx.Value(userKey{}).(string)
	return u
}

// draft returns the Change as far as it is known before the mutation.
func (s *Store) draft(ctx context.Context, op pb.Op, space, item string) *pb.Change {
	return &pb.Change{
		Op: op, Account: s.cfg.Account, Store: s.cfg.Store, Space: space, Item: item,
		User: s.cfg.User(ctx), Agent: s.cfg.Agent, Origin: s.cfg.Origin,
		Sequence: strconv.FormatInt(s.sequence.Add(1), 10),
	}
}

func (s *Store) key(space, item string) string { return schemas.ItemKey(s.cfg.Account, space, item) }

// Capabilities implements storage.Store. It emits nothing.
func (s *Store) Capabilities() storage.Capabilities { return s.inner.Capabilities() }

// Spaces implements storage.Store. It emits nothing.
func (s *Store) Spaces(ctx context.Context) iter.Seq2[string, error] { return s.inner.Spaces(ctx) }

// StatSpace implements storage.Store. It emits nothing.
func (s *Store) StatSpace(ctx context.Context, space string) (storage.Space, error) {
	return s.inner.StatSpace(ctx, space)
}

// List implements storage.Store. It emits nothing.
func (s *Store) List(ctx context.Context, space, after string) iter.Seq2[storage.Object, error] {
	return s.inner.List(ctx, space, after)
}

// Stat implements storage.Store. It emits nothing.
func (s *Store) Stat(ctx context.Context, space, item string) (storage.Object, error) {
	return s.inner.Stat(ctx, space, item)
}

// Open implements storage.Store. It emits nothing.
func (s *Store) Open(ctx context.Context, space, item, version string) (io.ReadCloser, storage.Object, error) {
	return s.inner.Open(ctx, space, item, version)
}

// Marker implements storage.Store. It emits nothing.
func (s *Store) Marker(ctx context.Context) error { return s.inner.Marker(ctx) }

// WriteMarker implements storage.Store. It emits nothing: the marker is not an item.
func (s *Store) WriteMarker(ctx context.Context) error { return s.inner.WriteMarker(ctx) }

// withDigests returns algs and the algorithms that are computed of every Put.
func (s *Store) withDigests(algs []string) []string {
	return append(slices.Clone(s.cfg.Digests), algs...)
}

// notPublished returns the error of a mutation with the Change c that was not published because of err.
func notPublished(c *pb.Change, err error) error {
	return fmt.Errorf("%s of %q in %q: %w: %w", c.GetOp(), c.GetItem(), c.GetSpace(), ErrNotPublished, err)
}
