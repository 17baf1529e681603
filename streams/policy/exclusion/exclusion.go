// Package exclusion fetches and keeps the exclusion lists that policies name.
//
// A list is identified by its SHA-256 and kept in memory; it never changes. A list that cannot be read, or has another
// SHA-256, is an error each time, so that its commands wait: what is not known to be copied is not copied.
package exclusion

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"sync"
	"time"

	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/retry"
)

// Config configures Lists. The zero value of a field means its default.
type Config struct {
	// Client fetches lists by https; the default follows no redirects to http.
	Client *http.Client
	// Timeout bounds the reading of one list [10 m].
	Timeout time.Duration
	// Patience is how long a caller waits for a list that is being read [2 s].
	Patience time.Duration
	// Retry is the time from a failure to the next attempt [30 s].
	Retry time.Duration
	// Memory bounds the lists that are kept, in bytes [256 MiB]: those that were not used for longest are dropped, but
	// not the last one. A list of a million lines takes 16 MB.
	Memory int64
}

// Lists are the exclusion lists of a process. They are safe for concurrent use.
type Lists struct {
	cfg   Config
	ctx   context.Context // of the reading of lists
	close context.CancelFunc

	mu   sync.Mutex // guards the fields below, and those of the entries
	all  map[policy.ExcludeList]*entry
	used int64 // number of uses so far
}

// An entry is a list that was read, is being read, or could not be read. list and err do not change after done was
// closed.
type entry struct {
	done   chan struct{}
	list   *policy.List
	err    error
	failed time.Time
	before error // of the attempt before
	used   int64
}

func (e *entry) isDone() bool {
	select {
	case <-e.done:
		return true
	default:
		return false
	}
}

// New returns Lists. Close ends their work, not ctx.
func New(ctx context.Context, c Config) *Lists {
	if c.Client == nil {
		transport := http.DefaultTransport.(*http.Transport).Clone()
		transport.DisableCompression = true // the SHA-256 is that of the file
		transport.ResponseHeaderTimeout = 30 * time.Second
		c.Client = &http.Client{Transport: transport}
	}
	client := *c.Client
	client.CheckRedirect = func(r *http.Request, via []*http.Request) error {
		if r.URL.Scheme != "https" || len(via) > 5 {
			return errors.New("it leads elsewhere, not by https or too often")
		}
		return nil
	}
	c.Client = &client
	c.Timeout, c.Patience = cmp.Or(c.Timeout, 10*time.Minute), cmp.Or(c.Patience, 2*time.Second)
	c.Retry, c.Memory = cmp.Or(c.Retry, 30*time.Second), cmp.Or(c.Memory, 256<<20)
	l := &Lists{cfg: c, all: map[policy.ExcludeList]*entry{}}
	l.ctx, l.close = context.WithCancel(context.WithoutCancel(ctx))
	return l
}

// Close ends the reading of lists.
func (l *Lists) Close() { l.close() }

// Lists returns the lists, in the order of refs. An error is one of class unavailable: one of the lists cannot be read,
// or is still being read.
func (l *Lists) Lists(ctx context.Context, refs []policy.ExcludeList) ([]*policy.List, error) {
	lists := make([]*policy.List, len(refs))
	for i, ref := range refs {
		list, err := l.list(ctx, ref)
		if err != nil {
			return nil, retry.UnavailableFor("exclusion list", fmt.Errorf("read exclusion list %s: %w", ref.Name(), err))
		}
		lists[i] = list
	}
	return lists, nil
}

// Failure returns why the list could not be read the last time; nil if it was, or nobody has needed it.
func (l *Lists) Failure(ref policy.ExcludeList) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.all[ref]
	if e == nil {
		return nil
	}
	err := e.before
	if e.isDone() {
		err = e.err
	}
	if err == nil {
		return nil
	}
	return fmt.Errorf("read exclusion list %s: %w", ref.Name(), err)
}

func (l *Lists) list(ctx context.Context, ref policy.ExcludeList) (*policy.List, error) {
	e := l.entry(ref)
	if e.isDone() {
		return e.list, e.err
	}
	patience := time.NewTimer(l.cfg.Patience)
	defer patience.Stop()
	select {
	case <-e.done:
		return e.list, e.err
	case <-patience.C:
		return nil, errors.New("it is being read")
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// entry returns the entry of a list, and begins to read the list if needed.
func (l *Lists) entry(ref policy.ExcludeList) *entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.used++
	e := l.all[ref]
	if e == nil || e.isDone() && e.err != nil && time.Since(e.failed) >= l.cfg.Retry {
		next := l.same(ref)
		if next == nil {
			next = &entry{done: make(chan struct{})}
			if e != nil {
				next.before = e.err
			}
			go l.read(ref, next)
		}
		e = next
		l.all[ref] = e
	}
	e.used = l.used
	return e
}

// same returns the entry of a list that was read from another URL; nil if there is none.
func (l *Lists) same(ref policy.ExcludeList) *entry {
	for other, e := range l.all {
		if other.SHA256 == ref.SHA256 && other.Of == ref.Of && e.isDone() && e.err == nil {
			return e
		}
	}
	return nil
}

func (l *Lists) read(ref policy.ExcludeList, e *entry) {
	ctx, cancel := context.WithTimeout(l.ctx, l.cfg.Timeout)
	defer cancel()
	list, err := l.fetch(ctx, ref)
	l.mu.Lock()
	defer l.mu.Unlock()
	if e.list, e.err = list, err; err != nil {
		e.failed = time.Now()
	}
	close(e.done)
	l.shrink()
}

// shrink drops lists until the others take at most Config.Memory.
func (l *Lists) shrink() {
	for {
		total, kept := int64(0), map[*entry]bool{}
		var oldest *entry
		for _, e := range l.all {
			if e.list == nil || kept[e] {
				continue
			}
			kept[e] = true
			if total += e.list.Bytes(); oldest == nil || e.used < oldest.used {
				oldest = e
			}
		}
		if total <= l.cfg.Memory || len(kept) < 2 {
			return
		}
		maps.DeleteFunc(l.all, func(_ policy.ExcludeList, e *entry) bool { return e == oldest })
	}
}

func (l *Lists) fetch(ctx context.Context, ref policy.ExcludeList) (*policy.List, error) {
	u, err := url.Parse(ref.URL)
	if err != nil {
		return nil, errors.New("malformed URL")
	}
	var body io.ReadCloser
	switch u.Scheme {
	case "https":
		body, err = l.get(ctx, u)
	case "file":
		body, err = open(u.Path)
	default:
		err = errors.New("its URL begins neither with https:// nor with file:///")
	}
	if err != nil {
		return nil, err
	}
	defer body.Close() // only read from
	return policy.ReadList(body, ref)
}

func (l *Lists) get(ctx context.Context, u *url.URL) (io.ReadCloser, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, errors.New("malformed URL")
	}
	r.Header.Set("User-Agent", "millrace")
	resp, err := l.cfg.Client.Do(r)
	if err != nil {
		var about *url.Error
		if errors.As(err, &about) {
			err = about.Err // without the URL, whose query may have a key
		}
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		resp.Body.Close() // nothing was written
		return nil, fmt.Errorf("the server answers %s", resp.Status)
	}
	return resp.Body, nil
}

// open opens a regular file. Opening others, such as a pipe, could block.
func open(path string) (io.ReadCloser, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("it is not a regular file")
	}
	return os.Open(path)
}
