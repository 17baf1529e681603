package exclusion

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/retry"
)

func refOf(url, text string) policy.ExcludeList {
	sum := sha256.Sum256([]byte(text))
	return policy.ExcludeList{URL: url, SHA256: hex.EncodeToString(sum[:]), Of: policy.OfIDs}
}

// A site serves lists by path, and counts the requests.
type site struct {
	*httptest.Server
	mu       sync.Mutex
	files    map[string]string
	requests atomic.Int64
	wait     chan struct{} // requests wait until it is closed; nil: they do not
}

func serve(t *testing.T, files map[string]string) *site {
	t.Helper()
	s := &site{files: files}
	s.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.requests.Add(1)
		if s.wait != nil {
			<-s.wait
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		text, ok := s.files[r.URL.Path]
		switch {
		case !ok:
			http.NotFound(w, r)
		case strings.HasPrefix(text, "http"):
			http.Redirect(w, r, text, http.StatusFound)
		default:
			_, _ = w.Write([]byte(text))
		}
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *site) put(path, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.files[path] = text
}

func newLists(t *testing.T, c Config) *Lists {
	t.Helper()
	if c.Patience == 0 {
		c.Patience = time.Minute
	}
	l := New(t.Context(), c)
	t.Cleanup(l.Close)
	return l
}

func excludes(t *testing.T, l *Lists, ref policy.ExcludeList, item string) bool {
	t.Helper()
	all, err := l.Lists(t.Context(), []policy.ExcludeList{ref})
	if err != nil {
		t.Fatal(err)
	}
	reason, _ := policy.Rules{}.Excluded(item, policy.Content{}, all)
	return reason != ""
}

// A list is fetched once, by https or from a file, also if many need it at once or by another URL.
func TestListsAreFetchedOnce(t *testing.T) {
	s := serve(t, map[string]string{"/a": "one\n", "/moved": "https://HOST/a"})
	s.put("/moved", s.URL+"/a")
	l := newLists(t, Config{Client: s.Client()})
	ref := refOf(s.URL+"/moved?key=secret", "one\n")
	var g sync.WaitGroup
	for range 20 {
		g.Go(func() {
			if !excludes(t, l, ref, "one") || excludes(t, l, ref, "two") {
				t.Error("the list does not hold")
			}
		})
	}
	g.Wait()
	if n := s.requests.Load(); n != 2 { // the second follows the redirect
		t.Errorf("%d requests", n)
	}
	if other := refOf("https://nowhere.invalid/a", "one\n"); !excludes(t, l, other, "one") {
		t.Error("the same content by another URL does not hold")
	}
	path := filepath.Join(t.TempDir(), "list.txt")
	if err := os.WriteFile(path, []byte("three\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if !excludes(t, l, refOf("file://"+path, "three\n"), "three") {
		t.Error("the file does not hold")
	}
}

// A list that cannot be read is unavailable, and Failure says why until it was read. The messages have no query.
func TestUnreadableLists(t *testing.T) {
	s := serve(t, map[string]string{"/other": "two\n", "/plain": "http://127.0.0.1:1/a"})
	dir := t.TempDir()
	gone := httptest.NewTLSServer(http.NotFoundHandler())
	gone.Close()
	for name, tt := range map[string]struct{ url, want string }{
		"absent":                {s.URL + "/absent?key=secret", "/absent: the server answers 404 Not Found"},
		"another content":       {s.URL + "/other", "/other: its SHA-256 is "},
		"redirect to http":      {s.URL + "/plain", "/plain: it leads elsewhere"},
		"the server is away":    {gone.URL + "/a?key=secret", "connection refused"},
		"http":                  {"http://lists/a", "begins neither"},
		"absent file":           {"file://" + dir + "/absent", "no such file"},
		"directory":             {"file://" + dir, "not a regular file"},
		"what is not validated": {"%zz", "malformed URL"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLists(t, Config{Client: s.Client()})
			ref := refOf(tt.url, "one\n")
			if err := l.Failure(ref); err != nil {
				t.Errorf("before: %v", err)
			}
			all, err := l.Lists(t.Context(), []policy.ExcludeList{ref})
			if all != nil || retry.ClassOf(err) != retry.ClassUnavailable || !strings.Contains(err.Error(), tt.want) ||
				strings.Contains(err.Error(), "secret") {
				t.Errorf("got %v, %v, want %s", all, err, tt.want)
			}
			if failure := l.Failure(ref); failure == nil || failure.Error() != err.Error() {
				t.Errorf("got failure %v, want %v", failure, err)
			}
		})
	}
}

// After a failure the list is fetched again, but not for each command. A policy that names another SHA-256 names
// another list.
func TestListsAreFetchedAgain(t *testing.T) {
	s := serve(t, map[string]string{})
	l := newLists(t, Config{Client: s.Client(), Retry: time.Hour})
	first, second := refOf(s.URL+"/a", "one\n"), refOf(s.URL+"/a", "two\n")
	for range 3 {
		if _, err := l.Lists(t.Context(), []policy.ExcludeList{first}); err == nil {
			t.Fatal("an absent list was read")
		}
	}
	if n := s.requests.Load(); n != 1 {
		t.Errorf("%d requests for a list that failed a moment ago", n)
	}
	s.put("/a", "one\n")
	l.cfg.Retry = time.Nanosecond
	if !excludes(t, l, first, "one") || l.Failure(first) != nil {
		t.Errorf("the list does not hold; failure %v", l.Failure(first))
	}
	s.put("/a", "two\n")
	if !excludes(t, l, second, "two") || !excludes(t, l, first, "one") {
		t.Error("the lists do not hold")
	}
}

// A caller does not wait long for a slow list, and not at all when it is cancelled.
func TestSlowList(t *testing.T) {
	s := serve(t, map[string]string{"/a": "one\n"})
	s.wait = make(chan struct{})
	l := newLists(t, Config{Client: s.Client(), Patience: time.Millisecond})
	ref := refOf(s.URL+"/a", "one\n")
	if _, err := l.Lists(t.Context(), []policy.ExcludeList{ref}); retry.ClassOf(err) != retry.ClassUnavailable ||
		!strings.Contains(err.Error(), "being read") {
		t.Errorf("got %v", err)
	}
	if err := l.Failure(ref); err != nil {
		t.Errorf("a slow list is a failure: %v", err)
	}
	l.cfg.Patience = time.Minute
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.Lists(ctx, []policy.ExcludeList{ref}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	close(s.wait)
	if !excludes(t, l, ref, "one") {
		t.Error("the list does not hold")
	}
}

// The lists that were used last are kept.
func TestListsAreDropped(t *testing.T) {
	s := serve(t, map[string]string{"/a": "a\n", "/b": "b\n", "/c": "c\n"})
	l := newLists(t, Config{Client: s.Client(), Memory: 32})
	a, b, c := refOf(s.URL+"/a", "a\n"), refOf(s.URL+"/b", "b\n"), refOf(s.URL+"/c", "c\n")
	for _, ref := range []policy.ExcludeList{a, b, a, c, a} { // b is dropped
		excludes(t, l, ref, "x")
	}
	if n := s.requests.Load(); n != 3 {
		t.Errorf("%d requests, want 3", n)
	}
	excludes(t, l, b, "x")
	if n := s.requests.Load(); n != 4 {
		t.Errorf("%d requests, want 4", n)
	}
}
