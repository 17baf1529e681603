package app

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/cmd/precondition"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/incident"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/sweep"
)

// StatsSweep is the name of the sweep that counts the copies of each space, and the kind of its reports, of which the
// view space_stats is made.
const StatsSweep = "stats"

// SizesKind is the kind of the reports that compare the sizes of a space at the two stores of a pair.
const SizesKind = StatsSweep + "/pair"

// statsSplits returns the splits of the periodic stats sweep: the accounts.
func (a *App) statsSplits(w sweeping) (all []sweep.Split) {
	for _, acc := range a.stores.inForce() {
		all = append(all, a.statsSplit(w, acc))
	}
	return all
}

func (a *App) statsSplit(w sweeping, acc config.Account) sweep.Split {
	return sweep.Split{
		Sweep: StatsSweep, Name: schemas.Key(acc.ID), Account: acc.ID,
		Pages: func(ctx context.Context, r sweep.Round, _ []byte) (sweep.Page, error) {
			return a.countSpaces(ctx, w, acc, r)
		},
		Lag:     noLag,
		Blocked: statsBlocked(w.controls, acc.ID),
	}
}

// statsBlocked returns a function that returns why the stats sweep may not count an account now.
func statsBlocked(k *client.Controls, account string) func(context.Context) error {
	return func(context.Context) error {
		if k.Sweep(StatsSweep) || k.Paused(schemas.RoleSweeper, account, "") {
			return sweep.ErrPaused
		}
		return nil
	}
}

// countSpaces returns a report of each space of an account in each store, also of those that have lost all items, and
// of each space of each pair of the policy. It checks the allocation of the account.
func (a *App) countSpaces(
	ctx context.Context, w sweeping, acc config.Account, r sweep.Round,
) (page sweep.Page, err error) {
	var spaces []read.SpaceStatus
	err = a.withoutGaps(ctx, func() (err error) {
		spaces, err = read.FixityStatus(ctx, a.db, read.StatusQuery{Account: acc.ID, Emptied: true})
		return err
	})
	if err != nil {
		return page, err
	}
	primary := map[string]bool{}
	for _, s := range acc.Stores {
		primary[s.ID] = s.Primary
	}
	page = sweep.Page{Counts: map[string]int64{}, Last: true}
	var held read.SpaceStatus // what the primary stores hold
	for _, s := range spaces {
		counts := map[string]int64{"items": int64(s.Live), "bytes": s.Bytes, "unsized": int64(s.Unsized),
			"verified": int64(s.Verified)}
		for what, n := range counts {
			page.Counts[what] += n
		}
		if s.Live > 0 {
			page.Counts["spaces"]++
		}
		if primary[s.Store] {
			held.Bytes += s.Bytes
			held.Unsized += s.Unsized
		}
		page.Messages = append(page.Messages, schemas.Message{Topic: schemas.Reports, Body: &pb.Report{
			Id: schemas.ID("report", StatsSweep, r.ID, s.Store, s.Space), Kind: StatsSweep, Account: acc.ID, Store: s.Store,
			Space: s.Space, Round: r.ID, Started: timestamppb.New(r.Started), Finished: timestamppb.New(r.Started),
			Counts: counts, Complete: true,
		}})
	}
	sizes := compareSizes(acc.ID, spaces, func(space string) []policy.Pair {
		rules, _ := w.rules.Rules(acc.ID, space)
		return slices.DeleteFunc(slices.Clone(rules.Pairs), func(p policy.Pair) bool { // of a store that was removed
			_, source := primary[p.Source]
			_, destination := primary[p.Destination]
			return !source || !destination
		})
	})
	for _, p := range sizes {
		if page.Counts["pairs"]++; p.difference() != "" {
			page.Counts["pairs_differ"]++
		}
		page.Messages = append(page.Messages, p.report(r))
	}
	page.Emitted = int64(len(page.Messages))
	return page, checkAllocation(ctx, w.board, acc, held)
}

// checkAllocation opens an incident if an account holds more bytes than its allocation, and closes it if it certainly
// does not.
func checkAllocation(ctx context.Context, board *incident.Board, acc config.Account, held read.SpaceStatus) error {
	about := incident.Subject{Account: acc.ID, Kind: incident.AllocationExceeded}
	most := int64(acc.Allocation)
	switch {
	case most == 0:
		return board.Close(ctx, about, "the account has no allocation")
	case held.Bytes > most:
		return board.Open(ctx, about, fmt.Sprintf("the items in the primary store have %d bytes, %d more than the allocation",
			held.Bytes, held.Bytes-most))
	case held.Unsized > 0: // they may have more
		return nil
	}
	return board.Close(ctx, about, fmt.Sprintf("the items in the primary store have %d bytes", held.Bytes))
}

// SweepStats runs one round of the stats sweep over an account, or over all if account is empty. begun identifies it.
func (a *App) SweepStats(ctx context.Context, account string, begun time.Time) (all []SweptSpace, err error) {
	var accounts []config.Account
	for _, acc := range a.stores.inForce() {
		if account == "" || acc.ID == account {
			accounts = append(accounts, acc)
		}
	}
	if len(accounts) == 0 {
		return nil, fmt.Errorf("%w: there is no account %q: see 'millrace account list'", precondition.Err, account)
	}
	err = a.inCommand(ctx, false, func(ctx context.Context, w sweeping) error {
		return byHand(ctx, w, accounts, func(acc config.Account) (sweep.Split, bool, error) {
			m := a.statsSplit(w, acc)
			m.Start = begun
			return m, false, nil
		}, func(acc config.Account, result sweep.Result) {
			all = append(all, SweptSpace{Copy: schemas.Copy{Account: acc.ID}, Result: result})
		})
	})
	return all, err
}
