package watch

import (
	"sync"
	"time"
)

// A pending is a path that something happened to.
type pending struct {
	path     string
	last     time.Time // when something last happened to it
	gone     bool      // by what happened last
	failures int
	until    time.Time // not looked at before, since that failed
}

// A queue holds the paths that wait to be looked at. It is safe for concurrent use.
type queue struct {
	quiet time.Duration
	limit int

	mu    sync.Mutex // guards the rest
	paths map[string]pending
	full  bool // a path was refused, and none was taken since
}

func newQueue(quiet time.Duration, limit int) *queue {
	return &queue{quiet: quiet, limit: limit, paths: map[string]pending{}}
}

// note notes that something happened to a path. What came and went again is looked at like all else: that it came
// does not say that nothing was there before, since a file that is moved in replaces one of its name. Where there is
// no room, first says that it is the first time since there was.
func (q *queue) note(path string, now time.Time, gone bool) (fits, first bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if _, known := q.paths[path]; !known && len(q.paths) >= q.limit {
		first, q.full = !q.full, true
		return false, first
	}
	q.paths[path] = pending{path: path, last: now, gone: gone}
	return true, false
}

// due takes up to n paths to which nothing has happened for a while, those that waited longest first.
func (q *queue) due(now time.Time, n int) []pending {
	q.mu.Lock()
	defer q.mu.Unlock()
	var all []pending
	for _, p := range q.paths {
		if now.Sub(p.last) >= q.quiet && !now.Before(p.until) {
			all = append(all, p)
		}
	}
	all = sorted(all)
	all = all[:min(n, len(all))]
	for _, p := range all {
		delete(q.paths, p.path)
	}
	q.full = q.full && len(all) == 0
	return all
}

// again puts a path back that could not be told of, unless something has happened to it since. There is always room
// for what was here.
func (q *queue) again(p pending, now time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if _, newer := q.paths[p.path]; newer {
		return
	}
	p.failures++
	p.until = now.Add(backoff(p.failures))
	q.paths[p.path] = p
}
