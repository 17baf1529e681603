package bench

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/sweep"
)

// hashdeep is the peer's program, a package in Debian and other distributions.
const hashdeep = "hashdeep"

// fixity returns the figures of checks.
func (r *runner) fixity() ([]figure, error) {
	a := r.amounts
	return []figure{
		{fmt.Sprintf("checks: %s x %d KiB files, md5 and sha256, cache warm, each result on record", count(a.checked),
			checkedSize>>10), "checks/s", hashdeep + " -c md5,sha256, which records nothing", ratioAtLeast(0.3), r.checkFiles},
		{fmt.Sprintf("fixity: %s tasks selected, %s copies on record in two stores, with the evidence of the audit log",
			count(a.selected), count(a.prefilled)), "s", "", atMost(30), r.selectTasks},
	}, nil
}

// checkFiles checks the files of a store in turns with the peer, which reads the same files.
func (r *runner) checkFiles(ctx context.Context) (m measurement, err error) {
	n := r.amounts.checked
	peer, notFound := exec.LookPath(hashdeep)
	if notFound != nil {
		m.absent = "make peers, or apt-get install " + hashdeep
	}
	for range r.amounts.fewRounds() {
		err := inTemp(func(dir string) error {
			res, _, err := r.runSide(ctx, "roles", &rolesSide{Do: "check", Dir: dir, Items: n})
			if err != nil {
				return err
			}
			m.ours = append(m.ours, res.rate())
			if m.absent != "" {
				return nil
			}
			seconds, out, err := runTimed(ctx, nil, peer, "-c", "md5,sha256", "-r", filepath.Join(dir, "store-"+primary))
			if err != nil {
				return err
			}
			if printed := bytes.Count(out, fmt.Appendf(nil, "\n%d,", checkedSize)); printed != n {
				return fmt.Errorf("%s printed digests of %d of %d files", hashdeep, printed, n)
			}
			m.peers = append(m.peers, float64(n)/seconds)
			return nil
		})
		if err != nil {
			return m, err
		}
	}
	return m, nil
}

// selectTasks reads the pages of fixity rounds over the spaces of a store, in which all copies are due, until it has
// enough tasks.
func (r *runner) selectTasks(ctx context.Context) (m measurement, err error) {
	b, err := r.filledDatabase(ctx)
	if err != nil {
		return m, err
	}
	rounds := sweep.FixityRounds{
		Due:     read.NewDue(b.DB),
		Lag:     func(context.Context) (int64, error) { return 0, nil },
		LagHigh: func(context.Context) (int64, error) { return 0, nil },
		Checked: func(context.Context, schemas.Copy) (bool, error) { return false, nil },
		Results: noResults{},
		Queue:   noQueue{},
		Now:     time.Now,
	}
	start, tasks := time.Now(), 0
	for n := 0; tasks < r.amounts.selected; n++ {
		if n == 100 { // spaces
			return m, fmt.Errorf("only %d tasks are due", tasks)
		}
		space, _ := filledItem(n*(r.amounts.prefilled/100), r.amounts.prefilled)
		split, err := rounds.Split(sweep.Request{Account: mainAccount, Store: source, Space: space, Begun: start})
		if err != nil {
			return m, err
		}
		for page := (sweep.Page{}); tasks < r.amounts.selected; {
			if page, err = split.Pages(ctx, sweep.Round{ID: "selection", Started: start}, page.Next); err != nil {
				return m, err
			}
			if len(page.Messages) == 0 {
				break
			}
			tasks += len(page.Messages)
		}
	}
	m.ours = []float64{time.Since(start).Seconds()}
	return m, nil
}

// noResults are the results of rounds whose tasks are only selected.
type noResults struct{}

// Progress implements sweep.Results.
func (noResults) Progress(context.Context, sweep.RoundQuery) (sweep.Progress, error) {
	return sweep.Progress{}, nil
}

// Counts implements sweep.Results.
func (noResults) Counts(context.Context, sweep.RoundQuery) (sweep.RoundCounts, bool, error) {
	return sweep.RoundCounts{}, false, nil
}

// noQueue is a queue of tasks that are not published.
type noQueue struct{}

// End implements sweep.Queue.
func (noQueue) End(context.Context) (sweep.Offsets, error) { return nil, nil }

// Handled implements sweep.Queue.
func (noQueue) Handled(context.Context, sweep.Offsets) (bool, error) { return false, nil }
