package app

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/millrace/millrace/cmd/precondition"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/chunks"
	"github.com/millrace/millrace/streams/incident"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/sweep"
	"github.com/millrace/millrace/streams/sweep/groups"
)

// groupSweep returns the sweep over the spaces of all stores that have copies on record.
func (a *App) groupSweep(w sweeping, lists *spaceLists) spaceSweep {
	return spaceSweep{groups.Name, a.recordedSpaces(lists), nil,
		func(space schemas.Copy, items func(string) bool) (sweep.Split, error) {
			return a.groupSplit(w, space, items)
		}}
}

// groupSplit returns the split of a space in a store. items reports whether an item is looked at; nil: all are.
func (a *App) groupSplit(w sweeping, space schemas.Copy, items func(string) bool) (sweep.Split, error) {
	n := StoreName{space.Account, space.Store}
	st, err := a.stores.configured(n)
	if err != nil {
		return sweep.Split{}, err
	}
	subject := incident.Subject{Account: space.Account, Store: space.Store, Space: space.Space,
		Kind: incident.GroupIncomplete}
	pages, err := groups.New(groups.Config{
		// With restore, a read of an archived document would order its restoration.
		Space: space, NeverRead: st.cfg.Read == "never" || st.cfg.Restore, Selected: items,
		Large: int64(a.cfg.Duplication.LargeThreshold),
	}, groups.Deps{
		Store: storage.ReadOnly(st), Fresh: a.freshTables,
		Items: func(ctx context.Context, of schemas.Copy, limit int) (all []groups.Item, err error) {
			err = a.withoutGaps(ctx, func() error { all, err = groupItems(ctx, a.db, of, limit); return err })
			return all, err
		},
		Records: func(ctx context.Context, copies []schemas.Copy) (all []*pb.CopyRecord, err error) {
			err = a.withoutGaps(ctx, func() error { all, err = read.ManifestRecords(ctx, a.db, copies); return err })
			return all, err
		},
		OpenIncident: w.report(w.board.Open, subject), CloseIncident: w.report(w.board.Close, subject),
	})
	if err != nil {
		return sweep.Split{}, fmt.Errorf("check the groups of %s: %w", space, err)
	}
	return sweep.Split{Sweep: groups.Name, Name: schemas.Key(space.Account, space.Store, space.Space),
		Account: space.Account, Pages: pages, Blocked: a.storeBlocked(w.controls, groups.Name, n),
		Lag: a.lagOf(schemas.RoleChecker)}, nil
}

// groupItems returns the first live documents and chunks of a space after of.Item.
func groupItems(ctx context.Context, db *clickhouse.DB, of schemas.Copy, limit int) (all []groups.Item, err error) {
	names := []string{"%" + chunks.DocumentSuffix, "%" + chunks.ChunkInfix + "%"}
	stop := errors.New("stop")
	err = read.EachLike(ctx, db, of, names, func(c read.RecordedCopy) error {
		if !c.Live {
			return nil
		}
		all = append(all, groups.Item{Name: strings.Clone(c.Item), Version: c.Version, Size: c.Size, Time: c.Time})
		if len(all) == limit {
			return stop
		}
		return nil
	})
	if errors.Is(err, stop) {
		err = nil
	}
	return all, err
}

// SweepGroups runs one round of the group check over each selected space, without the items that sweep.spaces leaves
// out: the incident is that of the scheduled rounds. So the filter of the request selects whole spaces. What an
// interrupted round has found is not used.
func (a *App) SweepGroups(ctx context.Context, r SpacesRequest) ([]SweptSpace, error) {
	return a.sweepSpaces(ctx, r, func(w sweeping) spaceSweep {
		s := a.groupSweep(w, newSpaceLists())
		s.split = func(space schemas.Copy, some func(string) bool) (sweep.Split, error) {
			if some != nil {
				return sweep.Split{}, fmt.Errorf("%w: groups are checked in whole spaces, not those of some items",
					precondition.Err)
			}
			m, err := a.groupSplit(w, space, a.filter(groups.Name).Items(space.Account, space.Store, space.Space))
			m.Anew = true
			return m, err
		}
		return s
	})
}
