package app

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/kafka/admin"
	"github.com/millrace/millrace/streams/kafka/deadletter"
	"github.com/millrace/millrace/streams/retry"
)

// An Overview is the state of an installation in short.
type Overview struct {
	Stores    []StoreOverview      `json:"stores"`
	Work      []RoleBacklog        `json:"work"`
	Incidents []read.IncidentCount `json:"incidents"` // the open ones by kind
	Waiting   int64                `json:"waiting"`   // how many of them wait for a decision of an operator
	// DeadLetters is the number of messages that wait for an operator since they could not be handled; nil: it takes
	// longer to count them than deadLettersTimeout.
	DeadLetters *int64         `json:"dead_letters"`
	Paused      []string       `json:"paused"`   // what is paused, in the words of 'millrace pause'
	Inactive    []string       `json:"inactive"` // accounts
	Unserved    []schemas.Role `json:"unserved"` // roles that no process runs
}

// A StoreOverview adds the spaces of a store.
type StoreOverview struct {
	StoreName
	Copies   uint64  `json:"copies"`
	Bytes    int64   `json:"bytes"` // of the copies with a known size
	Verified uint64  `json:"verified"`
	Share    float64 `json:"verified_share"` // of the copies; 1 without copies
	Overdue  uint64  `json:"overdue"`
	Failing  uint64  `json:"failing"`
	Unknown  uint64  `json:"unknown"`
	Burn     float64 `json:"burn_rate"` // see burnRate
}

// A RoleBacklog is what a role has not handled.
type RoleBacklog struct {
	Role    schemas.Role `json:"role"`
	Records int64        `json:"records"`
	Bytes   *int64       `json:"bytes"`   // nil: unknown
	Seconds *float64     `json:"seconds"` // to handle them at the rate of the last seconds; nil: unknown
}

// rateWait is the time over which the rate of roles is measured.
const rateWait = 2 * time.Second

// Overview returns the state of an installation.
func (a *App) Overview(ctx context.Context) (o Overview, err error) {
	spaces, err := a.countCopies(ctx, schemas.Copy{}, a.kafka.Clock.Now())
	if err != nil {
		return o, err
	}
	o.Stores, o.Paused = sumByStore(spaces, a.cfg.Fixity.Objective), []string{}
	if o.Incidents, err = read.CountIncidents(ctx, a.db, ""); err != nil {
		return o, err
	}
	for _, n := range o.Incidents {
		o.Waiting += n.Waiting
	}
	if o.Work, err = a.backlogs(ctx); err != nil {
		return o, err
	}
	if o.DeadLetters, err = a.countDeadLetters(ctx); err != nil {
		return o, err
	}
	s, err := a.Standstill(ctx, Roles()...)
	for _, p := range s.Paused {
		o.Paused = append(o.Paused, p.String())
	}
	o.Inactive, o.Unserved = filled(s.Inactive), filled(s.Unserved)
	return o, err
}

// filled returns s, or an empty slice, which is an empty array in JSON.
func filled[T any](s []T) []T { return append([]T{}, s...) }

// sumByStore adds the spaces of each store, which are sorted by account and store.
func sumByStore(spaces []SpaceFixity, objective config.Share) []StoreOverview {
	all := []StoreOverview{}
	for _, s := range spaces {
		n := StoreName{s.Account, s.Store}
		if len(all) == 0 || all[len(all)-1].StoreName != n {
			all = append(all, StoreOverview{StoreName: n})
		}
		of := &all[len(all)-1]
		of.Copies, of.Bytes = of.Copies+s.Live, of.Bytes+s.Bytes
		of.Verified, of.Overdue = of.Verified+s.Live-s.Overdue, of.Overdue+s.Overdue
		of.Failing, of.Unknown = of.Failing+s.Failing, of.Unknown+s.Unknown
		of.Share, of.Burn = shareOf(of.Verified, of.Copies), burnRate(of.Overdue, of.Copies, objective)
	}
	return all
}

// backlogs returns what each role has not handled, those with most first.
func (a *App) backlogs(ctx context.Context) (all []RoleBacklog, err error) {
	if _, err = a.admin.Lags(ctx, Roles()...); err != nil { // the rates are those between two calls
		return nil, err
	}
	if err := retry.Sleep(ctx, rateWait); err != nil {
		return nil, err
	}
	lags, err := a.admin.Lags(ctx, Roles()...)
	if err != nil {
		return nil, err
	}
	return backlogsOf(lags), nil
}

// backlogsOf adds the lags of each role. Its topics are handled at the same time.
func backlogsOf(lags []admin.Lag) []RoleBacklog {
	all := []RoleBacklog{}
	for _, l := range lags {
		if l.Records == 0 {
			continue
		}
		i := slices.IndexFunc(all, func(b RoleBacklog) bool { return b.Role == l.Role })
		if i < 0 {
			all = append(all, RoleBacklog{Role: l.Role, Records: l.Records, Bytes: l.Bytes, Seconds: l.Seconds})
			continue
		}
		b := &all[i]
		b.Records += l.Records
		if b.Bytes = sumOf(b.Bytes, l.Bytes); b.Seconds != nil && l.Seconds != nil {
			longest := max(*b.Seconds, *l.Seconds)
			b.Seconds = &longest
		} else {
			b.Seconds = nil
		}
	}
	slices.SortStableFunc(all, func(a, b RoleBacklog) int { return cmp.Compare(b.Records, a.Records) })
	return all
}

// sumOf adds two numbers, of which none may be unknown.
func sumOf(a, b *int64) *int64 {
	if a == nil || b == nil {
		return nil
	}
	sum := *a + *b
	return &sum
}

// deadLettersTimeout is how long the dead letters are counted, by reading all of them.
const deadLettersTimeout = 10 * time.Second

func (a *App) countDeadLetters(ctx context.Context) (*int64, error) {
	letters, err := deadletter.New(a.kafka)
	if err != nil {
		return nil, err
	}
	defer letters.Close()
	timed, cancel := context.WithTimeout(ctx, deadLettersTimeout)
	defer cancel()
	n := int64(0)
	err = letters.Each(timed, deadletter.Query{}, func(*deadletter.Letter) error {
		n++
		return nil
	})
	switch {
	case err != nil && timed.Err() != nil && ctx.Err() == nil:
		return nil, nil
	case err != nil:
		return nil, err
	}
	return &n, nil
}
