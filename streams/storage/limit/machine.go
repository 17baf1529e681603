package limit

// A State is the state of a Breaker.
type State int

// The states of a breaker; the zero value is that of a working store.
const (
	// Closed: all operations are admitted.
	Closed State = iota
	// HalfOpen: one operation at a time is admitted, as a probe.
	HalfOpen
	// Open: no operation is admitted.
	Open
)

// String returns the state's name in logs and metrics.
func (s State) String() string {
	switch s {
	case HalfOpen:
		return "half-open"
	case Open:
		return "open"
	}
	return "closed"
}

// An event is an input of a machine.
type event int

const (
	nothing     event = iota // says nothing about the store
	answered                 // the store answered, with whatever result
	opened                   // the store answered that there are bytes, which follow
	streamed                 // the bytes were transferred
	failed                   // the store may be unavailable
	hung                     // a transfer that began did not end in time
	unavailable              // the store is unavailable
	due                      // the next probe is due
)

// A machine is the state of a breaker without its times.
type machine struct {
	state    State
	failures int // while closed: since the last answer
	rounds   int // while not closed: how often it opened
	// hangs counts hung streams: while closed, since the last complete one. A store that answers from its
	// cache and hangs on its disk is of no use.
	hangs int
	// streams: hung streams opened the breaker, and only a complete stream closes it.
	streams bool
}

// step returns the machine after an event. All decisions about states are made here.
func (m machine) step(e event, threshold int) machine {
	switch m.state {
	case Closed:
		switch {
		case e == answered, e == opened:
			m.failures = 0
		case e == streamed:
			return machine{}
		case e == unavailable, e == failed && m.failures+1 >= threshold:
			return machine{state: Open, rounds: 1}
		case e == hung && m.hangs+1 >= threshold:
			return machine{state: Open, rounds: 1, streams: true}
		case e == failed:
			m.failures++
		case e == hung:
			m.hangs++
		}
	case Open: // results of operations admitted earlier are late
		if e == due {
			m.state = HalfOpen
		}
	case HalfOpen:
		switch {
		case e == streamed, !m.streams && (e == answered || e == opened):
			return machine{}
		case e == failed, e == unavailable, e == hung:
			return machine{state: Open, rounds: m.rounds + 1, streams: m.streams || e == hung}
		}
	}
	return m
}
