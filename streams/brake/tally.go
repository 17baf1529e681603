package brake

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// Limits are the limits of a brake: more deletes, or rewrites, than these within an hour, or than three times these
// within 30 days, wait for approval. They hold for a space at a destination.
type Limits struct {
	MaxShare float64 // of the live copies when the window began; 1: no limit
	MaxCount int64
}

const (
	// free is the number of deletes, or rewrites, for which the share does not count: 10 % of a small space is nothing.
	free        = 9
	storeFree   = 999 // for all spaces of a store
	storeShare  = 0.1
	monthFactor = 3
)

// A usage is what a brake decides from: the deletes, or the rewrites, of a space at a destination in both windows, with
// those that are not counted yet, and its live copies when the windows began.
type usage struct {
	hour, hourLive   int64
	month, monthLive int64
	store            bool // of all spaces at the destination
}

// A limit is a row of the brake's table.
type limit string

// The rows. The tightest limit is named. SHARE and COUNT stand for the settings of the kind.
const (
	withinLimits limit = ""
	hourCount    limit = "COUNT within an hour"
	hourShare    limit = "SHARE within an hour"
	monthCount   limit = "three times COUNT within 30 days"
	monthShare   limit = "three times SHARE within 30 days"
	storeHour    limit = "a tenth of the copies of the store within an hour"
	storeMonth   limit = "three tenths of the copies of the store within 30 days"
)

// brake returns how many more deletes may be done, and if none may, the limit that is reached.
func brake(u usage, l Limits) (int64, limit) {
	free, hour, month := freeOf(u.store), hourShare, monthShare
	if u.store {
		l, hour, month = Limits{storeShare, math.MaxInt64}, storeHour, storeMonth
	}
	left, reached := int64(math.MaxInt64), withinLimits
	for _, r := range []struct {
		limit limit
		most  int64
		done  int64
	}{
		{hourCount, l.MaxCount, u.hour},
		{hour, l.share(u.hourLive, free), u.hour},
		{monthCount, times(l.MaxCount, monthFactor), u.month},
		{month, times(l.share(u.monthLive, free), monthFactor), u.month},
	} {
		if n := max(0, r.most-r.done); n < left {
			left, reached = n, r.limit
		}
	}
	if left > 0 {
		return left, withinLimits
	}
	return 0, reached
}

func freeOf(store bool) int64 {
	if store {
		return storeFree
	}
	return free
}

// share returns how many of the live copies may be deleted, or replaced, within an hour, but free at least.
func (l Limits) share(live, free int64) int64 {
	if l.MaxShare >= 1 {
		return math.MaxInt64
	}
	const rounding = 1e-9 // of a product such as 0.29 × 100
	return max(free, int64(l.MaxShare*float64(live)+rounding))
}

// times returns n × factor, or the largest number if that is larger.
func times(n, factor int64) int64 {
	if n > math.MaxInt64/factor {
		return math.MaxInt64
	}
	return n * factor
}

const (
	slotSeconds  = 5 * 60 // length of a bucket of the hour
	daySeconds   = 24 * 60 * 60
	hourSeconds  = 60 * 60
	monthSeconds = 30 * daySeconds
)

// A bucket counts the deletes, or the rewrites, of a part of a window.
type bucket struct {
	Start int64 `json:"start"` // Unix time in seconds
	Count int64 `json:"count"`
	Live  int64 `json:"live,omitempty"` // live copies when a day began; not set in buckets of the hour
}

// tally is the state of the brake for one space at one destination, or for one destination. It is the content of a
// checkpoint, at most 13 and 31 buckets. A tally in use is never changed.
type tally struct {
	// Seq orders the checkpoints of a space: of two with the same number the first one counts.
	Seq int64 `json:"seq"`
	// Counted says that the tally was counted from the records, because there was no checkpoint.
	Counted bool `json:"counted,omitempty"`
	// New is what the checkpoint counts, at the time of its record.
	New  int64    `json:"new,omitempty"`
	Hour []bucket `json:"hour,omitempty"`
	Days []bucket `json:"days,omitempty"`
	// Live is the number of live copies when the window of the hour began, which was read at LiveAt.
	Live   int64 `json:"live"`
	LiveAt int64 `json:"live_at"`

	dated, read time.Time // the time of the record, and when this process has read it
}

