package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/schemas"
)

// A countedAccount is the result of the stats sweep for an account. Its copies are counted in all stores.
type countedAccount struct {
	Account  string `json:"account"`
	Round    string `json:"round"`
	Spaces   int64  `json:"spaces"` // in each store
	Copies   int64  `json:"copies"`
	Bytes    int64  `json:"bytes"`
	Unsized  int64  `json:"unsized"`  // copies of unknown size
	Verified int64  `json:"verified"` // copies whose content has passed a check of its bytes
	// Pairs are the spaces of the pairs of the policy, and Differ those whose stores differ in items or bytes on record.
	Pairs  int64 `json:"pairs"`
	Differ int64 `json:"pairs_differ"`
}

// count runs a round of the stats sweep.
func (f *sweepFlags) count(c *cobra.Command) error {
	counted := []countedAccount{}
	err := f.withApp(c, func(ctx context.Context, a *app.App, e *engines) error {
		return e.withRoles(c, a, f.engineFlags, rolesWithoutSweeper(), func(ctx context.Context, w *waiter) error {
			begun, err := a.Begin(ctx, false)
			if err != nil {
				return err
			}
			all, err := a.SweepStats(ctx, f.account, begun)
			for _, r := range all {
				counted = append(counted, countedAccount{r.Account, r.ID, r.Counts["spaces"], r.Counts["items"], r.Counts["bytes"],
					r.Counts["unsized"], r.Counts["verified"], r.Counts["pairs"], r.Counts["pairs_differ"]})
			}
			if err != nil || !f.wait {
				return err
			}
			return w.until(ctx, "reports", []schemas.Role{schemas.RoleSink}, a.Handled(schemas.RoleSink))
		})
	})
	if err == nil || len(counted) > 0 {
		err = errors.Join(err, f.printCounted(c.OutOrStdout(), counted))
	}
	return err
}

func (f *sweepFlags) printCounted(out io.Writer, all []countedAccount) error {
	if f.output.form == formJSON {
		return writeJSON(out, all)
	}
	for _, a := range all {
		unsized := ""
		if a.Unsized > 0 {
			unsized = fmt.Sprintf(", and %d of unknown size", a.Unsized)
		}
		differ := ""
		if a.Differ > 0 {
			differ = fmt.Sprintf("%d of %d spaces of pairs differ in items or bytes: see 'millrace sweep report stats'\n",
				a.Differ, a.Pairs)
		}
		if _, err := fmt.Fprintf(out, "account %s: %d copies of %d bytes in %d spaces%s; %d are verified\n%s",
			a.Account, a.Copies, a.Bytes, a.Spaces, unsized, a.Verified, differ); err != nil {
			return err
		}
	}
	return nil
}
