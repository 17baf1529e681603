package app

import (
	"context"
	"time"

	"github.com/millrace/millrace/schemas"
)

// keepEvery is how often the positions of groups are put on record: what a group handles between that and the time when
// the brokers forget its offsets is handled again.
const keepEvery = 10 * time.Minute

// keeper puts on record where groups are, for when the brokers have forgotten it.
func (a *App) keeper() []part {
	last := map[string]bool{} // ids of what is on record
	return []part{a.chore("position keeper", keepEvery, func(ctx context.Context) { a.keep(ctx, last) })}
}

// keep publishes the positions that are not in last, and notes them there. What failed is left to the next time.
func (a *App) keep(ctx context.Context, last map[string]bool) {
	all, err := a.admin.Positions(ctx)
	if err == nil {
		var news []schemas.Message
		for _, m := range all {
			if !last[m.Body.GetId()] {
				news = append(news, m)
			}
		}
		if err = a.producer.Publish(ctx, news...); err == nil {
			clear(last)
			for _, m := range all {
				last[m.Body.GetId()] = true
			}
		}
	}
	if err != nil && ctx.Err() == nil {
		a.log.Warn("the positions of groups will be put on record again", "wait", keepEvery, "err", err)
	}
}
