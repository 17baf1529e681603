// Package emit is a decorator of stores: every mutation that is made through it becomes
// a Change, which is published and acknowledged before the call returns.
//
// A mutation whose Change could not be told of is refused before it happens. One that
// happened and could not be told of yet returns an error that wraps ErrNotPublished; its
// Change stays in the outbox until Flush, or the next mutation of the same item, has
// told of it. A call that failed without proof that nothing was done is looked into: what
// was done is told. Changes of one item are published in the order of their times; telling
// of one twice is telling of it once, for it has the same id.
package emit

import (
	"context"
	"errors"
	"io"
	"iter"
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

// A Publisher sends a Change to the topic changes and returns when it is acknowledged.
type Publisher interface {
	Publish(ctx context.Context, c *pb.Change) error
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
	// Outbox holds what is not told of yet; nil: a Memory of 100,000 mutations.
	Outbox Outbox
	// Undecided, where it is set, is told of mutations of which nobody can say any more
	// whether they were done: the state that is seen is published instead.
	Undecided func(in Intent)
	// Now dates changes that no store dates; nil: the machine's clock.
	Now func() time.Time
}

// A Store emits a Change for every mutation of the inner store.
type Store struct {
	inner storage.Store
	cfg   Config
	out   Publisher

	sample   digest.Set // as large as that of any change
	sequence atomic.Int64
	lines    [lineCount]line // items are spread over them

	mu    sync.Mutex       // guards what follows
	live  map[string]bool  // sequences of mutations whose callers wait
	times map[string]int64 // newest time in ms of changes that no store dates, by key
}

const lineCount = 64

// A line is where changes wait that were not told of.
type line struct {
	held    chan struct{}        // full while one publishes; guards waiting
	waiting map[string][]Pending // by the item's key, in the order of their times
}

var _ storage.Store = (*Store)(nil)

// New returns a Store around inner, which it does not close.
func New(inner storage.Store, cfg Config, out Publisher) (*Store, error) {
	if inner == nil || out == nil || cfg.Account == "" || cfg.Store == "" {
		return nil, errors.New("emit wants a store, a publisher, an account and the store's id")
	}
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
	sample, err := digest.New(append([]string{digest.MD5, digest.SHA1, digest.SHA256}, cfg.Digests...)...)
	if err != nil {
		return nil, err
	}
	if cfg.Outbox == nil {
		cfg.Outbox = NewMemory(100_000)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	s := &Store{inner: inner, cfg: cfg, out: out, sample: sample.Sum(), live: map[string]bool{}, times: map[string]int64{}}
	s.sequence.Store(cfg.Now().UnixNano())
	for i := range s.lines {
		s.lines[i] = line{make(chan struct{}, 1), map[string][]Pending{}}
	}
	return s, nil
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

// copyOf names the copy that a change is about.
func (s *Store) copyOf(c *pb.Change) schemas.Copy {
	return schemas.Copy{Account: s.cfg.Account, Store: s.cfg.Store, Space: c.GetSpace(), Item: c.GetItem()}
}

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
func (s *Store) with(algs []string) []string {
	return append(slices.Clone(s.cfg.Digests), algs...)
}
