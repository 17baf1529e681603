package kafka

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// A hold is what is handled while one poll is held: partitions side by side.
type hold struct {
	metrics *roleMetrics

	mu    sync.Mutex // guards the rest
	out   []*kgo.Record
	done  map[partition]int   // letters, of the partitions that are at an end
	at    map[partition]int64 // the offset at work, of the others
	given bool                // up: nobody looks at out and done any more
	ended chan struct{}       // closed when all partitions are at an end
}

// begin handles what is queued. What it hands out belongs to those who handle it, until the hold has ended.
func (g *Group) begin(ctx context.Context, latest time.Time) *hold {
	h := &hold{metrics: g.metrics, done: map[partition]int{}, at: map[partition]int64{}, ended: make(chan struct{})}
	for p, letters := range g.queued {
		h.at[p] = letters[0].rec.Offset
	}
	if len(g.queued) == 0 {
		close(h.ended)
	}
	for _, line := range g.lines() {
		go func() {
			for i, q := range line {
				var recs []*kgo.Record
				n := 0
				if i == 0 || !time.Now().After(latest) { // else what is queued waits for the next turn
					recs, n = g.partition(ctx, q.letters, latest, func(offset int64) { h.reach(q.partition, offset) })
				}
				h.end(q.partition, recs, n)
			}
		}()
	}
	return h
}

// An ofPartition is what is queued of one partition.
type ofPartition struct {
	partition
	letters []letter
}

// lines returns what is queued. What is in one line is handled one after the other, each partition being the first in
// its turn: of co-partitioned topics the partitions of one number, so that outputs about one key are published in the
// order in which they were made.
func (g *Group) lines() [][]ofPartition {
	byID := map[int32][]ofPartition{}
	var lines [][]ofPartition
	for p, letters := range g.queued {
		if g.cfg.CoPartitioned {
			byID[p.id] = append(byID[p.id], ofPartition{p, letters})
		} else {
			lines = append(lines, []ofPartition{{p, letters}})
		}
	}
	g.turns++
	for _, line := range byID {
		slices.SortFunc(line, func(a, b ofPartition) int { return cmp.Compare(a.topic, b.topic) })
		first := g.turns % len(line)
		lines = append(lines, slices.Concat(line[first:], line[:first]))
	}
	return lines
}

func (h *hold) reach(p partition, offset int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.at[p] = offset
}

func (h *hold) end(p partition, recs []*kgo.Record, n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.at, p)
	if h.given {
		h.metrics.ignoring(-1)
		return
	}
	h.out, h.done[p] = append(h.out, recs...), n
	if len(h.at) == 0 {
		close(h.ended)
	}
}

// A stuckError says which handlers ignore that their time is up.
type stuckError struct{ at map[partition]int64 }

func (e *stuckError) Error() string {
	var all []string
	for p, offset := range e.at {
		all = append(all, fmt.Sprintf("%s at offset %d", p, offset))
	}
	slices.SortFunc(all, cmp.Compare[string])
	return fmt.Sprintf("the handler has ignored for %v that it was cancelled, of %v", poolGrace, all)
}

// wait waits until all is handled: for limit, and poolGrace longer, or for poolGrace after ctx has ended.
// After an error out and done say nothing any more.
func (h *hold) wait(ctx context.Context, limit time.Duration) error {
	late := time.NewTimer(limit + poolGrace)
	defer late.Stop()
	select {
	case <-h.ended:
		return nil
	case <-late.C:
	case <-ctx.Done():
		late.Reset(poolGrace)
		select {
		case <-h.ended:
			return nil
		case <-late.C:
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.at) == 0 {
		return nil
	}
	h.given = true
	h.metrics.ignoring(len(h.at))
	e := &stuckError{at: map[partition]int64{}}
	for p, offset := range h.at {
		e.at[p] = offset
	}
	return e
}
