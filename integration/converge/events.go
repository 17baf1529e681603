package converge

import (
	"math/rand/v2"
	"slices"
	"time"
)

// A Fault is something that befalls a run.
type Fault string

// The faults. Those of an item have an item of their own in each event, so that what follows is known.
const (
	Kill        Fault = "kill"   // a process, which is started again after For
	Freeze      Fault = "freeze" // a process, for For
	Pause       Fault = "pause"  // a role, for For, as an operator does
	Unavailable Fault = "away"   // a store, for For
	ClockStep   Fault = "step"   // the clock of the machine of a store, by For

	// Empty: ClickHouse loses all that it has. Restore: it is restored from a backup that was made before the clients began.
	// What it lacks is rebuilt.
	Empty   Fault = "empty"
	Restore Fault = "restore"

	// PutBack: a client deletes an item and puts the same bytes back while a slow store is asked to delete its copy.
	PutBack Fault = "put back"
	// Lose: the source and the first copy of an item are lost.
	Lose Fault = "lose"
	// LoseAndGuess: the same, and a guess says that the source is gone.
	LoseAndGuess Fault = "lose and guess"
	// LoseAndBack: a copy is lost, its source deleted, and put again at once.
	LoseAndPutBack Fault = "lose and back"
	// KillCopier: the copiers are killed when a copy is there and nobody was told, and its source is deleted.
	KillCopier Fault = "kill copier"
	// TakeOut: a store is taken out of the configuration for For, items are deleted meanwhile, and it is put back.
	RemoveStore Fault = "take out"

	// Decide: a person approves the repair of a lost copy and closes the incident of another when they are open, and the
	// process of the steward is killed, which is started again after For.
	Decide Fault = "decide"
	// Garble: a record that cannot be decoded comes into a topic. In policies a revision follows it; in others a person
	// closes its incident.
	CorruptRecord Fault = "garble"
	// Vanish: a space is lost with all that is in it, declared gone, and expected again when its copies are back.
	LoseSpace Fault = "vanish"
)

// An Event is a fault of a run.
type Event struct {
	At     time.Duration // since the clients began
	Fault  Fault
	Target string        // the process, role, store, space or topic
	For    time.Duration // how long, or by how much
}

// Names are what faults befall.
type Names struct {
	Processes []string // that may be killed or frozen
	Roles     []string
	Stores    []string // that may be away
	Clock     string   // the store whose machine has a clock of its own
	Removable string   // the store that may be taken out
	Engine    string
	Spaces    []string // where items are lost
	Steward   string   // the process that has the role
	Topics    []string // where a record comes that cannot be decoded
	LostSpace string   // the space that is lost
}

// Short are the events of the short form: each kind at least once.
func Short(n Names) []Event {
	s := time.Second
	return []Event{
		{0, CorruptRecord, n.Topics[0], 0}, // before the deletes that must not be kept
		{1 * s, LoseSpace, n.LostSpace, 0},
		{1 * s, LoseAndPutBack, n.Clock, 0}, // while its clock is behind
		{1 * s, LoseAndGuess, n.Spaces[0], 0},
		{2 * s, LoseAndGuess, n.Spaces[1], 0},
		{3 * s, CorruptRecord, n.Topics[1], 0},
		{5 * s, Lose, n.Spaces[0], 0},
		{5 * s, Lose, n.Spaces[1], 0},
		{6 * s, Decide, n.Steward, s / 2},
		{7 * s, Freeze, n.Processes[0], 3 * s},
		{11 * s, ClockStep, n.Clock, 92 * s},
		{12 * s, KillCopier, n.Clock, 0}, // while its clock is not
		{14 * s, Unavailable, n.Stores[len(n.Stores)-1], 3 * s},
		{17 * s, Pause, n.Roles[0], 3 * s},
		{20 * s, Kill, n.Processes[1], s},
		{22 * s, Freeze, n.Processes[2], 7 * s},
		{29 * s, RemoveStore, n.Removable, 2 * s},
		{33 * s, Restore, n.Engine, 0},
		{34 * s, Empty, n.Engine, 0},
		// Last: when a process dies, commands are executed once more, which mends much.
		{36 * s, PutBack, n.Clock, 0},
		{37 * s, PutBack, n.Clock, 0},
		{38 * s, PutBack, n.Clock, 0},
		{39 * s, PutBack, n.Clock, 0},
	}
}

// Events returns the events of a longer run with this seed, in the order of time: those of items come all the time, those
// of processes, roles and stores one after the other.
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
