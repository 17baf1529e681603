package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/sweep"
	"github.com/millrace/millrace/streams/sweep/groups"
	"github.com/millrace/millrace/streams/sweep/pairs"
	"github.com/millrace/millrace/streams/sweep/reconcile"
)

// States of a split.
const (
	SplitDone     = "done"     // its last round has ended
	SplitRunning  = "running"  // its round has begun and not ended: it goes on in a running sweeper
	SplitFailed   = "failed"   // it has failed since its last checkpoint, and is tried again
	SplitPaused   = "paused"   // the sweep, the store or the account is paused, or the account is inactive
	SplitNever    = "never"    // no round has begun
	SplitUnknown  = "unknown"  // the spaces of the store are unknown, since it does not answer
	SplitExcluded = "excluded" // sweep.spaces leaves it out
)

// A SplitStatus is the last round of a split of a sweep.
type SplitStatus struct {
	Sweep  string
	ByHand bool // rounds that operators start, which are beside the scheduled ones
	// Store is the source of a pair. An empty Space is all of them, or an unknown one.
	Account, Store, Space, Destination string
	State                              string // SplitDone, ...
	Round                              string
	// Started and Finished are those of the round, and Updated is the time of its last checkpoint.
	Started, Finished, Updated time.Time
	Compared                   int64 // items until the last checkpoint; of fixity the checks that were requested
	Emitted                    int64 // findings, or requested checks
	// Bytes are those of the compared items with a known size; negative: they are unknown.
	Bytes int64
	// Share is the share of the recorded items that an unfinished round has compared; of fixity, the share of the checks
	// with a final result once all are requested. Negative: it is unknown.
	Share float64
	// Next is when the next scheduled round is due; zero: none is, or it is unknown.
	Next time.Time
	// Failed is the time at which the round has failed last, with Error; zero: it has not failed since a run that ended.
	Failed time.Time
	Error  string
	added  int64 // compared items without a record when the round began
	// waits: all checks of the fixity round are requested. measured is the time of Share, if it is not Updated.
	waits    bool
	measured time.Time
}

// Unfinished reports whether a round has begun and not ended.
func (s *SplitStatus) Unfinished() bool { return s.Round != "" && s.Finished.IsZero() }

// Rate returns the compared items per second; 0: it is unknown.
func (s *SplitStatus) Rate() float64 {
	took := s.Updated.Sub(s.Started).Seconds()
	if took <= 0 {
		return 0
	}
	return float64(s.Compared) / took
}

// End estimates when an unfinished round ends; the zero time: it is unknown.
func (s *SplitStatus) End(now time.Time) time.Time {
	at := s.Updated
	if !s.measured.IsZero() {
		at = s.measured
	}
	if s.State != SplitRunning || s.Share <= 0 || !at.After(s.Started) {
		return time.Time{}
	}
	left := float64(at.Sub(s.Started)) * (1 - s.Share) / s.Share
	if left > float64(math.MaxInt64) {
		return time.Time{}
	}
	if end := at.Add(time.Duration(left)); end.After(now) {
		return end
	}
	return now
}

// namesOf returns the names of a split; false if it is not that of a sweep.
func namesOf(name, split string) (s SplitStatus, ok bool) {
	s.Sweep, s.ByHand = strings.CutSuffix(name, demand)
	parts := schemas.SplitKey(split)
	switch n := len(parts); {
	case s.Sweep == sweep.FixitySweep && n == 3, s.Sweep == reconcile.Name && n == 3, s.Sweep == groups.Name && n == 3:
		s.Account, s.Store, s.Space = parts[0], parts[1], parts[2]
	case s.Sweep == StatsSweep && n == 1:
		s.Account = parts[0]
	case s.Sweep == DuplicationSweep && n == 4:
		s.Account, s.Space, s.Store, s.Destination = parts[0], parts[1], parts[2], parts[3]
	default:
		return s, false
	}
	return s, true
}

