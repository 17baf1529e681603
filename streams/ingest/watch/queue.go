package watch

import (
	"sync"
	"time"
)

// A pendingPath is a path with a hint.
type pendingPath struct {
	path     string
	last     time.Time // time of its last event
	gone     bool      // the last event was a removal
	found    bool      // it is in a directory that is new, and there was no event since
	failures int
	until    time.Time // earliest time of the next attempt after a failure
}

// A queue holds the paths that wait to be examined. It is safe for concurrent use.
type queue struct {
	quiet time.Duration
	limit int

	mu     sync.Mutex // guards the rest
	paths  map[string]pendingPath
	full   bool // a path was refused, and none was taken since
	missed bool // a path was dropped since the last takeMissed
}

func newQueue(quiet time.Duration, limit int) *queue {
	return &queue{quiet: quiet, limit: limit, paths: map[string]pendingPath{}}
}

// add adds a path or updates it. A file that was created and removed is examined like any other, since it may have
// replaced a file of the same name. fits is false if the queue is full and the path is dropped; first then reports
// whether it is the first path dropped since paths were taken.
func (q *queue) add(path string, now time.Time, gone bool) (fits, first bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if _, known := q.paths[path]; !known && len(q.paths) >= q.limit {
		first, q.full, q.missed = !q.full, true, true
		return false, first
	}
	q.paths[path] = pendingPath{path: path, last: now, gone: gone}
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
	}
	q.full = q.full && len(all) == 0
	return all
}

// retry puts a path from due back into the queue after a failure, unless the queue has a newer event of it. It may
// exceed the limit.
func (q *queue) retry(p pendingPath, now time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if _, is := q.paths[p.path]; is {
		return
	}
	p.failures++
	p.until = now.Add(backoff(p.failures))
	q.paths[p.path] = p
}

// offer adds a path that is in a new directory, unless the queue has an event of it. It returns false if the queue is
// full.
func (q *queue) offer(path string, now time.Time) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	_, known := q.paths[path]
	if !known && len(q.paths) >= q.limit {
		return false
	}
	if !known {
		q.paths[path] = pendingPath{path: path, last: now, found: true}
	}
	return true
}
