package steward

import (
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// A tally counts the missing copies of each space of a store. The zero value is empty.
type tally map[schemas.Copy]*losses

// losses count the missing copies of a space of a store.
type losses struct {
	open     int64     // open incidents
	waiting  int64     // open incidents whose repair waits for approval
	held     int64     // waiting incidents whose repair was held and was not approved before
	repaired histogram // closed ones whose repair was ordered, by the time when they were opened
}

// add counts an incident n times; nil is none.
func (t tally) add(i *pb.Incident, n int64) {
	if i.GetKind() != kindMissing {
		return
	}
	space := schemas.CopyOf(i).WithoutItem()
	l := t[space]
	if l == nil {
		l = &losses{repaired: histogram{}}
		t[space] = l
	}
	switch {
	case !closed(i):
		l.open += n
		if i.GetState() == pb.IncidentState_INCIDENT_STATE_AWAITING_APPROVAL {
			l.waiting += n
			if hasStep(i, stepHeld) && !hasStep(i, stepApproved) {
				l.held += n
			}
		}
	case i.GetRepairs() > 0:
		l.repaired.add(i.GetOpened().AsTime(), n)
	}
	if l.open == 0 && len(l.repaired) == 0 {
		delete(t, space)
	}
}

// lost counts the copies of a space of a store that are missing, or were missing since a time and were repaired.
func (t tally) lost(space schemas.Copy, since time.Time) int64 {
	l := t[space]
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

// since returns the number of events in the minute of a time and later.
func (h histogram) since(at time.Time) (n int64) {
	for m, events := range h {
		if m >= minute(at) {
			n += events
		}
	}
	return n
}
