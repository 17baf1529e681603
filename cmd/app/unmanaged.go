package app

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/policy"
)

// errNoRecords reports that an account is neither configured nor has copies on record.
var errNoRecords = errors.New("has no copies on record")

// Unmanaged returns the live copies on record that the policies in force do not manage, ordered by account, store and
// space: their store is neither a source nor a destination of the space, nor the account's primary store, or the
// account no longer has it. account selects one account; empty: all.
func (a *App) Unmanaged(ctx context.Context, account string) (all []UnmanagedCopies, err error) {
	all = []UnmanagedCopies{}
	err = a.withPolicies(ctx, func(ctx context.Context, r *policy.Registry) error {
		return a.completeTables(ctx, func() error {
			accounts, err := read.AccountsOnRecord(ctx, a.db)
			if err != nil {
				return err
			}
			if account != "" {
				if !slices.Contains(accounts, account) && len(a.stores.IDs(account)) == 0 {
					return fmt.Errorf("account %s %w", account, errNoRecords)
				}
				accounts = []string{account}
			}
			for _, account := range accounts {
				of, err := a.unmanagedOf(ctx, r, account)
				if err != nil {
					return err
				}
				all = append(all, of...)
			}
			return nil
		})
	})
	return all, err
}

func (a *App) unmanagedOf(
	ctx context.Context, r *policy.Registry, account string,
) (all []UnmanagedCopies, err error) {
	live, err := read.FixityStatus(ctx, a.db, read.StatusQuery{Account: account})
	rules, primary := rulesOf(r, account), a.primaryOf(account)
	for _, c := range live {
		has := a.hasStore(account, c.Store)
		if has && (c.Store == primary || rules(c.Space).Manages(c.Store)) {
			continue
		}
		all = append(all, UnmanagedCopies{account, c.Store, c.Space, has,
			PlannedCount{int64(c.Live), c.Bytes, int64(c.Unsized)}})
	}
	return all, err
}

// An UnmanagedItem is a copy that no policy manages.
type UnmanagedItem struct {
	Account string    `json:"account"`
	Store   string    `json:"store"`
	Space   string    `json:"space"`
	Item    string    `json:"item"`
	Size    *int64    `json:"size"` // bytes; nil: unknown
	Time    time.Time `json:"time"` // of the content, as it was reported
}

// unmanagedPage is the number of copies that UnmanagedItems passes on at once.
const unmanagedPage = 1000

// UnmanagedItems calls each with the live copies of a space in a store, in parts.
func (a *App) UnmanagedItems(ctx context.Context, of UnmanagedCopies, each func([]UnmanagedItem) error) error {
	var page []UnmanagedItem
	space := schemas.Copy{Account: of.Account, Store: of.Store, Space: of.Space}
	err := read.EachLive(ctx, a.db, space, func(k schemas.KnownCopy) error {
		m := k.Record.GetManifest()
		u := UnmanagedItem{k.Account, k.Store, k.Space, k.Item, nil, schemas.Reported(m).AsTime()}
		if size := schemas.SizeOf(m); size >= 0 {
			u.Size = &size
		}
		if page = append(page, u); len(page) < unmanagedPage {
			return nil
		}
		defer func() { page = nil }()
		return each(page)
	})
	if err != nil {
		return err
	}
	return each(page)
}
