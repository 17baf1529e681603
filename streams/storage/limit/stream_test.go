package limit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/storagetest"
)

// Which failures of a stream count as the store's, and which as the caller's.
func TestStreams(t *testing.T) {
	boom := errors.New("boom")
	errSlow := fmt.Errorf("watchdog: %w", context.DeadlineExceeded)
	long := strings.Repeat("x", 1<<20)
	put := func(w *world, r io.Reader, o storage.PutOptions) error {
		_, err := w.Put(w.t.Context(), sp, "b", r, o)
		return err
	}
	read := func(w *world, ctx context.Context, each func()) error {
		r, _, err := w.Open(ctx, sp, "a", "")
		if err != nil {
			return err
		}
		defer r.Close()
		_, err = io.Copy(io.Discard, io.TeeReader(r, writerFunc(each)))
		return err
	}
	for name, tt := range map[string]struct {
		call func(w *world) error
		want error
		fail int // counted
	}{
		"put: the caller's stream breaks": {func(w *world) error {
			return put(w, storagetest.FailingReader(strings.NewReader(long), 1<<19, boom), unsized())
		}, boom, 0},
		"put: the caller's stream breaks with an error that wraps EOF": {func(w *world) error {
			return put(w, storagetest.FailingReader(strings.NewReader("x"), 1, fmt.Errorf("conn: %w", io.EOF)), unsized())
		}, io.EOF, 0},
		"put: the caller's stream is of an unavailable store": {func(w *world) error {
			return put(w, iotest.ErrReader(retry.Unavailable(boom)), unsized())
		}, boom, 0},
		"put: Verify fails": {func(w *world) error {
			return put(w, strings.NewReader("x"),
				storage.PutOptions{Size: -1, Verify: func(digest.Set, int64) error { return boom }})
		}, boom, 0},
		"put: other bytes than declared": {func(w *world) error {
			return put(w, strings.NewReader("x"), storage.PutOptions{Size: 5})
		}, storage.ErrDigest, 0},
		"put: the caller gives up": {func(w *world) error {
			ctx, cancel := context.WithCancelCause(w.t.Context())
			_, err := w.Put(ctx, sp, "b", io.TeeReader(strings.NewReader(long), writerFunc(func() { cancel(boom) })), unsized())
			return err
		}, context.Canceled, 0},
		"put: the caller's time is up": {func(w *world) error {
			ctx, cancel := context.WithCancelCause(w.t.Context())
			_, err := w.Put(ctx, sp, "b", io.TeeReader(strings.NewReader(long), writerFunc(func() { cancel(errSlow) })),
				unsized())
			return err
		}, context.Canceled, 0},
		"put: the store hangs": {func(w *world) error {
			ctx, cancel := context.WithCancelCause(w.t.Context())
			w.faulty.Before(func(ctx context.Context, c storagetest.Call) error { cancel(errSlow); return context.Cause(ctx) })
			_, err := w.Put(ctx, sp, "b", strings.NewReader(long), unsized())
			return err
		}, errSlow, 1},
		"open: the store hangs midway": {func(w *world) error {
			ctx, cancel := context.WithCancelCause(w.t.Context())
			w.Store = New(hangingStore{w.faulty, func() { cancel(errSlow) }}, w.breaker, nil)
			return read(w, ctx, func() {})
		}, errSlow, 1},
		"open: the store hangs midway, and the caller gives up": {func(w *world) error {
			ctx, cancel := context.WithCancelCause(w.t.Context())
			w.Store = New(hangingStore{w.faulty, func() { cancel(errDown) }}, w.breaker, nil)
			return read(w, ctx, func() {})
		}, errDown, 0},
		"open: the caller's time is up between two reads": {func(w *world) error {
			ctx, cancel := context.WithCancelCause(w.t.Context())
			w.Store = New(hangingStore{w.faulty, func() {}}, w.breaker, nil)
			return read(w, ctx, func() { cancel(errSlow) })
		}, errSlow, 0},
		"stat: the caller's time is up": {func(w *world) error {
			ctx, cancel := context.WithCancelCause(w.t.Context())
			w.faulty.Before(func(ctx context.Context, _ storagetest.Call) error { cancel(errSlow); return context.Cause(ctx) })
			_, err := w.Stat(ctx, sp, "a")
			return err
		}, errSlow, 1},
		"put: the store fails after the last byte": {func(w *world) error {
			w.faulty.Script(storagetest.Fault{Method: "Put", Applied: true, Err: boom})
			return put(w, strings.NewReader("x"), unsized())
		}, boom, 1},
		"put: the store fails midway": {func(w *world) error {
			w.faulty.Script(storagetest.Fault{Method: "Put", Mid: true, After: 1 << 19, Err: boom})
			return put(w, strings.NewReader(long), unsized())
		}, boom, 1},
		"put: the store fails, and a Verify agreed": {func(w *world) error {
			w.faulty.Script(storagetest.Fault{Method: "Put", Applied: true, Err: boom})
			return put(w, strings.NewReader("x"),
				storage.PutOptions{Size: -1, Verify: func(digest.Set, int64) error { return nil }})
		}, boom, 1},
		"open: reading fails midway": {func(w *world) error {
			w.faulty.Script(storagetest.Fault{Method: "Open", Mid: true, After: 2, Err: boom})
			return read(w, w.t.Context(), func() {})
		}, boom, 1},
		"open: reading fails, and is tried again": {func(w *world) error {
			w.faulty.Script(storagetest.Fault{Method: "Open", Mid: true, After: 2, Err: boom})
			r, _, err := w.Open(w.t.Context(), sp, "a", "")
			if err != nil {
				return err
			}
			defer r.Close()
			_, err = io.ReadAll(r)
			_, again := io.ReadAll(r)
			return errors.Join(err, again)
		}, boom, 1},
		"open: reading fails instead of ending": {func(w *world) error {
			w.faulty.Script(storagetest.Fault{Method: "Open", Mid: true, After: 3, Err: boom})
			return read(w, w.t.Context(), func() {})
		}, boom, 1},
		"open: the item changes during the read": {func(w *world) error {
			w.faulty.Script(storagetest.Fault{Method: "Open", Mid: true, After: 2, Err: storage.ErrChanged})
			return read(w, w.t.Context(), func() {})
		}, storage.ErrChanged, 0},
		"open: the caller gives up": {func(w *world) error {
			ctx, cancel := context.WithCancelCause(w.t.Context())
			w.faulty.Script(storagetest.Fault{Method: "Open", Mid: true, After: 2, Err: boom})
			return read(w, ctx, func() { cancel(errDown) })
		}, boom, 0},
		"list: it fails midway": {func(w *world) error {
			w.faulty.Script(storagetest.Fault{Method: "List", Mid: true, After: 1, Err: boom})
			return drain(w.List(w.t.Context(), sp, ""))
		}, boom, 1},
		"spaces: it fails at once": {func(w *world) error {
			w.faulty.Script(storagetest.Fault{Method: "Spaces", Mid: true, After: 0, Err: boom})
			return drain(w.Spaces(w.t.Context()))
		}, boom, 1},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, Config{})
			if err := tt.call(w); !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
			if got := w.failures(); got != tt.fail {
				t.Errorf("got %d failures, want %d", got, tt.fail)
			}
		})
	}
}