// splitOf returns the split of a checkpoint; false if it is not that of a sweep.
func splitOf(c *pb.Checkpoint) (s SplitStatus, ok bool) {
	if s, ok = namesOf(c.GetSweep(), c.GetSplit()); !ok {
		return s, false
	}
	s.State, s.Round = SplitDone, c.GetRound()
	s.Started, s.Updated = c.GetStarted().AsTime(), c.GetTime().AsTime()
	if c.GetFinished() == nil {
		s.State = SplitRunning
	} else {
		s.Finished = c.GetFinished().AsTime()
	}
	s.Emitted, s.Share = c.GetEmitted(), -1
	switch s.Sweep {
	case sweep.FixitySweep:
		s.Compared, s.Bytes = c.GetCounts()[sweep.Requested], c.GetCounts()[sweep.RequestedBytes]
		s.waits = sweep.OnlyWaits(c)
		return s, true
	case StatsSweep:
		s.Compared, s.Bytes = c.GetCounts()["items"], c.GetCounts()["bytes"]
		return s, true
	case groups.Name: // its counts have no sizes
		s.Bytes = -1
	}
	for what, n := range c.GetCounts() {
		if strings.HasSuffix(what, "_bytes") {
			s.Bytes += n
			continue
		}
		s.Compared += n
		if slices.Contains([]string{"adopted", "extra", "resurrected"}, what) {
			s.added += n
		}
	}
	return s, true
}

// fail adds the end of the last run. It counts if it is of the same round.
func (s *SplitStatus) fail(last read.Iteration) {
	if last.Error == "" || !last.Started.Equal(s.Started.Truncate(time.Millisecond)) {
		return
	}
	s.Failed, s.Error = last.Finished, last.Error
	if s.State == SplitRunning && !s.Failed.Before(s.Updated.Truncate(time.Millisecond)) {
		s.State = SplitFailed
	}
}

// share sets Share from the number of live items on record now.
func (s *SplitStatus) share(live int64) {
	recorded, done := live-s.added, s.Compared-s.added
	if s.Sweep == sweep.FixitySweep || s.Sweep == groups.Name || !s.Unfinished() || recorded <= 0 || done > recorded {
		return // not all copies are looked at; and more items than on record are a store that is taken in
	}
	s.Share = float64(done) / float64(recorded)
}

// SweepStatus returns the splits of all sweeps that have had a round, and those of the scheduled fixity, reconcile,
// groups and stats sweeps that have not, sorted. A store that does not answer has a split with SplitUnknown.
func (a *App) SweepStatus(ctx context.Context) (all []SplitStatus, err error) {
	known, err := a.newCheckpoints()
	if err != nil {
		return nil, err
	}
	if err := a.readSchedules(ctx); err != nil {
		return nil, err
	}
	err = a.withControls(ctx, func(ctx context.Context, k *client.Controls) error {
		return withTable(ctx, known.Table, func(ctx context.Context) error {
			all, err = a.splits(ctx, known.all())
			if err != nil {
				return err
			}
			inactive := a.stores.inactive()
			for i := range all {
				s := &all[i]
				blocked := a.sweepBlocked(k, s.Sweep, StoreName{s.Account, s.Store})
				switch {
				case s.Sweep == StatsSweep:
					blocked = statsBlocked(k, s.Account)
				case s.Destination != "":
					blocked = a.pairBlocked(k, pairs.Pair{Account: s.Account, Source: s.Store, Destination: s.Destination})
				}
				paused := errors.Is(blocked(ctx), sweep.ErrPaused)
				switch {
				case s.State == SplitUnknown:
				case !s.ByHand && !a.isSelected(s):
					s.State = SplitExcluded
				case paused || slices.Contains(inactive, s.Account):
					s.State = SplitPaused
				default:
					s.Next = a.nextStart(s, time.Now())
				}
			}
			return nil
		})
	})
	return all, err
}

// isSelected reports whether the scheduled rounds cover the split.
func (a *App) isSelected(s *SplitStatus) bool {
	return a.selects(s.Sweep, StoreName{s.Account, s.Store}, s.Space) &&
		(s.Destination == "" || a.selects(s.Sweep, StoreName{s.Account, s.Destination}, s.Space))
}

// nextStart returns when the round after the last one of a split is due; of a split without one, when the first is. The
// zero time: there are no scheduled rounds.
func (a *App) nextStart(s *SplitStatus, now time.Time) time.Time {
	of := a.scheduleOf(s.Sweep, s.places()...)
	switch {
	case s.ByHand || of.Off():
		return time.Time{}
	case s.Started.IsZero():
		return of.Next(time.Time{}, now).UTC()
	}
	return of.Next(s.Started, s.Started).UTC()
}

