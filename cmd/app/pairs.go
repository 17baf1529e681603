package app

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/millrace/millrace/cmd/precondition"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/sweep"
	"github.com/millrace/millrace/streams/sweep/filter"
	"github.com/millrace/millrace/streams/sweep/pairs"
)

// DuplicationSweep is the name of the sweep that compares the stores of each pair of a policy.
const DuplicationSweep = "duplication"

// pairSplits returns the splits of the periodic duplication sweep: each space of each pair of the policies in force, if
// one of its stores has the space or had it according to the records. The error names the stores whose spaces are
// unknown.
func (a *App) pairSplits(ctx context.Context, w sweeping, lists *spaceLists) (all []sweep.Split, err error) {
	found, err := a.pairsInForce(ctx, w.rules, lists)
	f := a.filter(DuplicationSweep)
	for _, p := range found {
		if !selectsPair(f, p) {
			continue
		}
		m, e := a.pairSplit(w, p, pairs.Config{Items: pairItems(f, p)})
		if e != nil {
			err = errors.Join(err, e)
			continue
		}
		all = append(all, m)
	}
	return all, err
}

// pairsInForce returns the spaces of the pairs of all policies in force. The error names the stores of pairs whose
// spaces are unknown: these pairs are left out.
func (a *App) pairsInForce(
	ctx context.Context, registry *policy.Registry, lists *spaceLists,
) (all []pairs.Pair, _ error) {
	known, unknown := map[StoreName][]string{}, map[StoreName]error{}
	accounts := map[string][]string{} // spaces by account
	for _, n := range a.stores.storeNames() {
		spaces, err := a.spacesOf(ctx, n, lists)
		if err != nil {
			unknown[n] = err
			continue
		}
		known[n] = append([]string{}, spaces...) // not nil
		accounts[n.Account] = append(accounts[n.Account], spaces...)
	}
	missed := map[StoreName]error{} // those of pairs
	for account, spaces := range accounts {
		slices.Sort(spaces)
		for _, space := range slices.Compact(spaces) {
			rules, _ := registry.Rules(account, space)
			for _, p := range rules.Pairs {
				source, destination := StoreName{account, p.Source}, StoreName{account, p.Destination}
				switch {
				case unknown[source] != nil:
					missed[source] = unknown[source]
				case unknown[destination] != nil:
					missed[destination] = unknown[destination]
				case known[source] == nil || known[destination] == nil: // a store that the account does not have
				case slices.Contains(known[source], space) || slices.Contains(known[destination], space):
					all = append(all, pairs.Pair{Account: account, Space: space, Source: p.Source, Destination: p.Destination})
				}
			}
		}
	}
	if len(all) == 0 {
		missed = unknown // they may have all spaces
	}
	return all, errors.Join(slices.Collect(maps.Values(missed))...)
}

// pairBlocked returns a function that returns why the sweep of a pair may not work now.
func (a *App) pairBlocked(k *client.Controls, p pairs.Pair) func(context.Context) error {
	source := a.sweepBlocked(k, DuplicationSweep, StoreName{p.Account, p.Source})
	destination := a.sweepBlocked(k, DuplicationSweep, StoreName{p.Account, p.Destination})
	return func(ctx context.Context) error { return errors.Join(source(ctx), destination(ctx)) }
}

// selectsPair reports whether a filter selects a pair: both of its stores.
func selectsPair(f filter.Filter, p pairs.Pair) bool {
	return f.Selects(p.Account, p.Source, p.Space) && f.Selects(p.Account, p.Destination, p.Space)
}

// pairItems returns what reports whether a filter selects an item of a pair; nil: it selects all.
func pairItems(f filter.Filter, p pairs.Pair) func(item string) bool {
	source, destination := f.Items(p.Account, p.Source, p.Space), f.Items(p.Account, p.Destination, p.Space)
	if source == nil && destination == nil {
		return nil
	}
	return func(item string) bool {
		return (source == nil || source(item)) && (destination == nil || destination(item))
	}
}

// pairSplit returns the split of a pair. c says what is compared.
func (a *App) pairSplit(w sweeping, p pairs.Pair, c pairs.Config) (sweep.Split, error) {
	source, err := a.stores.configured(StoreName{p.Account, p.Source})
	if err != nil {
		return sweep.Split{}, err
	}
	destination, err := a.stores.configured(StoreName{p.Account, p.Destination})
	if err != nil {
		return sweep.Split{}, err
	}
	c.Pair, c.Large = p, int64(a.cfg.Duplication.LargeThreshold)
	pages, err := pairs.New(c,
		pairs.Deps{Source: storage.ReadOnly(source), Destination: storage.ReadOnly(destination), Rules: w.rules,
			Records: a.reader, Lists: a.lists})
	if err != nil {
		return sweep.Split{}, fmt.Errorf("compare %s: %w", p.Split(), err)
	}
	blocked := a.whileAnswering(StoreName{p.Account, p.Source},
		a.whileAnswering(StoreName{p.Account, p.Destination}, a.pairBlocked(w.controls, p)))
	return sweep.Split{Sweep: DuplicationSweep, Name: p.Split(), Account: p.Account, Pages: pages,
		Lag: a.lagOf(schemas.RoleCopier), Blocked: blocked,
		Report: func(r sweep.Result) *pb.Report { return p.Report(r, r.Finished, nil) }}, nil
}

// SweepDuplication runs one round of the duplication sweep over each selected pair, beside the periodic rounds. A round
// that an earlier call has left unfinished goes on, except with full: the copier compares every item then, also those
// that the listings show as equal.
func (a *App) SweepDuplication(ctx context.Context, r SpacesRequest, full bool) (all []SweptSpace, err error) {
	err = a.inCommand(ctx, r.DryRun, func(ctx context.Context, w sweeping) error {
		found, unknown := a.pairsInForce(ctx, w.rules, newSpaceLists())
		found = slices.DeleteFunc(found, func(p pairs.Pair) bool {
			return r.Account != "" && p.Account != r.Account || r.Space != "" && p.Space != r.Space ||
				r.Store != "" && p.Source != r.Store && p.Destination != r.Store || !selectsPair(r.Filter, p)
		})
		if len(found) == 0 && unknown == nil {
			return fmt.Errorf("%w: no policy copies such a space: see 'millrace policy list' and 'millrace space list'",
				precondition.Err)
		}
		split := func(p pairs.Pair) (sweep.Split, bool, error) {
			items := pairItems(r.Filter, p)
			m, err := a.pairSplit(w, p, pairs.Config{Full: full, Items: items})
			m.Start, m.OnEmitted, m.Anew = r.Begun, r.OnEmitted, full
			return m, items != nil, err
		}
		err := runDuring(ctx, a.reader.Run, func(ctx context.Context) error { // it reads the records of what differs
			return byHand(ctx, w, found, split, func(p pairs.Pair, result sweep.Result) {
				at := schemas.Copy{Account: p.Account, Store: p.Source, Space: p.Space}
				all = append(all, SweptSpace{at, p.Destination, result})
			})
		})
		return errors.Join(unknown, err)
	})
	return all, err
}
