package app

import (
	"context"
	"slices"
	"time"

	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/policy/preview"
)

// A PolicyStatus is how far the copies of an account on record are behind its policy in force.
type PolicyStatus struct {
	AsOf      time.Time    `json:"as_of"`  // when the records were read
	Behind    int64        `json:"behind"` // Changes that were in Kafka then, and not in the tables
	Since     time.Time    `json:"since"`  // start of the window of copies and delays
	Pairs     []PairStatus `json:"pairs"`
	Unmanaged PlannedCount `json:"unmanaged"`
}

// A PairStatus is the state of one pair of stores, over all spaces.
type PairStatus struct {
	Source      string `json:"source"`
	Destination string `json:"destination"`
	// Copies counts those that were made within the window because of a Change. The delays are from the time of the
	// Change to the end of the command; nil: there are no such copies.
	Copies uint64   `json:"copies"`
	P50    *float64 `json:"p50_seconds"`
	P99    *float64 `json:"p99_seconds"`
	// Pending are the items with a content at the source that is newer than the pair and not on record at the destination.
	// Oldest is the time of the oldest of these contents; nil: there is none.
	Pending PlannedCount `json:"pending"`
	Oldest  *time.Time   `json:"oldest"`
}

// PolicyStatus returns the status of the policy in force of an account. Delays are those of the given window.
func (a *App) PolicyStatus(ctx context.Context, account string, window time.Duration) (s *PolicyStatus, err error) {
	err = a.withPolicies(ctx, func(ctx context.Context, r *policy.Registry) error {
		s, err = a.policyStatus(ctx, r, account, window)
		return err
	})
	return s, err
}

// policyStatus is PolicyStatus with policies that were read.
func (a *App) policyStatus(
	ctx context.Context, r *policy.Registry, account string, window time.Duration,
) (*PolicyStatus, error) {
	now := time.Now().UTC()
	spaces := []string{""}
	if d, ok := r.Document(account); ok {
		spaces = append(spaces, d.NamedSpaces()...)
	}
	p, behind, err := a.preview(ctx, account,
		preview.Config{Rules: rulesOf(r, account), Before: rulesOf(r, account), Now: now}, spaces)
	if err != nil {
		return nil, err
	}
	s := &PolicyStatus{AsOf: now, Behind: behind, Since: now.Add(-window), Pairs: []PairStatus{}}
	delays, err := read.PairDelays(ctx, a.db, account, s.Since)
	if err != nil {
		return nil, err
	}
	for _, of := range p.Spaces() {
		s.pair(of.Pair).add(of)
	}
	for _, d := range delays {
		i := s.index(policy.Pair{Source: d.Source, Destination: d.Destination})
		if i >= 0 { // else the pair was removed
			s.Pairs[i].Copies, s.Pairs[i].P50, s.Pairs[i].P99 = d.Copies, &d.P50, &d.P99
		}
	}
	for _, c := range p.Unmanaged(false) {
		s.Unmanaged = countOf(preview.Count(s.Unmanaged).Plus(c.Count))
	}
	return s, nil
}

func (s *PolicyStatus) index(p policy.Pair) int {
	return slices.IndexFunc(s.Pairs, func(o PairStatus) bool {
		return o.Source == p.Source && o.Destination == p.Destination
	})
}

// pair returns the entry of a pair.
func (s *PolicyStatus) pair(p policy.Pair) *PairStatus {
	i := s.index(p)
	if i < 0 {
		i = len(s.Pairs)
		s.Pairs = append(s.Pairs, PairStatus{Source: p.Source, Destination: p.Destination})
	}
	return &s.Pairs[i]
}

// add adds the items of a space.
func (s *PairStatus) add(of preview.Space) {
	s.Pending = countOf(preview.Count(s.Pending).Plus(of.Waiting))
	if of.Waiting.Items > 0 && (s.Oldest == nil || of.Oldest.Before(*s.Oldest)) {
		s.Oldest = &of.Oldest
	}
}
