package converge

import (
	"math/rand/v2"
	"slices"
	"time"
)

// Fault is a kind of injected fault.
type Fault string

// The faults. Each event of an item fault uses a different item, so that its effects are known.
const (
	Kill        Fault = "kill"        // kill a process and restart it after For
	Freeze      Fault = "freeze"      // suspend a process for For
	Pause       Fault = "pause"       // pause a role for For, as an operator does
	Unavailable Fault = "unavailable" // make a store unavailable for For
	ClockStep   Fault = "clock step"  // step the clock of a store's machine by For

	// Empty: ClickHouse loses all its data, which is then rebuilt.
	Empty Fault = "empty"
	// Restore: ClickHouse is restored from a backup from before the clients started. Later data is rebuilt.
	Restore Fault = "restore"

	// PutBack: a client deletes an item and puts the same bytes back while a slow store deletes its copy.
	PutBack Fault = "put back"
	// Lose: the source and the first copy of an item are lost.
	Lose Fault = "lose"
	// LoseAndGuess: the same, and a guessed delete of the source is published.
	LoseAndGuess Fault = "lose and guess"
	// LoseAndPutBack: a copy is lost, and its source is deleted and at once put again.
	LoseAndPutBack Fault = "lose and put back"
	// KillCopier: the copiers are killed between writing and publishing a copy, and its source is deleted.
	KillCopier Fault = "kill copier"
	// RemoveStore: a store is removed from the configuration for For. Items are deleted before it is added again.
	RemoveStore Fault = "remove store"

	// Decide: an operator approves the repair of a lost copy and closes the open incident of another. The steward's
	// process is killed and restarted after For.
	Decide Fault = "decide"
	// CorruptRecord: a topic gets a record that cannot be decoded. In topic policies a new revision follows; for other
	// topics an operator closes the incident.
	CorruptRecord Fault = "corrupt record"
	// LoseSpace: a space is lost with its items, declared gone, and expected again when its copies are restored.
	LoseSpace Fault = "lose space"
)

// Event is a fault at a time in a run.
type Event struct {
	At     time.Duration // since the clients started
	Fault  Fault
	Target string        // a process, role, store, space or topic
	For    time.Duration // how long, or by how much
}

// Names lists the targets of faults.
type Names struct {
	Processes []string // processes to kill or freeze
	Roles     []string
	Stores    []string // stores to make unavailable
	Clock     string   // the store on a machine with a separate clock
	Removable string   // the store to remove from the configuration
	Engine    string
	Spaces    []string // spaces in which items are lost
	Steward   string   // the process that runs the steward
	Topics    []string // topics that get records that cannot be decoded
	LostSpace string   // the space to lose
}

// Short returns the events of the short form. Each kind of fault occurs at least once.
func Short(n Names) []Event {
	s := time.Second
	return []Event{
		{0, CorruptRecord, n.Topics[0], 0}, // before deletes that copies must follow
		{1 * s, LoseSpace, n.LostSpace, 0},
		{1 * s, LoseAndPutBack, n.Clock, 0}, // while the store's clock is slow
		{1 * s, LoseAndGuess, n.Spaces[0], 0},
		{2 * s, LoseAndGuess, n.Spaces[1], 0},
		{3 * s, CorruptRecord, n.Topics[1], 0},
		{5 * s, Lose, n.Spaces[0], 0},
		{5 * s, Lose, n.Spaces[1], 0},
		{6 * s, Decide, n.Steward, s / 2},
		{7 * s, Freeze, n.Processes[0], 3 * s},
		{11 * s, ClockStep, n.Clock, 92 * s},
		{12 * s, KillCopier, n.Clock, 0}, // after the store's clock was stepped forward
		{14 * s, Unavailable, n.Stores[len(n.Stores)-1], 3 * s},
		{17 * s, Pause, n.Roles[0], 3 * s},
		{20 * s, Kill, n.Processes[1], s},
		{22 * s, Freeze, n.Processes[2], 7 * s},
		{29 * s, RemoveStore, n.Removable, 2 * s},
		{33 * s, Restore, n.Engine, 0},
		{34 * s, Empty, n.Engine, 0},
		// Last, because the death of a process repeats commands and so repairs many deviations.
		{36 * s, PutBack, n.Clock, 0},
		{37 * s, PutBack, n.Clock, 0},
		{38 * s, PutBack, n.Clock, 0},
		{39 * s, PutBack, n.Clock, 0},
	}
}

// Events returns the events of a longer run with the given seed, ordered by time. Faults of items overlap with all
// others. Faults of processes, roles and stores come one after the other.
func Events(seed uint64, n Names, length time.Duration) []Event {
	r := rand.New(rand.NewPCG(seed, 2))
	pick := func(all []string) string { return all[r.IntN(len(all))] }
	var all []Event
	for at := time.Second; at < length; at += between(r, 2*time.Second, 6*time.Second) {
		e := Event{At: at, Fault: PutBack, Target: n.Clock}
		switch r.IntN(13) {
		case 0, 1:
			e.Fault, e.Target = LoseAndGuess, pick(n.Spaces)
		case 2, 3:
			e.Fault, e.Target = Lose, pick(n.Spaces)
		case 4, 5:
			e.Fault = LoseAndPutBack
		case 6:
			e.Fault, e.Target = LoseSpace, n.LostSpace
		}
		all = append(all, e)
	}
	for at := 3 * time.Second; at < length; {
		e := Event{At: at}
		switch r.IntN(13) {
		case 0, 1:
			e.Fault, e.Target, e.For = Kill, pick(n.Processes), between(r, 0, 3*time.Second)
		case 2:
			e.Fault, e.Target, e.For = Freeze, pick(n.Processes), between(r, time.Second, 8*time.Second)
		case 3:
			e.Fault, e.Target, e.For = Pause, pick(n.Roles), between(r, time.Second, 6*time.Second)
		case 4:
			e.Fault, e.Target, e.For = Unavailable, pick(n.Stores), between(r, time.Second, 8*time.Second)
		case 5:
			e.Fault, e.Target, e.For = ClockStep, n.Clock, between(r, -20*time.Second, 40*time.Second)
		case 6:
			e.Fault, e.Target = KillCopier, n.Clock
		case 7:
			e.Fault, e.Target, e.For = RemoveStore, n.Removable, between(r, 4*time.Second, 12*time.Second)
		case 8:
			e.Fault, e.Target = Restore, n.Engine
		case 9:
			e.Fault, e.Target = Empty, n.Engine
		case 10, 11:
			e.Fault, e.Target, e.For = Decide, n.Steward, between(r, 0, 2*time.Second)
		case 12:
			e.Fault, e.Target = CorruptRecord, pick(n.Topics)
		}
		all = append(all, e)
		at += max(e.For, 0) + between(r, 2*time.Second, 8*time.Second)
	}
	slices.SortStableFunc(all, func(a, b Event) int { return int(a.At - b.At) })
	return all
}
