package limit

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

var errDown = errors.New("connection refused")

// use runs one operation that ends with err, and returns the error of its admission.
func use(ctx context.Context, b *Breaker, err error) error {
	p, refused := b.begin(ctx)
	if refused == nil {
		b.report(p, classify(ctx, err), err)
	}
	return refused
}

func wantState(t *testing.T, b *Breaker, want State) {
	t.Helper()
	if got, _, _ := b.State(); got != want {
		t.Fatalf("state: got %v, want %v", got, want)
	}
}

// down opens b, which is closed, and returns when the next probe is due.
func down(t *testing.T, b *Breaker) time.Time {
	t.Helper()
	if err := use(t.Context(), b, retry.Unavailable(errDown)); err != nil {
		t.Fatalf("operation before: %v", err)
	}
	wantState(t, b, Open)
	return until(t, b)
}

// until returns when b, which is not closed, admits the next probe.
func until(t *testing.T, b *Breaker) time.Time {
	t.Helper()
	err := b.Admit()
	var open *OpenError
	if !errors.As(err, &open) {
		t.Fatalf("Admit: got %v, want an OpenError", err)
	}
	return open.Until
}

func TestOpens(t *testing.T) {
	fail := func(n int) []error { return slices.Repeat([]error{errDown}, n) }
	for name, tt := range map[string]struct {
		threshold int
		ends      []error
		want      State
	}{
		"by default below":            {0, fail(4), Closed},
		"by default":                  {0, fail(5), Open},
		"a threshold of its own":      {2, fail(2), Open},
		"success between":             {3, slices.Concat(fail(2), []error{nil}, fail(2)), Closed},
		"an answer between":           {3, slices.Concat(fail(2), []error{storage.ErrNotFound}, fail(2)), Closed},
		"success before":              {3, slices.Concat([]error{nil, nil}, fail(3)), Open},
		"a permanent error between":   {3, slices.Concat(fail(2), []error{retry.Permanent(errDown)}, fail(2)), Closed},
		"answers only":                {1, slices.Repeat([]error{storage.ErrNotFound}, 99), Closed},
		"unavailable":                 {0, []error{retry.Unavailable(errDown)}, Open},
		"no room, and it still reads": {1, slices.Repeat([]error{retry.Unavailable(storage.ErrReadOnly)}, 99), Closed},
	} {
		t.Run(name, func(t *testing.T) {
			b := NewBreaker(Config{Threshold: tt.threshold})
			for _, err := range tt.ends {
				if refused := use(t.Context(), b, err); refused != nil {
					t.Fatalf("refused: %v", refused)
				}
			}
			wantState(t, b, tt.want)
		})
	}
}

