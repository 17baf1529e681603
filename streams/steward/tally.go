package steward

import (
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/incident"
)

// A tally counts the incidents of copies: those that were opened in a time by what they have in common, and the missing
// copies of each space of a store. The zero value is empty.
type tally struct {
	opened  map[incident.Subject]histogram // by the subject of the parent that they would have
	missing map[schemas.Copy]*losses       // by space of a store
}

// losses count the missing copies of a space of a store.
type losses struct {
	open     int64     // open incidents
	repaired histogram // closed ones whose repair was ordered, by the time when they were opened
}

// add counts an incident n times; nil is none.
func (t *tally) add(i *pb.Incident, n int64) {
	if i == nil {
		return
	}
	if t.opened == nil {
		t.opened, t.missing = map[incident.Subject]histogram{}, map[schemas.Copy]*losses{}
	}
	opened := i.GetOpened().AsTime()
	for _, s := range [...]scope{ofSpace, ofStore, ofWorker} {
		g := groupOf(i, s)
		if g.Kind == "" {
			continue
		}
		if t.opened[g] == nil {
			t.opened[g] = histogram{}
		}
		t.opened[g].add(opened, n)
		if len(t.opened[g]) == 0 {
			delete(t.opened, g)
		}
	}
	if i.GetKind() != kindMissing {
		return
	}
	space := schemas.CopyOf(i).WithoutItem()
	l := t.missing[space]
	if l == nil {
		l = &losses{repaired: histogram{}}
		t.missing[space] = l
	}
	switch {
	case !closed(i):
		l.open += n
	case i.GetRepairs() > 0:
		l.repaired.add(opened, n)
	}
	if l.open == 0 && len(l.repaired) == 0 {
		delete(t.missing, space)
	}
}

// recent counts the incidents that were opened within groupWindow of i, by what they have in common with i.
func (t *tally) recent(i *pb.Incident) recent {
	at := i.GetOpened().AsTime()
	count := func(s scope) int { return int(t.opened[groupOf(i, s)].around(at, groupWindow)) }
	return recent{space: count(ofSpace), store: count(ofStore), worker: count(ofWorker)}
}

// lost counts the copies of a space of a store that are missing, or were missing since a time and were repaired.
func (t *tally) lost(space schemas.Copy, since time.Time) int64 {
	l := t.missing[space]
	if l == nil {
		return 0
	}
	return l.open + l.repaired.since(since)
}

// A histogram is a number of events in each minute.
type histogram map[int64]int64

func minute(at time.Time) int64 { return at.Unix() / 60 }

// add adds n events at a time.
func (h histogram) add(at time.Time, n int64) {
	m := minute(at)
	if h[m] += n; h[m] == 0 {
		delete(h, m)
	}
}

// around returns the number of events that are at most window before or after a time.
func (h histogram) around(at time.Time, window time.Duration) (n int64) {
	for m := minute(at.Add(-window)); m <= minute(at.Add(window)); m++ {
		n += h[m]
	}
	return n
}

// since returns the number of events in the minute of a time and later.
func (h histogram) since(at time.Time) (n int64) {
	for m, events := range h {
		if m >= minute(at) {
			n += events
		}
	}
	return n
}
