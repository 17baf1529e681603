package retry_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/streams/retry"
)

func TestClassOf(t *testing.T) {
	due := time.UnixMilli(1_700_000_000_000)
	for name, tt := range map[string]struct {
		err  error
		want retry.Class
		text string
		due  time.Time
	}{
		"plain":       {io.EOF, retry.Transient, "transient", time.Time{}},
		"permanent":   {retry.Permanent(io.EOF), retry.ClassPermanent, "permanent", time.Time{}},
		"unavailable": {retry.Unavailable(io.EOF), retry.ClassUnavailable, "unavailable", time.Time{}},
		"wait":        {retry.Wait(io.EOF, due), retry.ClassWait, "wait", due},
		"wrapped":     {fmt.Errorf("open: %w", retry.Wait(io.EOF, due)), retry.ClassWait, "wait", due},
		"the outermost mark": {retry.Permanent(fmt.Errorf("x: %w", retry.Unavailable(io.EOF))), retry.ClassPermanent,
			"permanent", time.Time{}},
		"one of several": {errors.Join(io.ErrClosedPipe, io.EOF, retry.Permanent(io.EOF)), retry.ClassPermanent,
			"permanent", time.Time{}},
		"of a context, by default": {context.DeadlineExceeded, retry.Transient, "transient", time.Time{}},
	} {
		t.Run(name, func(t *testing.T) {
			got := retry.ClassOf(tt.err)
			if got != tt.want || got.String() != tt.text || !retry.Due(tt.err).Equal(tt.due) ||
				retry.IsPermanent(tt.err) != (tt.want == retry.ClassPermanent) {
				t.Errorf("got %v, due %v, want %v, %v", got, retry.Due(tt.err), tt.want, tt.due)
			}
			if !errors.Is(tt.err, io.EOF) && tt.err != context.DeadlineExceeded {
				t.Error("the mark hides what it marks")
			}
		})
	}
	caused := fmt.Errorf("look: %w", retry.WaitFor("chunks", io.EOF, due))
	if c := retry.CauseOf(caused); c != "chunks" || retry.ClassOf(caused) != retry.ClassWait ||
		!retry.Due(caused).Equal(due) {
		t.Errorf("got cause %q of %v", c, caused)
	}
	unavailable := fmt.Errorf("look: %w", retry.UnavailableFor("acme/1", io.EOF))
	if c := retry.CauseOf(unavailable); c != "acme/1" || retry.ClassOf(unavailable) != retry.ClassUnavailable ||
		!errors.Is(unavailable, io.EOF) {
		t.Errorf("got cause %q of %v", c, unavailable)
	}
	for _, err := range []error{nil, io.EOF, retry.Wait(io.EOF, due), retry.Unavailable(caused)} {
		if c := retry.CauseOf(err); c != "" {
			t.Errorf("got cause %q of %v", c, err)
		}
	}
	if retry.Permanent(nil) != nil || retry.Unavailable(nil) != nil || retry.Wait(nil, due) != nil ||
		retry.WaitFor("x", nil, due) != nil || retry.UnavailableFor("x", nil) != nil || retry.IsPermanent(nil) {
		t.Error("a mark turns nil into an error")
	}
}

func TestDo(t *testing.T) {
	errDown := errors.New("down")
	for name, tt := range map[string]struct {
		policy retry.Policy
		fail   int // calls
		err    error
		calls  int
		least  time.Duration
		most   time.Duration
	}{
		"at once": {retry.Policy{Attempts: 3, Wait: time.Second}, 0, nil, 1, 0, 0},
		"third call succeeds": {retry.Policy{Attempts: 3, Wait: time.Second}, 2, nil, 3, 1500 * time.Millisecond,
			3 * time.Second},
		"attempts used up": {retry.Policy{Attempts: 3, Wait: time.Second}, 99, errDown, 3, 1500 * time.Millisecond,
			3 * time.Second},
		"time used up": {retry.Policy{Wait: time.Second, MaxWait: time.Second, Elapsed: 10 * time.Second}, 99,
			errDown, 0, 8 * time.Second, 10 * time.Second},
		"for ever": {retry.Policy{Wait: time.Second, MaxWait: 5 * time.Second}, 98, nil, 99, 2 * time.Minute,
			10 * time.Minute},
		"permanent, not again":  {retry.Policy{Attempts: 3, Wait: time.Second}, 99, retry.Permanent(errDown), 1, 0, 0},
		"unavailable, not here": {retry.Policy{Attempts: 3, Wait: time.Second}, 99, retry.Unavailable(errDown), 1, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start, calls, reported := time.Now(), 0, 0
				n, err := tt.policy.Do(t.Context(), func() error {
					if calls++; calls <= tt.fail {
						return cmpOr(tt.err, errDown)
					}
					return nil
				}, func(int, time.Duration, error) { reported++ })
				if !errors.Is(err, tt.err) || n != calls || reported != calls-1 || tt.calls > 0 && calls != tt.calls {
					t.Errorf("Do = %d, %v after %d calls and %d reports, want %d, %v",
						n, err, calls, reported, tt.calls, tt.err)
				}
				if took := time.Since(start); took < tt.least || took > tt.most {
					t.Errorf("took %v, want %v to %v", took, tt.least, tt.most)
				}
			})
		})
	}
}

func cmpOr(err, other error) error {
	if err == nil {
		return other
	}
	return err
}

// The end of the context ends the wait; Do returns its cause.
func TestDoCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		errStop := errors.New("stop")
		ctx, cancel := context.WithTimeoutCause(t.Context(), 90*time.Second, errStop)
		defer cancel()
		n, err := retry.Policy{Wait: time.Minute}.Do(ctx, func() error { return errors.New("down") }, nil)
		if n != 2 || err != errStop {
			t.Errorf("Do = %d, %v, want 2, %v", n, err, errStop)
		}
	})
}

func TestBackoff(t *testing.T) {
	p := retry.Policy{Wait: time.Second, MaxWait: 6 * time.Second}
	var most []time.Duration
	for n := 1; n <= 70; n++ { // no overflow, however often
		var m time.Duration
		for range 200 {
			d := p.Backoff(n)
			if bound := min(time.Second<<min(n-1, 10), 6*time.Second); d < bound/2 || d > bound {
				t.Fatalf("Backoff(%d) = %v, want %v to %v", n, d, bound/2, bound)
			}
			m = max(m, d)
		}
		most = append(most, m.Round(time.Second))
	}
	if want := []time.Duration{1e9, 2e9, 4e9, 6e9}; !slices.Equal(most[:4], want) {
		t.Errorf("got %v, want %v", most[:4], want)
	}
	if d := (retry.Policy{}).Backoff(5); d != 0 {
		t.Errorf("without a wait: %v", d)
	}
}