// The states of a breaker: what it refuses and when; each change is reported and logged.
func TestLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		var log bytes.Buffer
		b := NewBreaker(Config{Account: "acme", Store: "tape", Threshold: 2, Log: slog.New(slog.NewTextHandler(&log, nil))})
		made := time.Now()
		if s, since, cause := b.State(); s != Closed || !since.Equal(made) || cause != nil || b.Admit() != nil {
			t.Errorf("new: got %v, %v, %v", s, since, cause)
		}
		time.Sleep(time.Hour)
		use(ctx, b, errDown)
		use(ctx, b, errors.New("the second"))
		began := time.Now()
		if s, since, cause := b.State(); s != Open || !since.Equal(began) || cause != errDown {
			t.Errorf("unavailable: got %v, %v, %v, want open, %v, the first failure", s, since, cause, began)
		}
		for what, err := range map[string]error{"operation": use(ctx, b, nil), "Admit": b.Admit()} {
			var open *OpenError
			if !errors.Is(err, ErrOpen) || retry.ClassOf(err) != retry.ClassUnavailable || !errors.As(err, &open) {
				t.Fatalf("%s: got %v, want ErrOpen of class unavailable", what, err)
			}
			if open.Account != "acme" || open.Store != "tape" || open.Cause != errDown || !open.Since.Equal(began) {
				t.Errorf("%s: got %+v", what, open)
			}
			if wait := time.Until(open.Until); wait < 2500*time.Millisecond || wait > 5*time.Second {
				t.Errorf("%s: asked again in %v, want 2.5s to 5s", what, wait)
			}
			for _, want := range []string{"acme/tape", errDown.Error(), open.Since.UTC().Format(time.RFC3339)} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%s: %q lacks %q", what, err, want)
				}
			}
		}
		again := until(t, b)
		time.Sleep(time.Until(again) - time.Nanosecond)
		if err := use(ctx, b, nil); !errors.Is(err, ErrOpen) {
			t.Errorf("a moment too early: got %v", err)
		}
		time.Sleep(time.Nanosecond)
		if err := use(ctx, b, retry.Unavailable(errors.New("another failure"))); err != nil { // a probe that fails
			t.Errorf("when it is due: got %v", err)
		}
		if s, since, cause := b.State(); s != Open || !since.Equal(began) || cause != errDown {
			t.Errorf("still unavailable: got %v, %v, %v, want open, since %v and for the same reason", s, since, cause, began)
		}
		time.Sleep(time.Until(until(t, b)))
		if err := use(ctx, b, storage.ErrNotFound); err != nil { // a probe that is answered
			t.Errorf("when it is due again: got %v", err)
		}
		if s, since, cause := b.State(); s != Closed || !since.Equal(time.Now()) || cause != nil {
			t.Errorf("back: got %v, %v, %v", s, since, cause)
		}
		if err := use(ctx, b, errDown); err != nil { // counted from the start
			t.Errorf("back: got %v", err)
		}
		if s, _, cause := b.State(); s != Closed || cause != nil {
			t.Errorf("after one failure: got %v, %v", s, cause)
		}
		if s, entered := b.counts(); s != Closed || entered != [Open + 1]int64{Closed: 1, HalfOpen: 2, Open: 2} {
			t.Errorf("got %v, entered %v, want one return after two failed probes", s, entered)
		}
		var levels []string
		for line := range strings.Lines(log.String()) {
			if !strings.Contains(line, "account=acme store=tape") {
				t.Errorf("log line %q does not name the store", line)
			}
			levels = append(levels, strings.Fields(strings.SplitN(line, "level=", 2)[1])[0])
		}
		if !strings.Contains(log.String(), "refused=5") {
			t.Errorf("the log does not count the refused operations:\n%s", log.String())
		}
		if want := []string{"WARN", "INFO"}; !slices.Equal(levels, want) { // one line for each change that an operator sees
			t.Errorf("log: got %q, want %q\n%s", levels, want, log.String())
		}
	})
}

// Each failed probe doubles the interval up to its bound; an answer resets it.
func TestBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewBreaker(Config{Open: time.Second, maxOpen: 6 * time.Second})
		bounds := []int{1, 2, 4, 6, 6, 6}
		for range 2 {
			at := down(t, b)
			for i, seconds := range bounds {
				bound := time.Duration(seconds) * time.Second
				if wait := time.Until(at); wait < bound/2 || wait > bound {
					t.Errorf("round %d: got %v, want %v to %v", i+1, wait, bound/2, bound)
				}
				time.Sleep(time.Until(at))
				if i+1 < len(bounds) {
					use(t.Context(), b, errDown)
					at = until(t, b)
				}
			}
			use(t.Context(), b, nil)
			wantState(t, b, Closed)
		}
	})
}

