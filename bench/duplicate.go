package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/policy/preview"
)

// duplicate returns the figure of the plan of a policy.
func (r *runner) duplicate() ([]figure, error) {
	return []figure{
		{fmt.Sprintf("plan: of a policy, %s copies on record in two stores", count(r.amounts.prefilled)), "s", "",
			atMost(10), r.planPolicy},
	}, nil
}

// plannedPolicy is a policy over the copies of a Fill: one destination, with rules that are evaluated for each item.
const plannedPolicy = `
defaults: {copy: [{from: 1, to: 2}], exclude: ["**/*.tmp"], maxSize: 1TB}
spaces: {space-07: {hold: [{prefix: img-00000, until: 2100-01-01, reason: measured}]}}
`

// planPolicy measures the time to plan a policy from the copies on record.
func (r *runner) planPolicy(ctx context.Context) (m measurement, err error) {
	b, err := r.filledDatabase(ctx)
	if err != nil {
		return m, err
	}
	n := r.amounts.prefilled
	doc, err := policy.Parse([]byte(plannedPolicy))
	if err != nil {
		return m, err
	}
	for range r.amounts.rounds {
		start := time.Now()
		p := preview.New(preview.Config{Rules: doc.Rules, Primary: primary, Now: start})
		if err := app.AddCopies(ctx, b.DB, mainAccount, p); err != nil {
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
