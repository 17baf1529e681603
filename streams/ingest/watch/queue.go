package watch

import (
	"sync"
	"time"
)

// A pending is a path that something happened to.
type pending struct {
	path     string
	last     time.Time // when something last happened to it
	first    time.Time // when something happened to it that is not published
	gone     bool      // by what happened last
	found    bool      // by a walk, and nothing happened since
	failures int
	until    time.Time // not looked at before, since that failed
}

// A queue holds the paths that wait to be looked at. It is safe for concurrent use.
type queue struct {
	quiet time.Duration
	limit int

	mu    sync.Mutex // guards the rest
	paths map[string]pending
	full  bool                 // a path was refused, and none was taken since
	lost  bool                 // a path was refused, and missed did not say so yet
	work  map[string]time.Time // paths that were taken and are not done, with their first
}

func newQueue(quiet time.Duration, limit int) *queue {
	return &queue{quiet: quiet, limit: limit, paths: map[string]pending{}, work: map[string]time.Time{}}
}

// note notes that something happened to a path. What came and went again is looked at like all else: that it came
// does not say that nothing was there before, since a file that is moved in replaces one of its name. Where there is
// no room, first says that it is the first time since there was.
func (q *queue) note(path string, now time.Time, gone bool) (fits, first bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	before, known := q.paths[path]
	if !known && len(q.paths) >= q.limit {
		first, q.full, q.lost = !q.full, true, true
		return false, first
	}
	p := pending{path: path, last: now, first: now, gone: gone}
	if known {
		p.first = before.first
	}
	q.paths[path] = p
	return true, false
}

// missed says whether a path was refused since it was asked last.
func (q *queue) missed() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	was := q.lost
	q.lost = false
	return was
}

// since is the earliest moment of which a path is not done; now without any.
func (q *queue) since(now time.Time) time.Time {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, p := range q.paths {
		if p.first.Before(now) {
			now = p.first
		}
	}
	for _, first := range q.work {
		if first.Before(now) {
			now = first
		}
	}
	return now
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
		q.work[p.path] = p.first
	}
	q.full = q.full && len(all) == 0
	return all
}

// done says that a path that was taken is published, or never can be.
func (q *queue) done(p pending) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.work, p.path)
}

// again puts a path back that could not be reported, unless something has happened to it since. There is always room
// for what was here.
func (q *queue) again(p pending, now time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.work, p.path)
	q.putBack(p, now)
}

// offer is again for a path that was not here; false: there is no room.
func (q *queue) offer(p pending, now time.Time) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if _, known := q.paths[p.path]; !known && len(q.paths) >= q.limit {
		return false
	}
	q.putBack(p, now)
	return true
}

func (q *queue) putBack(p pending, now time.Time) {
	if newer, is := q.paths[p.path]; is {
		if p.first.Before(newer.first) {
			newer.first = p.first
			q.paths[p.path] = newer
		}
		return
	}
	p.failures++
	p.until = now.Add(backoff(p.failures))
	q.paths[p.path] = p
}
