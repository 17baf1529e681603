package integration

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/need"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// A clockStep is one step of a script: what happens, to which store or clock, with which of several things, by how much.
type clockStep struct {
	do  string
	who string
	n   int
	by  time.Duration
}

func (s clockStep) String() string {
	return strings.TrimSpace(fmt.Sprintf("%s %s %d %s", s.do, s.who, s.n, s.by))
}

// in2200 is how far a clock of 2200 is ahead.
var in2200 = time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC).Sub(clockStart)

// drawStep draws a step. It runs outside of bubbles.
func drawStep(dice *rand.Rand) clockStep {
	pick := func(of ...string) string { return of[dice.IntN(len(of))] }
	s := clockStep{n: dice.IntN(100)}
	s.do = pick("put", "put", "put", "put late", "delete", "delete late", "report", "report", "report again",
		"deliver", "deliver", "deliver", "deliver all", "deliver again", "kill", "kill", "rot", "lose", "check", "arrive",
		"removed", "reconcile", "pair", "wait", "wait", "put ahead", "clock", "clock", "snapshot", "restore")
	switch s.do {
	case "put ahead":
		s.by = []time.Duration{time.Hour, in2200}[dice.IntN(2)]
	case "snapshot", "restore":
		s.who = pick("1", "1", "2")
	case "rot", "lose", "check", "reconcile":
		s.who = pick("1", "2", "3")
	case "pair":
		s.who = pick("2", "3")
	case "clock":
		s.who = pick(clockNames...)
		s.by = []time.Duration{0, 3 * time.Second, -3 * time.Second, time.Hour, -time.Hour, 3 * year, -3 * year}[dice.IntN(7)]
	case "wait":
		s.by = []time.Duration{time.Second, 2 * time.Hour, 25 * time.Hour}[dice.IntN(3)]
	}
	return s
}

// run executes a script. Its clocks are further ahead of Kafka's by shift.
func (w *clockWorld) run(script []clockStep, shift time.Duration) error {
	w.shiftBy(shift)
	for i, s := range script {
		if err := w.step(s); err != nil {
			return fmt.Errorf("step %d, %s: %w", i, s, err)
		}
	}
	for _, c := range w.late {
		if err := w.report(c); err != nil {
			return err
		}
	}
	return w.rest()
}

func (w *clockWorld) step(s clockStep) error {
	text := clockTexts[s.n%3]
	switch s.do {
	case "put":
		return w.report(w.put("1", text))
	case "put at 2":
		return w.report(w.put("2", text))
	case "put late":
		w.late = append(w.late, w.put("1", text))
	case "put ahead":
		return w.report(w.ahead(w.put("1", text), s.by))
	case "delete", "delete late":
		c := w.remove("1")
		switch {
		case c == nil:
		case s.do == "delete":
			return w.report(c)
		default:
			w.late = append(w.late, c)
		}
	case "report":
		if len(w.late) > 0 {
			c := w.late[0]
			w.late = w.late[1:]
			return w.report(c)
		}
	case "report again":
		if facts := w.clientFacts(); len(facts) > 0 {
			return w.report(facts[s.n%len(facts)].Change)
		}
	case "deliver", "kill":
		if len(w.open) == 0 {
			return nil
		}
		i, killed := s.n%len(w.open), noKill
		if w.open[i].due.After(w.now) {
			return nil
		}
		if s.do == "kill" {
			killed = s.n % 3
		}
		return w.handle(i, killed)
	case "deliver all":
		return w.deliver()
	case "deliver again":
		if len(w.done) > 0 {
			w.open = append(w.open, &waiting{Delivery: w.done[s.n%len(w.done)]})
		}
	case "snapshot":
		w.restores[s.who] = w.stores[s.who].Snapshot()
	case "restore":
		if restore := w.restores[s.who]; restore != nil {
			w.now = w.now.Add(2 * time.Hour) // what is older than an hour by all clocks is looked up
			restore()
		}
	case "rot":
		w.stores[s.who].Corrupt(clockSpace, clockItem, []byte("rot"))
	case "lose":
		w.stores[s.who].Lose(clockSpace, clockItem)
	case "check":
		w.checker = []string{"checker A", "checker B"}[s.n%2]
		return w.check(s.who)
	case "arrive":
		return w.arrives()
	case "removed":
		if i := w.last(""); i >= 0 && w.texts()["1"] == "" { // a removal that did not happen has no event
			return w.removed(w.acts[i].at)
		}
	case "reconcile":
		return w.reconcile(s.who)
	case "pair":
		return w.sweepPair(s.who)
	case "clock":
		w.set(s.who, s.by)
	case "wait":
		w.now = w.now.Add(s.by)
	}
	return nil
}

// faults returns the promises that do not hold at rest, and those that were broken before.
func (w *clockWorld) faults() []string {
	all := slices.Clone(w.broken)
	texts := w.texts()
	for _, id := range []string{"1", "2", "3"} {
		named := slices.ContainsFunc(w.named(), func(n string) bool { // an incident of this store or the source, or a list
			return strings.HasPrefix(n, id+" ") || strings.HasPrefix(n, "1 ") || strings.HasSuffix(n, "-held")
		})
		if texts[id] != texts["1"] && !named {
			all = append(all, fmt.Sprintf("store %s differs from the source, and nothing says so", id))
		}
		r := fold(w.log, w.at(id)).GetManifest()
		live := r.GetState() == pb.RecordState_RECORD_STATE_LIVE
		if (live != (texts[id] != "") || live && texts[id] != w.textOf(r)) && !named {
			all = append(all, fmt.Sprintf("store %s is not as on record, and nothing says so", id))
		}
	}
	return all
}

// A clockRun is the end of a script.
type clockRun struct {
	end    string
	faults []string
}

func runClocks(t *testing.T, script []clockStep, shift time.Duration) clockRun {
	w := newClockWorld(t)
	if err := w.run(script, shift); err != nil {
		return clockRun{faults: append(w.faults(), err.Error())}
	}
	return clockRun{w.summary(), w.faults()}
}

// shrink returns a script without the steps that f does not need to be true.
func shrink(script []clockStep, f func([]clockStep) bool) []clockStep {
	for i := 0; i < len(script); {
		if less := slices.Delete(slices.Clone(script), i, i+1); f(less) {
			script = less
		} else {
			i++
		}
	}
	return script
}

// testClockModel runs random scripts: whatever clocks, reports and kills do, no promise is broken.
func testClockModel(t *testing.T) {
	for seed := range uint64(need.Amount(300, 3000, 20000)) {
		dice := rand.New(rand.NewPCG(seed, 43)) //nolint:gosec // cases must be reproducible
		script := make([]clockStep, 4+dice.IntN(20))
		for i := range script {
			script[i] = drawStep(dice)
		}
		if len(runClocks(t, script, 0).faults) == 0 {
			continue
		}
		script = shrink(script, func(s []clockStep) bool { return len(runClocks(t, s, 0).faults) > 0 })
		got := runClocks(t, script, 0)
		t.Fatalf("seed %d: %v\nends with %s\n%s", seed, script, got.end, strings.Join(got.faults, "\n"))
	}
}