// A hangingStore returns the first byte of an item, and then waits until the context ends.
type hangingStore struct {
	storage.Store
	wait func()
}

func (h hangingStore) Open(ctx context.Context, space, item, version string) (io.ReadCloser, storage.Object, error) {
	r, o, err := h.Store.Open(ctx, space, item, version)
	return &hangingReader{ReadCloser: r, wait: func() error { h.wait(); <-ctx.Done(); return context.Cause(ctx) }}, o, err
}

type hangingReader struct {
	io.ReadCloser
	wait func() error
	n    int
}

func (h *hangingReader) Read(p []byte) (int, error) {
	if h.n++; h.n > 1 {
		return 0, h.wait()
	}
	return h.ReadCloser.Read(p[:1])
}

// A store that answers but hangs in its transfers is not used until a transfer ends: answers from its cache
// neither keep the breaker closed nor close it.
func TestStoreWhoseStreamsHang(t *testing.T) {
	for name, call := range map[string]func(w *world, ctx context.Context) error{
		"read": func(w *world, ctx context.Context) error {
			r, _, err := w.Open(ctx, sp, "a", "")
			if err != nil {
				return err
			}
			defer r.Close()
			_, err = io.Copy(io.Discard, r)
			return err
		},
		"put": func(w *world, ctx context.Context) error {
			_, err := w.Put(ctx, sp, "b", strings.NewReader("x"), unsized())
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, Config{Threshold: 3})
				hangs := true
				w.Store = New(stuckStore{w.faulty, &hangs}, w.breaker, nil)
				stat := func() error { _, err := w.Stat(t.Context(), sp, "a"); return err }
				task := func() error { // as the watchdog does it
					if err := stat(); err != nil {
						return err
					}
					ctx, cancel := context.WithTimeoutCause(t.Context(), 10*time.Minute,
						fmt.Errorf("stalled (%w)", context.DeadlineExceeded))
					defer cancel()
					return call(w, ctx)
				}
				for range 3 {
					wantState(t, w.breaker, Closed)
					if err := task(); err == nil || errors.Is(err, ErrOpen) {
						t.Fatalf("got %v, want that it hung", err)
					}
				}
				wantState(t, w.breaker, Open)
				time.Sleep(time.Until(until(t, w.breaker)))
				began := time.Now()
				probe := make(chan error)
				go func() { probe <- task() }() // its Stat is answered
				synctest.Wait()
				wantState(t, w.breaker, HalfOpen)
				time.Sleep(time.Minute) // while the probe may hang, no other operation is admitted
				if err := stat(); !errors.Is(err, ErrOpen) {
					t.Errorf("beside a probe: got %v, want %v", err, ErrOpen)
				}
				if err := <-probe; err == nil || errors.Is(err, ErrOpen) || time.Since(began) < 10*time.Minute {
					t.Errorf("the probe: got %v after %v", err, time.Since(began))
				}
				wantState(t, w.breaker, Open)
				hangs = false
				time.Sleep(time.Until(until(t, w.breaker)))
				if err := task(); err != nil {
					t.Errorf("a store that is back: got %v", err)
				}
				wantState(t, w.breaker, Closed)
				if n := w.failures(); n != 0 {
					t.Errorf("got %d failures, want none", n)
				}
			})
		})
	}
}

