package limit

// A State says whether a store is used.
type State int

// The states of a breaker. The zero one is that of a store that works.
const (
	// Closed: every operation goes through.
	Closed State = iota
	// HalfOpen: one operation at a time goes through, to see whether the store is back.
	HalfOpen
	// Open: no operation goes through.
	Open
)

// String returns the state's name, as it stands in logs and metrics.
func (s State) String() string {
	switch s {
	case HalfOpen:
		return "half-open"
	case Open:
		return "open"
	}
	return "closed"
}

// An event is what a breaker learns.
type event int

const (
	nothing  event = iota // says nothing about the store
	answered              // the store works, whatever it answered
	opened                // it answered that there are bytes, which are still to come
	streamed              // bytes came or went, as many as were asked for
	failed                // the store may be away
	hung                  // bytes that were begun did not come or go in time
	away                  // the store is away
	due                   // it was away long enough to be asked again
)

// A machine is what a breaker knows but for times.
type machine struct {
	state    State
	failures int // while closed: since the last answer
	rounds   int // while not closed: how often it opened
	// hangs are streams that hung: while closed, since the last one that did not. A store that answers
	// what it knows by heart, and hangs where a disk must turn, is no use.
	hangs int
	// streams: it opened as streams hung, and only one that does not brings it back.
	streams bool
}

// step returns what becomes of m. It is all that decides about states.
func (m machine) step(e event, threshold int) machine {
	switch m.state {
	case Closed:
		switch {
		case e == answered, e == opened:
			m.failures = 0
		case e == streamed:
			return machine{}
		case e == away, e == failed && m.failures+1 >= threshold:
			return machine{state: Open, rounds: 1}
		case e == hung && m.hangs+1 >= threshold:
			return machine{state: Open, rounds: 1, streams: true}
		case e == failed:
			m.failures++
		case e == hung:
			m.hangs++
		}
	case Open: // what was begun before and ends now is late
		if e == due {
			m.state = HalfOpen
		}
	case HalfOpen:
		switch {
		case e == streamed, !m.streams && (e == answered || e == opened):
			return machine{}
		case e == failed, e == away, e == hung:
			return machine{state: Open, rounds: m.rounds + 1, streams: m.streams || e == hung}
		}
	}
	return m
}
