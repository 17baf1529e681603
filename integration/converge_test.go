package integration

import (
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/millrace/millrace/integration/converge"
	"github.com/millrace/millrace/internal/need"
)

// seedEnv names the variable with the seed of the one run that TestConverge is to make.
const seedEnv = "MILLRACE_TEST_SEED"

// maxExplained bounds the items whose histories are logged: each takes a command.
const maxExplained = 12

// A convergeForm says how long a run is.
type convergeForm struct {
	length time.Duration // for which clients work
	every  time.Duration // between two of their ops, about
	rest   time.Duration // until all must be at rest, at most, while something moves
	short  bool          // the events are those of converge.Short
}

// Clients work in three spaces while processes are killed and frozen, stores are away, copies are lost, the sink lags and
// clocks differ. When all of that is over and nothing is under way, nothing is gone that was not taken away, also before
// every copy is checked. After that, stores are as the policy says or an open incident of the copy says why not; the source
// is what clients made of it; no last copy is gone; the audit log has who did what; every incident and every dead letter
// has its fault; and no decision of a person is lost.
func TestConverge(t *testing.T) {
	need.Integration(t)
	form := convergeForm{length: 42 * time.Second, every: 250 * time.Millisecond, rest: 4 * time.Minute, short: true}
	seed := uint64(1)
	if long := need.Amount(0, 200, 200); long > 0 {
		form = convergeForm{length: time.Duration(long) * time.Second, every: form.every, rest: 7 * time.Minute}
		seed = uint64(time.Now().UnixNano())
	}
	until := time.Now().Add(time.Duration(need.Amount(0, 0, 55)) * time.Minute)
	if text := os.Getenv(seedEnv); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("%s: %v", seedEnv, err)
		}
		until = time.Now()
	}
	for first := true; first || time.Now().Before(until); first = false {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) { converged(t, seed, form) })
		seed++
	}
}

// converged makes one run and compares what it comes to.
func converged(t *testing.T, seed uint64, form convergeForm) {
	t.Helper()
	t.Logf("seed %d: %s=%d repeats this run", seed, seedEnv, seed)
	w := newConvergeWorld(t, seed, form.short)
	w.fill(t)
	w.awaitRest(t, form.rest)
	w.backup = w.engine.backUp(t)
	w.run(t, form)
	w.awaitRest(t, form.rest)
	w.checkCoverage(t)
	w.compare(t, false)
	w.redriveAndCheck(t, form.rest)
	w.compare(t, true)
	w.want(t, 0, "no findings", "verify", "--strict")
	w.want(t, 0, "no findings", "verify", "--manifest")
}

// compare compares what is there with what must be, before or after all was healed.
func (w *convergeWorld) compare(t *testing.T, healed bool) {
	t.Helper()
	s := w.observe(t)
	s.Rechecked = healed
	excused, explained := map[converge.Finding]int{}, map[converge.ItemRef]bool{}
	for _, d := range w.model.Compare(s) {
		if d.Explanation != "" {
			excused[d.Finding]++
			t.Log(d)
			continue
		}
		t.Errorf("healed %v: %v", healed, d)
		if p := d.Copy.ItemRef; p.Item != "" && !explained[p] && len(explained) < maxExplained {
			explained[p] = true
			w.explain(t, p)
		}
	}
	t.Logf("healed %v: %d acts of clients, %d copies, %d incidents, %d dead letters; excused: %v",
		healed, w.model.Mutations(), len(s.Copies), len(s.Incidents), len(s.DeadLetters), excused)
}
