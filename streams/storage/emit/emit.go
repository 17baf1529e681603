// Package emit is a decorator of stores: every mutation that is made through it becomes
// a Change, which is told exactly as often as it takes until it is acknowledged.
//
// A store is written to once its marker has been read, unless Config.Unmarked says that it has none.
//
// A mutation whose Change could not be told of is refused before it happens. Its intent is
// noted in an Outbox before it is made, and what came of it after. With an outbox on disk
// (File) mutations go on while nothing can be published: their Changes wait, and Run tells of
// them. With one in memory a call returns an error that wraps ErrNotPublished where its Change
// was not acknowledged, and the Change stays until Flush, or the next mutation of the same item,
// has told of it.
//
// A mutation of which it is not known whether it was made, since the call failed without
// proof or the process died, is looked into: what was done is told, and what was not is not. Where the
// store does not show that, the state that it shows is told, on nobody's behalf, and the
// intent is reported.
//
// Changes of one item do not overtake each other; telling of one twice is telling of it
// once, for it has the same id.
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
)

// A Publisher sends messages and returns when they are acknowledged: *kafka.Producer is one. A Store publishes one
// Change at a time, to the topic changes. An error that is permanent says that it never will be acknowledged; any
// other, that it may be.
type Publisher interface {
	Publish(ctx context.Context, messages ...schemas.Message) error
}

// ErrNotPublished is what an error wraps about a mutation that was done and is not told of yet.
var ErrNotPublished = errors.New("mutation was done but is not published yet")

// Config is how a Store is made.
type Config struct {
	Account string
	Store   string // the id of the inner store
	Agent   string // who tells of the changes; empty: emit
	// User says on whose behalf a mutation is made; nil: whom WithUser named.
	User func(ctx context.Context) string
	// Origin of the changes; unspecified: client.
	Origin pb.Origin
	// Digests that are computed of all that is put; nil: md5 and sha256.
	Digests []string
	// Unmarked says that the store has no marker. Else its marker is read before the first mutation, again before an
	// absence is believed, and before and after a mutation is looked into. A store that does not show the right one is
	// not written to, and nothing that is seen there is published: it may be an empty mount point, or another store.
	Unmarked bool
	// Outbox holds what is not told of yet; nil: a Memory of 100,000 mutations.
	Outbox Outbox
	// Wait is how long a call waits for the acknowledgement of its Change where the outbox
	// holds it safely [1 s]; while nothing is acknowledged at all it does not wait.
	Wait time.Duration
	// Publishers is how many items are told of at once [256].
	Publishers int
	// Retry is how long to wait after a failure, of publishing or of looking at the store, at
	// first [500 ms]; at most 30 s.
	Retry time.Duration
	// Now dates changes that no store dates; nil: the machine's clock.
	Now func() time.Time
	// Metrics and Log may be nil.
	Metrics *Metrics
	Log     *slog.Logger
}

// A Store emits a Change for every mutation of the inner store.
type Store struct {
	inner    storage.Store
	cfg      Config
	out      Publisher
	log      *slog.Logger
	counters *counters
	// longest is what stores may say of an item, as long as it gets.
	largestFields *pb.Change
	markers       storage.Markers

	sequence atomic.Int64
	running  atomic.Bool
	wakeup   chan struct{} // rung when a lane is ready, or has an orphan

	mu             sync.Mutex            // guards what follows
	lastTimes      map[string]int64      // newest time in ms of changes that no store dates, by key
	queues         map[string]*itemQueue // those that are not empty
	withOrphans    map[string]*itemQueue // those of lanes that have orphans
	ready          queueHeap             // lanes that have something to tell, oldest first
	retrying       queueHeap             // lanes that failed, by when they are tried again
	unrecordedDone []Ticket              // told, but the outbox could not note it
	completed      uint64                // how often something was acknowledged
	degraded       bool                  // nothing was since something failed, or took too long
	failures       int                   // of publishing, since something was acknowledged
	resumedAt      time.Time             // when lanes that failed were last tried at once
	inFlight       int                   // publishes of the dispatcher that are under way
	probeAt        time.Time             // when the next may begin while away
}

var _ storage.Store = (*Store)(nil)

// New returns a Store around inner, which it does not close. What its outbox holds of another
// life is told of by Run or Flush. An outbox serves one Store; a File that serves another, or holds changes
// of another, is refused.
func New(inner storage.Store, cfg Config, out Publisher) (*Store, error) {
	if inner == nil || out == nil || cfg.Account == "" || cfg.Store == "" {
		return nil, errors.New("emit wants a store, a publisher, an account and the store's id")
	}
	cfg.fill()
	if _, err := digest.New(cfg.Digests...); err != nil {
		return nil, err
	}
	if o, ok := cfg.Outbox.(interface{ claim(name string) error }); ok {
		if err := o.claim(cfg.Account + "/" + cfg.Store); err != nil {
			return nil, err
		}
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

// fill sets what was left out.
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
	if cfg.Outbox == nil {
		cfg.Outbox = NewMemory(100_000)
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

// WithUser returns a context whose mutations are made on behalf of user.
func WithUser(ctx context.Context, user string) context.Context {
	return context.WithValue(ctx, userKey{}, user)
}

func user(ctx context.Context) string {
	u, _ := ctx.Value(userKey{}).(string)
	return u
}

// draft returns what can be said of a mutation before it is made.
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

// WriteMarker implements storage.Store. It emits nothing: a marker is no item.
func (s *Store) WriteMarker(ctx context.Context) error { return s.inner.WriteMarker(ctx) }

// with returns algs with those that are computed of all that is put.
func (s *Store) withDigests(algs []string) []string {
	return append(slices.Clone(s.cfg.Digests), algs...)
}

// A NotPublishedError tells of a mutation that was done and is not published yet. It
// wraps ErrNotPublished, and why.
type NotPublishedError struct {
	Change *pb.Change
	Err    error
}

func (e *NotPublishedError) Error() string {
	return fmt.Sprintf("%s of %q in %q: %v: %v", e.Change.GetOp(), e.Change.GetItem(), e.Change.GetSpace(), ErrNotPublished, e.Err)
}

// Unwrap returns ErrNotPublished and the reason.
func (e *NotPublishedError) Unwrap() []error { return []error{ErrNotPublished, e.Err} }
