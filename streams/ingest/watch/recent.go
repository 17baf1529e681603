package watch

import (
	"sync"
	"time"
)

// A published is what the newest Change of a path says.
type published struct {
	time    time.Time
	version string // "" of a delete
}

// recent holds the newest Changes of paths for at least keep: content that a watch sees arrive is newer than what it
// has published before, whatever its date. It is safe for concurrent use.
type recent struct {
	keep time.Duration

	mu        sync.Mutex // guards the rest
	now, last map[string]published
	began     time.Time // of now; last are those before
}

// of returns the newest Change of a path; zero if there was none of late.
func (r *recent) of(path string) published {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p, is := r.now[path]; is {
		return p
	}
	return r.last[path]
}

// add records a Change of a path.
func (r *recent) add(path string, p published, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.now == nil || now.Sub(r.began) > r.keep {
		r.now, r.last, r.began = map[string]published{}, r.now, now
	}
	r.now[path] = p
}
