// Package watch reports what others do in a directory tree. What the kernel says is a hint; what is published is what the store
// shows when nothing has happened to a path for a while.
//
// The tree is walked when a watch begins, and again after the kernel has dropped events, or more paths waited than
// there is room for: every file found is a hint as well, and its Change has the id of any other that reports the same
// content. The first walk looks at all files; one that follows looks at those that were written since the last moment up
// to which everything had been published. A walk finds no deletes: a file that went while nothing was watched, in dropped
// events, or with its directory as a whole, is not reported, and nothing finds it later. A root that is gone, or another
// store's, reports nothing; it is waited for, and walked when it is back. One that cannot be looked at is watched on. A file
// that came and went within the quiet time is reported as deleted, for it may have replaced one that was known; of an item
// that is not on record that changes nothing.
package watch

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/ingest/hint"
	"github.com/millrace/millrace/streams/retry"
)

// A Publisher publishes messages, and returns when all of them are acknowledged.
type Publisher interface {
	Publish(ctx context.Context, msgs ...schemas.Message) error
}

// Config says what is watched. Zero values take the defaults in brackets.
type Config struct {
	Account, Store string
	Root           string // of the tree; spaces are the directories in it
	// ItemAt says which item a slash-separated path below the root is; false: none.
	ItemAt func(path string) (space, item string, ok bool)
	// quiet is how long nothing must happen to a path before it is looked at [1 s]: a file that is being written
	// is looked at when that has ended.
	quiet time.Duration
	// Limit bounds the paths that wait to be looked at [100,000].
	Limit int
	// again is the time between two looks whether the root is there, while it is watched and while it is not [30 s]. A
	// walk that dropped events make necessary waits for the next of them.
	again time.Duration
	// margin is how much older than the last published moment a file must be for the next walk to leave it out [1 min]: the
	// times of files and the machine's are two clocks.
	margin time.Duration
}

// A Watch watches one tree.
type Watch struct {
	cfg   Config
	look  *hint.Looker
	store hint.Stores
	out   Publisher
	count func(hint.Row)
	log   *slog.Logger
	queue *queue
}

// New returns a Watch. count, where it is set, is told what each hint came to.
func New(cfg Config, stores hint.Stores, out Publisher, count func(hint.Row), log *slog.Logger) (*Watch, error) {
	if cfg.Root == "" || cfg.ItemAt == nil || stores == nil || out == nil || log == nil {
		return nil, errors.New("watch: root, names, stores, publisher or log are missing")
	}
	cfg.quiet = cmp.Or(cfg.quiet, time.Second)
	cfg.Limit = cmp.Or(cfg.Limit, 100_000)
	cfg.again = cmp.Or(cfg.again, 30*time.Second)
	cfg.margin = cmp.Or(cfg.margin, time.Minute)
	if count == nil {
		count = func(hint.Row) {}
	}
	return &Watch{cfg: cfg, look: hint.NewLooker(stores), store: stores, out: out, count: count,
		log: log.With("part", "watch", "account", cfg.Account, "store", cfg.Store), queue: newQueue(cfg.quiet, cfg.Limit)}, nil
}

// Run watches until ctx is done, and then returns nil. A root that is not there, or goes, is waited for.
func (w *Watch) Run(ctx context.Context) error {
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		var from seen
		for gctx.Err() == nil {
			upTo, err := w.session(gctx, from)
			if from = upTo; errors.Is(err, errMissed) {
				continue
			}
			if errors.Is(err, errGone) {
				from = seen{}
			}
			if err != nil && gctx.Err() == nil {
				w.log.Warn("not watched: deletes are not picked up meanwhile; the tree is walked when it is back",
					"root", w.cfg.Root, "err", err, "again", w.cfg.again)
			}
			_ = retry.Sleep(gctx, w.cfg.again) // only ctx ends it early
		}
		return nil
	})
	g.Go(func() error { return w.tell(gctx) })
	return g.Wait()
}

// noted notes a hint about a path below the root.
func (w *Watch) noted(rel string, gone bool) {
	if _, _, ok := w.cfg.ItemAt(filepath.ToSlash(rel)); !ok {
		return
	}
	if fits, first := w.queue.note(filepath.ToSlash(rel), time.Now(), gone); !fits && first {
		w.log.Warn("too many paths wait to be looked at: the tree is walked again, and deletes among the others are not picked up",
			"limit", w.cfg.Limit)
	}
}

// lookers is how many paths are looked at side by side; turn bounds how many are taken at a time.
const (
	lookers = 8
	turn    = 1000
)

// tell looks at what is due, and publishes what that comes to, until ctx is done.
func (w *Watch) tell(ctx context.Context) error {
	tick := time.NewTicker(max(w.cfg.quiet/4, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		due := w.queue.due(time.Now(), turn)
		var g errgroup.Group
		g.SetLimit(lookers)
		for _, p := range due {
			g.Go(func() error {
				if err := w.one(ctx, p); err != nil {
					w.failedOne(ctx, p, err)
				} else {
					w.queue.done(p)
				}
				return nil
			})
		}
		_ = g.Wait() // each path keeps its own error
	}
}

func (w *Watch) failedOne(ctx context.Context, p pending, err error) {
	switch {
	case ctx.Err() != nil:
	case retry.IsPermanent(err):
		w.log.Error("a path cannot be reported: it is not picked up", "path", p.path, "err", err)
		w.queue.done(p)
	default:
		if p.failures == 0 {
			w.log.Warn("a path cannot be reported now: it is looked at again", "path", p.path, "err", err)
		}
		w.queue.again(p, time.Now())
	}
}

// one looks at a path and publishes what that comes to.
func (w *Watch) one(ctx context.Context, p pending) error {
	d, _, err := w.lookAt(ctx, p)
	if err != nil {
		return err
	}
	if d.Change != nil {
		if err := w.out.Publish(ctx, schemas.Message{Topic: schemas.Changes, Body: d.Change}); err != nil {
			return err
		}
	}
	w.count(d.Row)
	return nil
}

// lookAt looks at a path, and decides what that comes to. A path that is no item's comes to nothing.
func (w *Watch) lookAt(ctx context.Context, p pending) (hint.Decision, hint.Sight, error) {
	space, item, ok := w.cfg.ItemAt(p.path)
	if !ok {
		return hint.Decision{}, hint.Sight{}, nil
	}
	c := schemas.Copy{Account: w.cfg.Account, Store: w.cfg.Store, Space: space, Item: item}
	s, err := w.look.Look(ctx, c)
	if err != nil {
		return hint.Decision{}, hint.Sight{}, err
	}
	s.Received = p.last
	h := hint.Hint{Kind: hint.Created, Vendor: "watch", Event: "written"}
	switch {
	case p.gone:
		h.Kind, h.Event = hint.Removed, "removed"
	case p.found:
		h.Event = "found"
	}
	d, err := hint.Decide(c, h, s)
	return d, s, err
}

// backoff is how long a path waits after it failed.
func backoff(failures int) time.Duration {
	return retry.Policy{Wait: time.Second, MaxWait: time.Minute}.Backoff(failures)
}

func sorted(all []pending) []pending {
	slices.SortFunc(all, func(a, b pending) int { return cmp.Or(a.last.Compare(b.last), strings.Compare(a.path, b.path)) })
	return all
}
