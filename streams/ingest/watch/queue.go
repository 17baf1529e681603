package watch

import (
	"sync"
	"time"
)

// A pendingPath is a path with a hint.
type pendingPath struct {
	path     string
	last     time.Time // time of its last event
	first    time.Time // time of its first unpublished event
	gone     bool      // the last event was a removal
	found    bool      // a walk found it, and there was no event since
	failures int
	until    time.Time // earliest time of the next attempt after a failure
}

// A queue holds the paths that wait to be examined. It is safe for concurrent use.
type queue struct {
	quiet time.Duration
	limit int

	mu       sync.Mutex // guards the rest
	paths    map[string]pendingPath
	full     bool                 // a path was refused, and none was taken since
	missed   bool                 // a path was dropped since the last takeMissed
	inFlight map[string]time.Time // paths that were taken and are not done, with their first
}

func newQueue(quiet time.Duration, limit int) *queue {
	return &queue{quiet: quiet, limit: limit, paths: map[string]pendingPath{}, inFlight: map[string]time.Time{}}
}

// add adds a path or updates it. A file that was created and removed is examined like any other, since it may have
// replaced a file of the same name. fits is false if the queue is full and the path is dropped; first then reports
// whether it is the first path dropped since paths were taken.
func (q *queue) add(path string, now time.Time, gone bool) (fits, first bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	before, known := q.paths[path]
	if !known && len(q.paths) >= q.limit {
		first, q.full, q.missed = !q.full, true, true
		return false, first
	}
	p := pendingPath{path: path, last: now, first: now, gone: gone}
	if known {
		p.first = before.first
	}
	q.paths[path] = p
	return true, false
}

// takeMissed reports whether a path was dropped since the last call.
func (q *queue) takeMissed() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	was := q.missed
	q.missed = false
	return was
}

// oldest returns the time of the earliest event that is not published, or now if there is none.
func (q *queue) oldest(now time.Time) time.Time {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, p := range q.paths {
		if p.first.Before(now) {
			now = p.first
		}
	}
	for _, first := range q.inFlight {
		if first.Before(now) {
			now = first
		}
	}
	return now
}

// due removes and returns up to n paths that have been quiet for long enough, the longest waiting ones first.
func (q *queue) due(now time.Time, n int) []pendingPath {
	q.mu.Lock()
	defer q.mu.Unlock()
	var all []pendingPath
	for _, p := range q.paths {
		if now.Sub(p.last) >= q.quiet && !now.Before(p.until) {
			all = append(all, p)
		}
	}
	all = sorted(all)
	all = all[:min(n, len(all))]
	for _, p := range all {
		delete(q.paths, p.path)
		q.inFlight[p.path] = p.first
	}
	q.full = q.full && len(all) == 0
	return all
}

// done records that a path from due is published or was skipped.
func (q *queue) done(p pendingPath) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.inFlight, p.path)
}

// retry puts a path from due back into the queue after a failure, unless the queue has a newer event of it. It may
// exceed the limit.
func (q *queue) retry(p pendingPath, now time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.inFlight, p.path)
	q.putBack(p, now)
}

// offer is like retry for a path that was not in the queue. It returns false if the queue is full.
func (q *queue) offer(p pendingPath, now time.Time) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if _, known := q.paths[p.path]; !known && len(q.paths) >= q.limit {
		return false
	}
	q.putBack(p, now)
	return true
}

func (q *queue) putBack(p pendingPath, now time.Time) {
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
