package integration

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/integration/converge"
	"github.com/millrace/millrace/internal/need"
)

// seedEnv is the environment variable with the seed of a single run.
const seedEnv = "MILLRACE_TEST_SEED"

// maxExplained limits the number of logged item histories, because each takes a command.
const maxExplained = 12

// convergeForm is the size of a run.
type convergeForm struct {
	length time.Duration // duration of the clients' work
	every  time.Duration // average time between two ops
	rest   time.Duration // maximum time until rest while there is progress
	short  bool          // use the events of converge.Short
}

// TestConverge runs clients in four spaces while processes are killed and suspended, stores are unavailable, copies are
// lost, the sink lags and clocks differ. After all that, when no work is left, it checks before and after a check of
// every copy that no copy is missing except those that the test removed.
//
// After the check of every copy it also requires that each store matches the policy or the copy has an open incident
// that explains the difference, the source matches the clients' mutations, no item has lost its last copy, the audit
// log has every mutation with its user, every incident and dead letter has a fault that explains it, and every decision
// of an operator is recorded.
func TestConverge(t *testing.T) {
	need.Integration(t)
	form := convergeForm{length: 42 * time.Second, every: 250 * time.Millisecond, rest: 4 * time.Minute, short: true}
	seed := uint64(1)
	if long := need.Amount(0, 200, 200); long > 0 {
		form = convergeForm{length: time.Duration(long) * time.Second, every: form.every, rest: 7 * time.Minute}
		seed = uint64(time.Now().UnixNano())
	}
	until := time.Now().Add(time.Duration(need.Amount(0, 0, 55)) * time.Minute)
	if given, ok := givenSeed(t); ok {
		seed, until = given, time.Now()
	}
	for first := true; first || time.Now().Before(until); first = false {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) { converged(t, seed, form) })
		seed++
	}
}

// givenSeed returns the seed that a single run is to repeat, if one is set.
func givenSeed(t *testing.T) (seed uint64, given bool) {
	t.Helper()
	text, given := os.LookupEnv(seedEnv)
	if !given || text == "" {
		return 0, false
	}
	seed, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", seedEnv, err)
	}
	return seed, true
}

// converged makes one run and compares its final state with the model.
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
	w.verify(t, form.rest)
}

// compare compares the observed state with the model, before or after the recheck.
func (w *convergeWorld) compare(t *testing.T, healed bool) {
	t.Helper()
	s := w.observe(t)
	s.Rechecked = healed
	excused, explained := map[converge.Finding]int{}, map[converge.ItemRef]bool{}
	var lines strings.Builder // one log entry, so that the summary of a run shows the others
	for _, d := range w.model.Compare(s) {
		if d.Explanation != "" {
			excused[d.Finding]++
			fmt.Fprintf(&lines, "\n%s", d)
			continue
		}
		t.Errorf("healed %v: %v", healed, d)
		if p := d.Copy.ItemRef; p.Item != "" && !explained[p] && len(explained) < maxExplained {
			explained[p] = true
			w.explain(t, p)
		}
	}
	t.Logf("healed %v: %d acts of clients, %d copies, %d incidents, %d dead letters; excused: %v%s",
		healed, w.model.Mutations(), len(s.Copies), len(s.Incidents), len(s.DeadLetters), excused, &lines)
}
