package integration

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/need"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/ingest/hint"
)

// A clockStep is one step of a script: what happens, to which store or clock, with which of several things, by how
// much.
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
	s.do = pick("put", "put", "put", "put late", "put ahead", "put bare", "delete", "delete late", "report", "report",
		"report again", "put at 2", "deliver", "deliver", "deliver", "deliver all", "deliver again", "kill", "kill",
		"snapshot", "restore", "rot", "lose", "check", "arrive", "removed", "reconcile", "pair", "clock", "clock", "wait",
		"wait")
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

func drawScript(seed uint64) []clockStep {
	dice := rand.New(rand.NewPCG(seed, 43)) //nolint:gosec // cases must be reproducible
	script := make([]clockStep, 4+dice.IntN(20))
	for i := range script {
		script[i] = drawStep(dice)
	}
	return script
}

// run executes a script.
func (w *clockWorld) run(script []clockStep) error {
	for i, s := range script {
		if err := w.step(s); err != nil {
			return fmt.Errorf("step %d, %s: %w", i, s, err)
		}
	}
	return errors.Join(w.reportLate(), w.rest())
}

// reportLate reports what clients have not reported yet.
func (w *clockWorld) reportLate() (err error) {
	for _, c := range w.late {
		err = errors.Join(err, w.report(c))
	}
	w.late = nil
	return err
}

func (w *clockWorld) step(s clockStep) error {
	text := clockTexts[s.n%3]
	switch s.do {
	case "put":
		return w.report(w.put("1", text))
	case "put at 2": // by clients that turn to the copy once all is reported
		if w.failovers++; w.failovers > 4 {
			return nil
		}
		return errors.Join(w.reportLate(), w.report(w.put("2", clockTexts[2+w.failovers])))
	case "put bare":
		return w.report(w.putBare(text))
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
	case "arrive", "removed": // the event of what was done last, which may be late
		if i := len(w.acts) - 1; i >= 0 && w.acts[i].store == "1" && w.acts[i].text == w.texts()["1"] {
			return w.watched(map[bool]hint.Kind{true: hint.Created, false: hint.Removed}[w.acts[i].text != ""], w.acts[i].at)
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

func runClocks(t *testing.T, script []clockStep, set func(*clockWorld)) clockRun {
	w := newClockWorld(t)
	set(w)
	if err := w.run(script); err != nil {
		return clockRun{err.Error(), append(w.faults(), "ends with "+w.summary(), err.Error())}
	}
	r := clockRun{w.summary(), w.faults()}
	if len(r.faults) > 0 {
		r.faults = append(r.faults, "ends with "+r.end)
	}
	return r
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
	testScripts(t, need.Amount(200, 2500, 40_000), func(script []clockStep) []string {
		return runClocks(t, script, rightClocks).faults
	})
}

func rightClocks(*clockWorld) { /* they are */ }

// testClockShift runs random scripts with the clocks right, and with all clocks but Kafka's an hour or three years
// behind or ahead, or each process at a time of its own: each ends alike. If the clocks are ahead, only Kafka orders
// what is reported late, and a copier whose clock is wrong waits for it: nothing is. If they are behind, the copier
// reads the records for each Change, so it does with the right clocks, too.
func testClockShift(t *testing.T) {
	testScripts(t, need.Amount(25, 400, 8000), func(script []clockStep) (all []string) {
		without := func(steps ...string) []clockStep {
			return slices.DeleteFunc(slices.Clone(script), func(s clockStep) bool { return slices.Contains(steps, s.do) })
		}
		script = without("clock", "put ahead")
		timely := without("put late", "delete late", "removed")
		shift := func(by time.Duration) func(*clockWorld) { return func(w *clockWorld) { w.shiftBy(by) } }
		apart := func(w *clockWorld) {
			for i, name := range []string{"planner", "copier", "deleter", "checker A", "checker B", "steward", "sweeper"} {
				w.set(name, []time.Duration{-3 * year, hour, -hour, 3 * year}[(i+len(script))%4])
			}
		}
		aged := func(w *clockWorld) { w.aged = 2 * hour }
		for how, tt := range map[string]struct {
			script     []clockStep
			set, right func(*clockWorld)
		}{
			"an hour behind":           {script, shift(-hour), aged},
			"three years behind":       {script, shift(-3 * year), aged},
			"an hour ahead":            {timely, shift(hour), rightClocks},
			"three years ahead":        {timely, shift(3 * year), rightClocks},
			"each process at its time": {timely, apart, rightClocks},
		} {
			if got, want := runClocks(t, tt.script, tt.set), runClocks(t, tt.script, tt.right); got.end != want.end {
				all = append(all, fmt.Sprintf("%s: ends with %s\nwith right clocks: %s", how, got.end, want.end))
			}
		}
		return all
	})
}

// testScripts shows the shortest scripts in which a test finds faults.
func testScripts(t *testing.T, n int, test func([]clockStep) []string) {
	for seed, bad := uint64(0), 0; seed < uint64(n) && bad < 4; seed++ {
		script := drawScript(seed)
		if len(test(script)) == 0 {
			continue
		}
		bad++
		script = shrink(script, func(s []clockStep) bool { return len(test(s)) > 0 })
		t.Errorf("seed %d: %v\n%s", seed, script, strings.Join(test(script), "\n"))
	}
}