func decodeTally(c *pb.Checkpoint) (*tally, error) {
	t := new(tally)
	if err := json.Unmarshal(c.GetCursor(), t); err != nil {
		return nil, fmt.Errorf("read checkpoint %q of the brake: %w", c.GetSplit(), err)
	}
	return t, nil
}

// next returns a copy of t that may be changed and written in its place.
func (t *tally) next() *tally {
	c := *t
	c.Counted = false
	c.Hour, c.Days = slices.Clone(t.Hour), slices.Clone(t.Days)
	return &c
}

// date counts New, and forgets the buckets that are in no window any more. The broker and the writer have dated the
// record, and a wrong clock empties no window: time goes on from the record before as far as both say. New has the
// later time, so it does not end early; what is in the future is moved when both say that it is.
func (t *tally) date(broker, writer, before time.Time) {
	times := []time.Time{broker, writer, before}
	last := slices.MaxFunc(times[:2], time.Time.Compare)
	slices.SortFunc(times, time.Time.Compare)
	t.dated, t.read = times[1], time.Now()
	t.add(last, t.New)
	t.New = 0
	t.Hour = within(t.Hour, slotSeconds, hourSeconds, t.dated, last)
	t.Days = within(t.Days, daySeconds, monthSeconds, t.dated, last)
}

// now returns the time by the record of t and what has passed since it was read: Kafka's time, or an earlier one.
func (t *tally) now() time.Time { return t.dated.Add(time.Since(t.read)) }

// within returns the buckets of a length that are in a window at now, none later than last. A bucket counts until all
// of it is out of the window.
func within(all []bucket, length, window int64, now, last time.Time) (in []bucket) {
	for _, b := range all {
		if b.Start = min(b.Start, start(last, length)); b.Start+length > now.Unix()-window {
			in = addTo(in, b)
		}
	}
	return in
}

// usage returns the usage at now.
func (t *tally) usage(now time.Time) usage {
	u := usage{hourLive: t.Live, monthLive: t.Live}
	for _, b := range within(t.Hour, slotSeconds, hourSeconds, now, now) {
		u.hour += b.Count
	}
	for i, b := range within(t.Days, daySeconds, monthSeconds, now, now) {
		if u.month += b.Count; i == 0 {
			u.monthLive = b.Live
		}
	}
	return u
}

// liveIsOld reports whether the live copies must be counted again: a window of an hour has passed. Few rewrites or
// repairs do not depend on them, so that these go on for a day while the records are unknown.
func (t *tally) liveIsOld(k Kind, store bool, now time.Time) bool {
	age, most, free := now.Unix()-t.LiveAt, int64(hourSeconds), freeOf(store)
	if u := t.usage(now); k != Deletes && u.hour < free && u.month < monthFactor*free {
		most = daySeconds
	}
	return age >= most || age < -slotSeconds
}

// add counts n deletes at a time.
func (t *tally) add(at time.Time, n int64) {
	t.Hour = addTo(t.Hour, bucket{Start: start(at, slotSeconds), Count: n})
	t.Days = addTo(t.Days, bucket{Start: start(at, daySeconds), Count: n, Live: t.Live})
}

// start returns the start of the bucket of a length that has t.
func start(t time.Time, length int64) int64 { return t.Unix() - t.Unix()%length }

func addTo(all []bucket, b bucket) []bucket {
	i, ok := slices.BinarySearchFunc(all, b.Start, func(x bucket, start int64) int { return cmp.Compare(x.Start, start) })
	switch {
	case ok:
		all[i].Count += b.Count
	case b.Count > 0:
		all = slices.Insert(all, i, b)
	}
	return all
}

// A Kind is what a brake limits.
type Kind int

// The kinds.
const (
	Deletes Kind = iota
	Rewrites
	Repairs // of missing copies; only a share limits them
)

func (k Kind) String() string { return [...]string{"deletes", "rewrites", "repairs"}[k] }

// sweep returns the sweep of the checkpoints of a kind. Their split is the key of account, destination and space.
func (k Kind) sweep() string { return [...]string{"brake", "brake-rewrites", "brake-repairs"}[k] }

// name returns a limit with the settings of a kind.
func (k Kind) name(l limit) string {
	of := [...][2]string{{"deletes.max_share", "deletes.max_count"}, {"replaced.max_share", "replaced.max_count"},
		{"sweep.max_missing", ""}}[k]
	return strings.NewReplacer("SHARE", of[0], "COUNT", of[1]).Replace(string(l))
}
