package brake

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/retry"
)

// A counting is a process that counts within a second.
type counting struct {
	*Brake
	cancel context.CancelFunc
	done   sync.WaitGroup
}

func (p *topic) counting(t *testing.T) *counting {
	c := &counting{Brake: p.process(time.Now)}
	ctx, cancel := context.WithCancel(t.Context())
	c.cancel = cancel
	c.done.Go(func() { _ = c.Run(ctx) })
	t.Cleanup(c.stop)
	synctest.Wait()
	return c
}

// stop ends the process as a kill does: what it owes is not counted.
func (c *counting) stop() {
	c.cancel()
	c.done.Wait()
}

// rewrite takes permits with a number of workers, one each in 10 ms, for a time. It returns the number of permits.
func (c *counting) rewrite(t *testing.T, workers int, during time.Duration) int64 {
	var n atomic.Int64
	var all sync.WaitGroup
	end := time.Now().Add(during)
	for range workers {
		all.Go(func() {
			for time.Now().Before(end) {
				if permit, _, err := c.Take(t.Context(), photos); err == nil && permit != nil {
					n.Add(1)
				}
				time.Sleep(10 * time.Millisecond)
			}
		})
	}
	all.Wait()
	return n.Load()
}

// counted returns the number of rewrites in the newest checkpoint.
func (p *topic) counted() int64 {
	b := p.process(time.Now)
	held, _ := b.deps.Ledger.get(b.space(photos).split)
	if held == nil {
		return 0
	}
	return held.usage(time.Now()).hour
}

func rewrites() *topic {
	p := newTopic()
	p.kind = Rewrites
	return p
}

// Copiers beside each other pass the limit by at most what they do in a second, and then stop. Within the limits, a
// permit costs no write of a checkpoint.
func TestRewritesStopAtTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := rewrites()
		one, two := p.counting(t), p.counting(t)
		const perSecond = 2 * 2 * 100
		var n [2]int64
		var both sync.WaitGroup
		for i, c := range []*counting{one, two} {
			both.Go(func() { n[i] = c.rewrite(t, 2, 20*time.Second) })
		}
		both.Wait()
		if total := n[0] + n[1]; total < 950 || total > 1000+perSecond {
			t.Errorf("%d and %d rewrites", n[0], n[1])
		}
		time.Sleep(2 * countInterval)
		if got := len(p.checkpoints); got > 24 {
			t.Errorf("%d checkpoints", got)
		}
		one.stop()
		two.stop()
		if total, counted := n[0]+n[1], p.counted(); counted != total {
			t.Errorf("%d rewrites, %d counted", total, counted)
		}
	})
}

// A process that is killed between rewrites, or deletes, and their count loses at most the counts of a second.
func TestKilledProcesses(t *testing.T) {
	for _, kind := range []Kind{Deletes, Rewrites} {
		for name, during := range map[string]time.Duration{
			"at once": 900 * time.Millisecond, "in steady work": 3900 * time.Millisecond,
		} {
			t.Run(kind.String()+", "+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					p := newTopic()
					p.kind = kind
					c := p.counting(t)
					n := c.rewrite(t, 1, during)
					c.stop()
					if counted := p.counted(); counted < n-90 || counted > n {
						t.Errorf("%d done, %d counted", n, counted)
					}
					next := p.counting(t)
					if n += next.rewrite(t, 1, 20*time.Second); n < 1000 || n > 1000+90 {
						t.Errorf("%d done", n)
					}
				})
			})
		}
	}
}

// A process that cannot write its counts stops. One whose counts are written although that fails counts too many, and
// never too few.
func TestRewritesThatCannotBeCounted(t *testing.T) {
	for name, persisted := range map[string]bool{"not persisted": false, "but persisted": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := rewrites()
				c := p.counting(t)
				n := c.rewrite(t, 1, time.Second)
				time.Sleep(countInterval)
				p.change(func() {
					p.fail = func(m schemas.Message) error {
						if persisted {
							p.add(m)
						}
						return errors.New("refused")
					}
				})
				n += c.rewrite(t, 1, 10*time.Second)
				if limit := int64(100 + 200 + 110); n > limit {
					t.Errorf("%d rewrites, want at most %d", n, limit)
				}
				if _, _, err := c.Take(t.Context(), photos); retry.ClassOf(err) != retry.ClassUnavailable {
					t.Errorf("got %v", err)
				}
				p.change(func() { p.fail = nil })
				n += c.rewrite(t, 1, 100*time.Millisecond)
				time.Sleep(2 * countInterval)
				if counted := p.counted(); counted < n {
					t.Errorf("%d rewrites, %d counted", n, counted)
				}
				c.stop()
			})
		})
	}
}

// Without a checkpoint, nothing is rewritten until the rewrites were counted from the records.
func TestRewritesOfALostCheckpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := rewrites()
		c := p.counting(t)
		c.rewrite(t, 1, time.Second)
		time.Sleep(2 * countInterval)
		_ = c.deps.Ledger.Apply([]byte(schemas.Key(Rewrites.sweep(), c.space(photos).split)), nil, time.Now())
		p.change(func() { p.unknown = errors.New("no answer") })
		if _, _, err := c.Take(t.Context(), photos); retry.ClassOf(err) != retry.ClassUnavailable {
			t.Errorf("records unknown: got %v", err)
		}
		p.change(func() { p.unknown, p.history.Executed = nil, []Executed{{time.Now().Add(-time.Minute), 990}} })
		if n := c.rewrite(t, 1, 5*time.Second); n < 10 || n > 110 {
			t.Errorf("%d more", n)
		}
		c.stop()
	})
}

// Few rewrites of a space, and of a store, do not depend on the number of its copies, so they go on for a day while
// that is unknown.
func TestFewRewritesWithoutRecords(t *testing.T) {
	for name, tt := range map[string]struct{ spaces, each int }{"of a space": {1, free}, "of a store": {111, free}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := rewrites()
				p.history.Live = 20
				c := p.counting(t)
				take := func(space int) (string, error) {
					of := photos
					of.Space = fmt.Sprint(space)
					_, reached, err := c.Take(t.Context(), of)
					return reached, err
				}
				take1 := func(space int) {
					if reached, err := take(space); err != nil || reached != "" {
						t.Errorf("got %q, %v", reached, err)
					}
				}
				for space := range tt.spaces + 1 {
					take1(space)
				}
				time.Sleep(2 * countInterval)
				p.change(func() { p.unknown = errors.New("no answer") })
				time.Sleep(2 * time.Hour)
				for range tt.each {
					for space := range tt.spaces {
						take1(space)
					}
					time.Sleep(2 * countInterval)
				}
				space := 0
				if tt.spaces > 1 {
					space = tt.spaces // which has had one only
				}
				if _, err := take(space); retry.ClassOf(err) != retry.ClassUnavailable {
					t.Errorf("got %v", err)
				}
			})
		})
	}
}

// The limits of now count, whatever they were.
func TestRewritesAfterAChangeOfLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := rewrites()
		p.limits = Limits{1, 10}
		c := p.counting(t)
		c.rewrite(t, 1, 3*time.Second)
		if _, reached, err := c.Take(t.Context(), photos); err != nil || reached == "" {
			t.Errorf("got %q, %v", reached, err)
		}
		p.change(func() { p.limits = Limits{1, 1000} })
		if _, reached, err := c.Take(t.Context(), photos); err != nil || reached != "" {
			t.Errorf("got %q, %v", reached, err)
		}
		c.stop()
	})
}