// A stuckStore answers, but transfers no byte.
type stuckStore struct {
	storage.Store
	hangs *bool
}

func (s stuckStore) Open(ctx context.Context, space, item, version string) (io.ReadCloser, storage.Object, error) {
	r, o, err := s.Store.Open(ctx, space, item, version)
	if *s.hangs {
		r = &hangingReader{ReadCloser: r, wait: func() error { <-ctx.Done(); return context.Cause(ctx) }}
	}
	return r, o, err
}

func (s stuckStore) Put(
	ctx context.Context, space, item string, r io.Reader, o storage.PutOptions,
) (storage.Object, error) {
	if *s.hangs {
		<-ctx.Done()
		return storage.Object{}, context.Cause(ctx)
	}
	return s.Store.Put(ctx, space, item, r, o)
}

type writerFunc func()

func (f writerFunc) Write(p []byte) (int, error) { f(); return len(p), nil }

// A success resets the count, for each kind of stream.
func TestStreamsAnswer(t *testing.T) {
	for name, call := range map[string]func(w *world) error{
		"read to the end": func(w *world) error {
			r, _, err := w.Open(w.t.Context(), sp, "a", "")
			if err != nil {
				return err
			}
			w.fail() // meanwhile
			_, err = io.Copy(io.Discard, r)
			return err
		},
		"first entry of a listing": func(w *world) error {
			for range w.List(w.t.Context(), sp, "") {
				break
			}
			return nil
		},
		"end of an empty listing": func(w *world) error { return drain(w.List(w.t.Context(), "empty", "")) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, Config{})
			w.fail()
			must(t, call(w))
			if got := w.failures(); got != 0 {
				t.Errorf("got %d failures, want none", got)
			}
		})
	}
}

// A stream that was the successful probe and breaks later counts as a failure of a closed breaker.
func TestProbeBreaks(t *testing.T) {
	for method, op := range operations() {
		if method != "Open" && method != "List" && method != "Spaces" {
			continue
		}
		t.Run(method, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, Config{})
				time.Sleep(time.Until(down(t, w.breaker)))
				w.faulty.Script(storagetest.Fault{Method: method, Mid: true, After: 1})
				if err := op.call(t.Context(), w); !errors.Is(err, storagetest.ErrFault) {
					t.Fatalf("got %v, want the store's error", err)
				}
				wantState(t, w.breaker, Closed)
				if got := w.failures(); got != 1 {
					t.Errorf("got %d failures, want 1", got)
				}
			})
		})
	}
}
