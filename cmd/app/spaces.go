package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/brake"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/storage"
)

// What is on record of a space in a store.
const (
	SpaceLive    = "live"    // it holds items: if it is missing, it is expected
	SpaceEmpty   = "empty"   // it was created, and holds no items
	SpaceDeleted = "deleted" // its last Change is its delete
	SpaceGone    = "gone"    // an operator has declared it gone
	spaceNone    = "none"    // nothing is on record
)

// A SpaceInfo is a space in one store, by the records and the policy.
type SpaceInfo struct {
	read.SpaceSummary
	Account string
	Record  string // SpaceLive, ...
	// Scope is the part of the policy that applies to the space; empty: the account has no policy in force.
	Scope policy.Scope
	Rules policy.Rules
	// CopiedTo and CopyOf are the stores of the pairs that have this store.
	CopiedTo, CopyOf []string
	Incidents        []*pb.Incident // the open ones of the space and its items in this store
}

// NotCopied returns why no pair of the policy has the store; empty if one has.
func (s SpaceInfo) NotCopied() string {
	switch {
	case len(s.CopiedTo) > 0 || len(s.CopyOf) > 0:
		return ""
	case s.Scope == "":
		return "the account has no policy in force"
	case s.Scope == policy.ScopeReserved:
		return "spaces whose name begins with x- are not copied"
	case s.Scope == policy.ScopeIgnored:
		return "the policy ignores the space"
	case len(s.Rules.Pairs) == 0:
		return "the policy has no pairs for the space, and no default"
	}
	return "no pair of the policy has the store"
}

// recordOf returns what is on record of a space.
func recordOf(s read.SpaceSummary) string {
	switch {
	case !s.Gone.IsZero() && !s.Created.After(s.Gone):
		return SpaceGone
	case s.Items > 0:
		return SpaceLive
	case s.Deleted.After(s.Created):
		return SpaceDeleted
	case s.First.IsZero():
		return spaceNone
	}
	return SpaceEmpty
}

// Spaces returns the spaces of an account that are on record, by space and store. If space is not empty, it returns
// that one, in every store that has it on record or is configured.
func (p *Policies) Spaces(ctx context.Context, db *clickhouse.DB, account, space string) ([]SpaceInfo, error) {
	found, err := read.Spaces(ctx, db, account, space)
	if err != nil {
		return nil, err
	}
	open, err := read.OpenIncidents(ctx, db, account)
	if err != nil {
		return nil, err
	}
	if space != "" {
		for _, store := range p.stores(account) {
			if !slices.ContainsFunc(found, func(s read.SpaceSummary) bool { return s.Store == store }) {
				found = append(found, read.SpaceSummary{Space: space, Store: store})
			}
		}
		slices.SortFunc(found, func(a, b read.SpaceSummary) int { return cmp.Compare(a.Store, b.Store) })
	}
	document, hasPolicy := p.registry.Document(account)
	all := make([]SpaceInfo, len(found))
	for i, s := range found {
		info := SpaceInfo{SpaceSummary: s, Account: account, Record: recordOf(s)}
		if hasPolicy {
			info.Scope = document.Scope(s.Space)
		}
		info.Rules, _ = p.registry.Rules(account, s.Space)
		for _, pair := range info.Rules.Pairs {
			if pair.Source == s.Store {
				info.CopiedTo = append(info.CopiedTo, pair.Destination)
			}
			if pair.Destination == s.Store {
				info.CopyOf = append(info.CopyOf, pair.Source)
			}
		}
		for _, n := range open {
			if n.GetStore() == s.Store && n.GetSpace() == s.Space {
				info.Incidents = append(info.Incidents, n)
			}
		}
		all[i] = info
	}
	return all, nil
}

// States of a space in a store, as the store answers.
const (
	SpaceExists  = "exists"
	SpaceAbsent  = "absent"
	SpaceUnknown = "unknown" // the store does not answer, or its marker cannot be read: the space is not absent
)

// A SpaceView is a SpaceInfo with the state of the store.
type SpaceView struct {
	SpaceInfo
	State string
	Space storage.Space // if it exists
	Err   error         // why the state is unknown
	// Limits of the brake on deletes in the space at this store, and the deletes that count, within an hour and 30 days.
	Limits      brake.Limits
	Hour, Month int64
	// Before is the oldest count of the space by the stats sweep within 30 days; the zero value: there is none.
	Before read.SpaceSize
}

// SpaceViews returns a space in all stores of its account, and asks the stores for it.
func (p *Policies) SpaceViews(
	ctx context.Context, db *clickhouse.DB, log *slog.Logger, of schemas.Copy,
) ([]SpaceView, error) {
	infos, err := p.Spaces(ctx, db, of.Account, of.Space)
	if err != nil {
		return nil, err
	}
	stores, err := newStores(p.cfg, log)
	if err != nil {
		return nil, err
	}
	views := make([]SpaceView, len(infos))
	var asking sync.WaitGroup
	for i, info := range infos {
		v := &views[i]
		v.SpaceInfo, v.Limits = info, brakeLimits(brake.Deletes, p.cfg, info.Rules)
		asking.Go(func() { v.State, v.Space, v.Err = stores.spaceState(ctx, of.In(info.Store)) })
	}
	asking.Wait()
	if err := errors.Join(context.Cause(ctx), stores.close()); err != nil {
		return nil, err
	}
	now := time.Now()
	sizes, err := read.SizesSince(ctx, db, of.Account, of.Space, now.Add(-30*24*time.Hour))
	if err != nil {
		return nil, err
	}
	for i := range views {
		for _, n := range sizes {
			if n.Store == views[i].Store {
				views[i].Before = n
			}
		}
		at := of.In(views[i].Store)
		counts, err := read.DeletesSince(ctx, db, at, now.Add(-30*24*time.Hour))
		if err != nil {
			return nil, err
		}
		for _, c := range counts {
			if views[i].Month += int64(c.Count); c.At.After(now.Add(-time.Hour)) {
				views[i].Hour += int64(c.Count)
			}
		}
	}
	return views, nil
}

// spaceState asks a store for a space. It is absent only if the store's marker was read after the store said so.
func (s *Stores) spaceState(ctx context.Context, of schemas.Copy) (string, storage.Space, error) {
	ctx, cancel := context.WithTimeout(ctx, storeCheckTimeout)
	defer cancel()
	st, err := s.configured(StoreName{of.Account, of.Store})
	if err != nil {
		return SpaceUnknown, storage.Space{}, err
	}
	space, err := st.StatSpace(ctx, of.Space)
	switch {
	case err == nil:
		return SpaceExists, space, nil
	case !errors.Is(err, storage.ErrNoSpace):
		return SpaceUnknown, storage.Space{}, fmt.Errorf("stat space %q: %w", of.Space, err)
	}
	if err := st.Marker(ctx); err != nil {
		return SpaceUnknown, storage.Space{}, fmt.Errorf("read the marker: %w", err)
	}
	return SpaceAbsent, storage.Space{}, nil
}
