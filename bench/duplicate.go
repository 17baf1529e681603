package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millrace/millrace/bench/clickhousebench"
	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/policy/preview"
)

// Duplicate measures the plan of a policy, copies and deletes, and returns the rows in table order.
func Duplicate(ctx context.Context, cfg Config) ([]Row, error) {
	r := newRunner(cfg)
	return r.measure(ctx, r.duplicateFigures())
}

// brakeLimit is the default of deletes.max_count.
const brakeLimit = 1000

func (r *runner) duplicateFigures() []figure {
	deletes := min(r.amounts.deleted, brakeLimit)
	return []figure{
		{fmt.Sprintf("plan: of a policy, %s copies on record in two stores", count(r.amounts.prefilled)), "s", "",
			target{op: "<=", bound: 10}, r.planPolicy},
		{fmt.Sprintf("s3 in memory: %s x 10 KiB copied from store to store, both look at what they wrote",
			count(r.amounts.objects)), "items/s", "rclone copy, its default", target{op: ">=", bound: 2, ratio: true},
			r.copyInTurns},
		{fmt.Sprintf("changes: until the end of the copy, p99 at %d/s", changeRate), "s", "", target{op: "<=", bound: 1},
			r.copyDelay},
		{fmt.Sprintf("deletes: %s of one space at the default limit of the brake, on record", count(deletes)), "deletes/s",
			"limits raised a thousandfold", target{op: ">=", bound: 0.95, ratio: true}, r.brakeCost(deletes)},
	}
}

// plannedPolicy is a policy over the copies of a Fill: one destination, with rules that are evaluated for each item.
const plannedPolicy = `
defaults: {copy: [{from: 1, to: 2}], exclude: ["**/*.tmp"], maxSize: 1TB}
spaces: {space-07: {hold: [{prefix: img-00000, until: 2100-01-01, reason: measured}]}}
`

// planPolicy measures the time to plan a policy from the copies on record.
func (r *runner) planPolicy(ctx context.Context) (m measurement, err error) {
	s, err := r.newClickHouse(ctx)
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, s.close(ctx)) }()
	db, b, err := s.database(ctx, "millrace")
	if err != nil {
		return m, err
	}
	n := r.amounts.prefilled
	fmt.Fprintf(r.cfg.Progress, "    filling copy_state with %s rows\n", count(n))
	if err := b.Fill(ctx, clickhousebench.PairRows(), n); err != nil {
		return m, err
	}
	// Otherwise the merges of the rows that were just filled in would take processor time from the rounds.
	if err := b.Exec(ctx, "OPTIMIZE TABLE {db}.copy_state FINAL"); err != nil {
		return m, err
	}
	doc, err := policy.Parse([]byte(plannedPolicy))
	if err != nil {
		return m, err
	}
	for range r.amounts.fewRounds() {
		start := time.Now()
		p := preview.New(preview.Config{Rules: doc.Rules, Primary: primary, Now: start})
		if err := app.AddCopies(ctx, db, mainAccount, p); err != nil {
			return m, err
		}
		m.ours = append(m.ours, time.Since(start).Seconds())
		items := int64(0)
		for _, one := range p.Spaces() {
			items += one.Counts[preview.Unchanged].Items
		}
		if items != int64(n/2) {
			return m, fmt.Errorf("planned %d items, not %d", items, n/2)
		}
	}
	return m, nil
}

// copyInTurns copies the items of a store to another, ours and the peer's in turns. Both request each object after
// writing it.
func (r *runner) copyInTurns(ctx context.Context) (m measurement, err error) {
	s, done, err := r.serve(ctx, inMemory)
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, done()) }()
	peer, err := r.peerProgram()
	if err != nil {
		return m, err
	}
	if peer == "" {
		m.absent = "make peers"
	}
	s.statAfterPut = true
	for i := range r.amounts.fewRounds() {
		u, err := r.side(ctx, s, "copy", fmt.Sprint("ours", i), sideWork)
		if err != nil {
			return m, err
		}
		m.ours = append(m.ours, float64(s.items)/u.seconds)
		if peer == "" {
			continue
		}
		if u, err = r.peerCopy(ctx, peer, s, fmt.Sprint("peer", i), sideWork); err != nil {
			return m, err
		}
		m.peers = append(m.peers, float64(s.items)/u.seconds)
	}
	return m, nil
}

// copyDelay measures the time from a Change to the end of its copy.
func (r *runner) copyDelay(ctx context.Context) (m measurement, err error) {
	res, _, err := r.roles(ctx, "--do", "change", "--items", fmt.Sprint(r.amounts.changed))
	m.ours = []float64{res.Copied}
	return m, err
}

// brakeCost returns a figure of the rate of n deletes at the default limit, where the brake reserves few deletes at
// once, compared with a limit that is a thousand times as high.
func (r *runner) brakeCost(n int) func(context.Context) (measurement, error) {
	return func(ctx context.Context) (m measurement, err error) {
		for range min(2, r.amounts.rounds) {
			for _, one := range []struct {
				limit int
				rates *[]float64
			}{{brakeLimit, &m.ours}, {1000 * brakeLimit, &m.peers}} {
				res, _, err := r.roles(ctx, "--do", "delete", "--items", fmt.Sprint(n), "--window", r.amounts.window.String(),
					"--limit", fmt.Sprint(one.limit))
				if err != nil {
					return m, err
				}
				*one.rates = append(*one.rates, res.rate())
			}
		}
		return m, nil
	}
}
