package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace/schemas"
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
	Account string `json:"account"`
	read.SpaceSummary
	Record string `json:"record"` // SpaceLive, ...
	// Scope is the part of the policy that applies to the space; empty: the account has no policy in force.
	Scope policy.Scope `json:"policy"`
	Rules policy.Rules `json:"-"`
	// CopiedTo and CopyOf are the stores of the pairs that have this store. NotCopied is why none has; empty if one has.
	CopiedTo  []string `json:"copied_to"`
	CopyOf    []string `json:"copy_of"`
	NotCopied string   `json:"not_copied"`
	Incidents []string `json:"incidents"` // keys of the open ones of the space and its items in this store
}

// notCopied returns why no pair of the policy has the store; empty if one has.
func (s SpaceInfo) notCopied() string {
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
	case s.Gone != nil && (s.Created == nil || !s.Created.After(*s.Gone)):
		return SpaceGone
	case s.Items > 0:
		return SpaceLive
	case s.Deleted != nil && (s.Created == nil || s.Deleted.After(*s.Created)):
		return SpaceDeleted
	case s.First == nil:
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
		info := SpaceInfo{Account: account, SpaceSummary: s, Record: recordOf(s), CopiedTo: []string{}, CopyOf: []string{},
			Incidents: []string{}}
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
				info.Incidents = append(info.Incidents, schemas.IncidentKey(n))
			}
		}
		info.NotCopied = info.notCopied()
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

// A SpaceView is a SpaceInfo with the state of the store and the rules in force.
type SpaceView struct {
	SpaceInfo
	State string `json:"state"`
	Error string `json:"error"` // why the state is unknown
	// Properties and ACL are null if they are not known.
	Properties        map[string]string `json:"properties"`
	ACL               map[string]string `json:"acl"`
	PropertiesUnknown bool              `json:"properties_unknown"`
	Revision          int64             `json:"policy_revision"`
	Deletes           policy.Deletes    `json:"deletes"`
	DeletesSince      *time.Time        `json:"deletes_since"` // copies of what was deleted before are kept
	Holds             []policy.Hold     `json:"holds"`
	// The limits of the brake on deletes in the space at this store, and the deletes that the limits are about.
	MaxShare float64 `json:"brake_max_share"`
	MaxCount int64   `json:"brake_max_count"`
	Hour     int64   `json:"deletes_last_hour"`
	Month    int64   `json:"deletes_last_30_days"`
	// The oldest count of the space by the stats sweep within 30 days.
	CountedAt   *time.Time `json:"counted_at"`
	ItemsBefore int64      `json:"items_counted"`
	BytesBefore int64      `json:"bytes_counted"`
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
		rules, limits := info.Rules, brakeLimits(brake.Deletes, p.cfg, info.Rules)
		views[i] = SpaceView{SpaceInfo: info, Revision: rules.Revision, Deletes: rules.Deletes,
			DeletesSince: knownTime(rules.Since), Holds: filled(rules.Holds),
			MaxShare: limits.MaxShare, MaxCount: limits.MaxCount}
		asking.Go(func() { views[i].ask(ctx, stores, of.In(info.Store)) })
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
				views[i].CountedAt, views[i].ItemsBefore, views[i].BytesBefore = knownTime(n.At), n.Items, n.Bytes
			}
		}
		at := of.In(views[i].Store)
		counts, err := read.ExecutedSince(ctx, db, at, now.Add(-30*24*time.Hour), read.Deletes)
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

// ask sets what the store says.
func (v *SpaceView) ask(ctx context.Context, stores *Stores, of schemas.Copy) {
	state, space, err := stores.spaceState(ctx, of)
	if v.State, v.PropertiesUnknown = state, space.PropertiesUnknown; err != nil {
		v.Error = err.Error()
	}
	if state == SpaceExists && !space.PropertiesUnknown { // else null: not known to be empty
		v.Properties, v.ACL = map[string]string{}, map[string]string{}
		maps.Copy(v.Properties, space.Properties)
		maps.Copy(v.ACL, space.ACL)
	}
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