// While the store is half-open, one caller at a time is admitted.
func TestProbes(t *testing.T) {
	const lease = 10 * time.Second
	ctx := context.Background()
	for name, f := range map[string]func(t *testing.T, b *Breaker){
		"one operation at a time": func(t *testing.T, b *Breaker) {
			p, err := b.begin(ctx)
			must(t, err)
			wantState(t, b, HalfOpen)
			for range 3 {
				if err := use(ctx, b, nil); !errors.Is(err, ErrOpen) || retry.ClassOf(err) != retry.ClassUnavailable {
					t.Errorf("beside a probe: got %v", err)
				}
				if err := b.Admit(); !errors.Is(err, ErrOpen) {
					t.Errorf("Admit beside a probe: got %v", err)
				}
			}
			b.report(p, answered, nil)
			if err := use(ctx, b, nil); err != nil {
				t.Errorf("after it: %v", err)
			}
		},
		"a probe that says nothing makes room": func(t *testing.T, b *Breaker) {
			p, _ := b.begin(ctx)
			b.report(p, nothing, context.Canceled)
			wantState(t, b, HalfOpen)
			if err := use(ctx, b, nil); err != nil {
				t.Errorf("the next one: %v", err)
			}
			wantState(t, b, Closed)
		},
		"a probe that hangs makes room": func(t *testing.T, b *Breaker) {
			if _, err := b.begin(ctx); err != nil {
				t.Fatal(err)
			}
			time.Sleep(lease - 1)
			if err := use(ctx, b, nil); !errors.Is(err, ErrOpen) {
				t.Errorf("in its lease: got %v", err)
			}
			time.Sleep(time.Nanosecond)
			if err := use(ctx, b, nil); err != nil {
				t.Errorf("after its lease: %v", err)
			}
			wantState(t, b, Closed)
		},
		"a probe that was slow still counts": func(t *testing.T, b *Breaker) {
			p, _ := b.begin(ctx)
			time.Sleep(lease)
			q, err := b.begin(ctx)
			must(t, err)
			b.report(p, answered, nil)
			wantState(t, b, Closed)
			b.report(q, unavailable, errDown) // it began before the store was known to be back
			wantState(t, b, Closed)
		},
		"one is admitted, and its operation is the probe": func(t *testing.T, b *Breaker) {
			must(t, b.Admit())
			if err := b.Admit(); !errors.Is(err, ErrOpen) {
				t.Errorf("the second: got %v", err)
			}
			p, err := b.begin(ctx)
			if err != nil {
				t.Fatalf("operation of the one who was admitted: %v", err)
			}
			if err := use(ctx, b, nil); !errors.Is(err, ErrOpen) {
				t.Errorf("another one: got %v", err)
			}
			b.report(p, answered, nil)
			if err := b.Admit(); err != nil {
				t.Errorf("afterwards: %v", err)
			}
		},
		"one who is admitted and does nothing": func(t *testing.T, b *Breaker) {
			must(t, b.Admit())
			time.Sleep(lease/10 - 1)
			if err := b.Admit(); !errors.Is(err, ErrOpen) {
				t.Errorf("in the lease: got %v", err)
			}
			time.Sleep(time.Nanosecond)
			if err := b.Admit(); err != nil {
				t.Errorf("after it: %v", err)
			}
			if err := use(ctx, b, errDown); err != nil {
				t.Errorf("operation of the second: %v", err)
			}
			wantState(t, b, Open)
		},
		"one who is admitted and begins late, before anybody else": func(t *testing.T, b *Breaker) {
			must(t, b.Admit())
			time.Sleep(lease)
			p, err := b.begin(ctx)
			must(t, err)
			time.Sleep(lease - 1) // its own lease, in full
			if err := b.Admit(); !errors.Is(err, ErrOpen) {
				t.Errorf("beside it: got %v", err)
			}
			b.report(p, answered, nil)
			wantState(t, b, Closed)
		},
		"a context that is dead takes no lease": func(t *testing.T, b *Breaker) {
			dead, cancel := context.WithCancelCause(ctx)
			cancel(errDown)
			if _, err := b.begin(dead); !errors.Is(err, context.Canceled) || errors.Is(err, errDown) {
				t.Errorf("got %v, want the end of the context, and its cause in the text only", err)
			}
			if err := use(ctx, b, nil); err != nil {
				t.Errorf("the next one: %v", err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := NewBreaker(Config{lease: lease})
				time.Sleep(time.Until(down(t, b)))
				f(t, b)
			})
		})
	}
}

// The result of an operation that began before a change of state says nothing about the new state.
func TestLate(t *testing.T) {
	for name, e := range map[string]event{"answer": answered, "failure": failed, "unavailable": unavailable,
		"nothing": nothing} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx := t.Context()
				b := NewBreaker(Config{Threshold: 1})
				old, _ := b.begin(ctx)
				at := down(t, b)
				b.report(old, e, errDown)
				wantState(t, b, Open)
				if got := until(t, b); !got.Equal(at) {
					t.Errorf("while open: asked again at %v, want %v", got, at)
				}
				time.Sleep(time.Until(at))
				probe, err := b.begin(ctx)
				must(t, err)
				b.report(old, e, errDown)
				wantState(t, b, HalfOpen)
				if err := b.Admit(); !errors.Is(err, ErrOpen) {
					t.Errorf("the lease is lost: Admit: got %v", err)
				}
				b.report(probe, answered, nil)
				b.report(old, e, errDown)
				wantState(t, b, Closed)
			})
		})
	}
}

// The log of a store that refuses the credentials does not suggest to check a mount.
func TestLogOfCredentials(t *testing.T) {
	for name, tt := range map[string]struct {
		err  error
		want string
	}{
		"unavailable": {errDown, "check that the store is up, mounted and reachable"},
		"credentials": {storage.ErrCredentials, "check the store's credentials in the configuration"},
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			b := NewBreaker(Config{Account: "acme", Store: "1", Log: slog.New(slog.NewTextHandler(&log, nil))})
			use(t.Context(), b, retry.Unavailable(tt.err))
			wantState(t, b, Open)
			if !strings.Contains(log.String(), tt.want) {
				t.Errorf("got %s, want %q", log.String(), tt.want)
			}
		})
	}
}
