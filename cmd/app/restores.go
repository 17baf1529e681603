package app

import (
	"context"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/duplicate"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/steward"
)

// restores says which restore orders the copier executes.
type restores struct{ app *App }

var _ duplicate.Restores = restores{}

// Refuses implements duplicate.Restores.
func (r restores) Refuses(account, store string) string {
	return r.app.stores.refusesRestores(account, store)
}

// refusesRestores returns why nothing is restored in a store; empty if something may be.
func (s *Stores) refusesRestores(account, id string) string {
	switch {
	case s.of(StoreName{account, id}).cfg.Layout == "plain":
		return "it is only read (layout: plain)"
	case s.RepairMode(account, id, time.Now()) == steward.Off:
		return "it has repair: off"
	}
	return ""
}

// Proven implements duplicate.Restores. An older content is on record since long, so the tables need not have what is
// still in Kafka: at worst a content counts as not proven.
func (r restores) Proven(ctx context.Context, item schemas.Copy, like digest.Set) (proven digest.Set, err error) {
	err = kafka.Park(ctx, func(ctx context.Context) error {
		items, err := holdings{db: r.app.db, account: item.Account, space: item.Space}.records(ctx, []string{item.Item})
		if err == nil {
			proven = items[0].Proven(&pb.Change{Digests: like})
		}
		return err
	})
	return proven, err
}
