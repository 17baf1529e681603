// Package mem is a storage driver that keeps everything in memory, for tests: a complete and correct store,
// with methods that damage its content as a failing medium or another program would.
//
// Times are in milliseconds and increase with every write of an item, even if the clock does not advance.
package mem

import (
	"context"
	"crypto/md5"
	"encoding/hex"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// Config configures a Store.
type Config struct {
	ID string // written into the marker
	// Now is the store's clock [time.Now].
	Now func() time.Time
	// Digests are the algorithms stored as evidence S [md5, sha256].
	Digests []string
	Weak    Weak
}

// Weak disables features that other stores lack, to test their absence.
type Weak struct {
	Versions         bool          // versions are a function of the bytes, as an ETag is
	Times            time.Duration // resolution of times; 0: milliseconds
	Properties       bool          // SetProperties returns ErrUnsupported
	Conditions       bool          // conditions are checked before a write, not atomically with it
	MaxPropertyBytes int           // 0: unlimited
}

// A Store is a storage.Store in memory.
type Store struct {
	cfg      Config
	ownClock bool // Config.Now was set
	pool     *digest.Pool

	mu sync.Mutex
	// mu guards the fields below. Items are replaced, never changed in place.
	spaces      map[string]*spaceItems
	lastVersion int64
	marker      string
	marked      bool
	kept        []Kept
	lastKept    int64 // its id
}

var (
	_ storage.Store  = (*Store)(nil)
	_ storage.Keeper = (*Store)(nil)
)

type spaceItems struct {
	info      storage.Space
	items     map[string]*item
	order     []string             // keys of items, sorted
	lastTimes map[string]time.Time // of the last write or delete, also of deleted items
}

type item struct {
	object storage.Object
	bytes  []byte
}

// Kept is an item that a replacement or a delete kept.
type Kept struct {
	Space string
	storage.Kept
	Bytes []byte
}

// New returns an empty Store without a marker.
func New(cfg Config) (*Store, error) {
	if cfg.ID == "" {
		return nil, errors.New("store has no id")
	}
	clocks := cfg.Now != nil
	if !clocks {
		cfg.Now = time.Now
	}
	if cfg.Weak.Times == 0 {
		cfg.Weak.Times = time.Millisecond
	}
	if cfg.Digests == nil {
		cfg.Digests = []string{digest.MD5, digest.SHA256}
	}
	pool, err := digest.NewPool(cfg.Digests...)
	if err != nil {
		return nil, err
	}
	return &Store{cfg: cfg, ownClock: clocks, pool: pool, spaces: map[string]*spaceItems{}}, nil
}

// Capabilities returns all features except those that Config.Weak disables.
func (s *Store) Capabilities() storage.Capabilities {
	w := s.cfg.Weak
	return storage.Capabilities{
		Kind: "mem", TimeResolution: w.Times,
		ConditionalPut: !w.Conditions, ConditionalDelete: !w.Conditions, UniqueVersions: !w.Versions, KeepsReplaced: true,
		Digests: slices.Clone(s.cfg.Digests), SetProperties: !w.Properties, MaxPropertyBytes: w.MaxPropertyBytes,
	}
}

// Spaces implements storage.Store. It returns the spaces that exist when the listing begins.
func (s *Store) Spaces(ctx context.Context) iter.Seq2[string, error] {
	return storage.Names(ctx, func() ([]string, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		return slices.Sorted(maps.Keys(s.spaces)), nil
	})
}

// space returns the named space; s.mu is held.
func (s *Store) space(name string) (*spaceItems, error) {
	if err := storage.CheckSpace(name); err != nil {
		return nil, retry.Permanent(err)
	}
	sp, ok := s.spaces[name]
	if !ok {
		return nil, fmt.Errorf("space %q: %w", name, storage.ErrNoSpace)
	}
	return sp, nil
}

func cloneSpace(sp storage.Space) storage.Space {
	sp.Properties, sp.ACL = maps.Clone(sp.Properties), maps.Clone(sp.ACL)
	return sp
}

// StatSpace implements storage.Store.
func (s *Store) StatSpace(ctx context.Context, name string) (storage.Space, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sp, err := s.space(name)
	if err != nil {
		return storage.Space{}, err
	}
	return cloneSpace(sp.info), nil
}

// CreateSpace implements storage.Store.
func (s *Store) CreateSpace(ctx context.Context, about storage.Space) (err error) {
	defer markNotApplied(&err)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch _, err := s.space(about.Name); {
	case err == nil:
		return fmt.Errorf("space %q: %w", about.Name, storage.ErrExists)
	case !errors.Is(err, storage.ErrNoSpace):
		return err
	}
	s.spaces[about.Name] = &spaceItems{info: cloneSpace(about), items: map[string]*item{},
		lastTimes: map[string]time.Time{}}
	return nil
}

// SetSpace implements storage.Store.
func (s *Store) SetSpace(ctx context.Context, about storage.Space) (err error) {
	defer markNotApplied(&err)
	s.mu.Lock()
	defer s.mu.Unlock()
	sp, err := s.space(about.Name)
	if err != nil {
		return err
	}
	sp.info = cloneSpace(about)
	return nil
}

// DeleteSpace implements storage.Store.
func (s *Store) DeleteSpace(ctx context.Context, name string) (err error) {
	defer markNotApplied(&err)
	s.mu.Lock()
	defer s.mu.Unlock()
	sp, err := s.space(name)
	if err != nil {
		return err
	}
	if len(sp.items) > 0 {
		return fmt.Errorf("space %q: %w", name, storage.ErrNotEmpty)
	}
	delete(s.spaces, name)
	return nil
}

// List implements storage.Store. Each item is returned as it is when the listing reaches it.
func (s *Store) List(ctx context.Context, space, after string) iter.Seq2[storage.Object, error] {
	return func(yield func(storage.Object, error) bool) {
		for last := after; ; {
			if ctx.Err() != nil {
				yield(storage.Object{}, storage.ContextErr(ctx))
				return
			}
			o, ok, err := s.next(space, last)
			if err != nil {
				yield(storage.Object{}, err)
				return
			}
			if !ok || !yield(o, nil) {
				return
			}
			last = o.Item
		}
	}
}

func (s *Store) next(space, after string) (storage.Object, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sp, err := s.space(space)
	if err != nil {
		return storage.Object{}, false, err
	}
	i, found := slices.BinarySearch(sp.order, after)
	if found {
		i++
	}
	if i == len(sp.order) {
		return storage.Object{}, false, nil
	}
	return clone(sp.items[sp.order[i]].object), true, nil
}

func clone(o storage.Object) storage.Object {
	o.Digests = maps.Clone(o.Digests)
	o.Properties.User = maps.Clone(o.Properties.User)
	return o
}

// find returns an item and its space; s.mu is held.
func (s *Store) find(space, id string) (*spaceItems, *item, error) {
	if err := storage.CheckItem(id); err != nil {
		return nil, nil, retry.Permanent(err)
	}
	sp, err := s.space(space)
	if err != nil {
		return nil, nil, err
	}
	it, ok := sp.items[id]
	if !ok {
		return sp, nil, fmt.Errorf("item %q in space %q: %w", id, space, storage.ErrNotFound)
	}
	return sp, it, nil
}

// Stat implements storage.Store.
func (s *Store) Stat(ctx context.Context, space, id string) (storage.Object, error) {
	if ctx.Err() != nil {
		return storage.Object{}, storage.ContextErr(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	sp, it, err := s.find(space, id)
	if err != nil {
		return storage.Object{}, storage.Absent(err, s.now(sp, id))
	}
	o := clone(it.object)
	if s.ownClock {
		o.ObservedAt = s.now(sp, id)
	}
	return o, nil
}

// Marker implements storage.Store.
func (s *Store) Marker(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !s.marked:
		return fmt.Errorf("store %q: %w", s.cfg.ID, storage.ErrNoMarker)
	case s.marker != s.cfg.ID:
		return fmt.Errorf("store %q is marked %q: %w", s.cfg.ID, s.marker, storage.ErrWrongMarker)
	}
	return nil
}

// WriteMarker implements storage.Store.
func (s *Store) WriteMarker(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.marked && s.marker != s.cfg.ID {
		return fmt.Errorf("store %q is marked %q: %w", s.cfg.ID, s.marker, storage.ErrExists)
	}
	s.marker, s.marked = s.cfg.ID, true
	return nil
}

// version returns the version of new content; s.mu is held.
func (s *Store) version(content []byte) string {
	if s.cfg.Weak.Versions {
		sum := md5.Sum(content)
		return hex.EncodeToString(sum[:])
	}
	s.lastVersion++
	return strconv.FormatInt(s.lastVersion, 10)
}