// all returns the newest checkpoint of each split.
func (c *checkpoints) all() (all []*pb.Checkpoint) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.byKey {
		if p != nil {
			all = append(all, p)
		}
	}
	return all
}

func (a *App) splits(ctx context.Context, points []*pb.Checkpoint) ([]SplitStatus, error) {
	ends, err := read.Iterations(ctx, a.db, read.JobQuery{Newest: true})
	if err != nil {
		return nil, err
	}
	lastEnd := map[string]read.Iteration{}
	for _, end := range ends {
		lastEnd[end.Name] = end
	}
	byKey := map[string]SplitStatus{}
	for _, c := range points {
		if s, ok := splitOf(c); ok {
			s.fail(lastEnd[c.GetSweep()+"/"+c.GetSplit()])
			byKey[s.key()] = s
		}
	}
	for _, s := range a.scheduledSplits(ctx) {
		if _, ok := byKey[s.key()]; !ok {
			byKey[s.key()] = s
		}
	}
	all := slices.SortedFunc(maps.Values(byKey), func(a, b SplitStatus) int { return cmp.Compare(a.key(), b.key()) })
	return all, errors.Join(context.Cause(ctx), a.shares(ctx, all))
}

func (s *SplitStatus) key() string {
	return schemas.Key(s.Sweep, fmt.Sprint(s.ByHand), s.Account, s.Store, s.Space, s.Destination)
}

// scheduledSplits returns the splits of the scheduled sweeps but the duplication sweep, without rounds.
func (a *App) scheduledSplits(ctx context.Context) (all []SplitStatus) {
	stores := a.stores.storeNames()
	spaces, failed := make([][]string, len(stores)), make([]error, len(stores))
	var asking sync.WaitGroup
	for i, n := range stores {
		asking.Go(func() {
			spaces[i], failed[i] = inTime(ctx, func(ctx context.Context) ([]string, error) {
				return a.spacesOf(ctx, n, newSpaceLists())
			})
		})
	}
	asking.Wait()
	for _, acc := range a.stores.inForce() {
		all = append(all, SplitStatus{Sweep: StatsSweep, Account: acc.ID, State: SplitNever, Share: -1,
			Bytes: -1})
	}
	for i, n := range stores {
		for _, name := range []string{sweep.FixitySweep, groups.Name, reconcile.Name} {
			never := SplitStatus{Sweep: name, Account: n.Account, Store: n.Store, State: SplitNever, Share: -1,
				Bytes: -1}
			if failed[i] != nil {
				never.State, never.Error = SplitUnknown, failed[i].Error()
				all = append(all, never)
			}
			for _, space := range spaces[i] {
				never.Space = space
				all = append(all, never)
			}
		}
	}
	return all
}

// mostWaiting bounds the fixity rounds whose results are counted: each takes a query.
const mostWaiting = 200

// shares sets the shares of unfinished rounds.
func (a *App) shares(ctx context.Context, all []SplitStatus) error {
	live := map[string]int64{}
	asked := map[string]bool{}
	waiting := 0
	for i := range all {
		s := &all[i]
		if s.waits {
			if waiting++; waiting <= mostWaiting {
				if err := a.shareOfResults(ctx, s); err != nil {
					return err
				}
			}
			continue
		}
		if !s.Unfinished() || s.Sweep == sweep.FixitySweep || s.Sweep == groups.Name {
			continue
		}
		if !asked[s.Account] {
			asked[s.Account] = true
			status, err := read.FixityStatus(ctx, a.db, read.StatusQuery{Account: s.Account})
			if err != nil {
				return err
			}
			for _, n := range status {
				live[schemas.Key(s.Account, n.Store, n.Space)] = int64(n.Live)
			}
		}
		s.share(live[schemas.Key(s.Account, s.Store, s.Space)])
	}
	return nil
}

// shareOfResults sets Share of a fixity round that waits for its results.
func (a *App) shareOfResults(ctx context.Context, s *SplitStatus) error {
	p, err := read.SpaceRoundProgress(ctx, a.db, read.SpaceRound{Round: s.Round, Started: s.Started, Since: s.Started,
		Space: schemas.Copy{Account: s.Account, Store: s.Store, Space: s.Space}})
	if err == nil && s.Compared > 0 {
		s.Share, s.measured = min(1, float64(p.Final)/float64(s.Compared)), time.Now().UTC().Truncate(time.Second)
	}
	return err
}
