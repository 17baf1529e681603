package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse/read"
)

func newIncidentCheck() *cobra.Command {
	var wait bool
	c := listing(&cobra.Command{
		Use:   "check " + keysUse,
		Short: "Check the copies of incidents now",
		Long: `Requests a check of the copy of each incident, ahead of the scheduled checks, and has its bytes read (not in a
store with read: never). A check that passes closes the incident. Keys are given as for 'millrace incident approve'.

With --wait the command ends when each check has a final result, and prints it. With --state all roles except the
sweeper run in this command until then.

Exit codes: 0 fine, 1 error, 2 usage, 3 with --wait: a copy failed its check or lost its properties, 4 the checks of
some incidents are requested and those of others not, 5 precondition, such as an incident without an item,
130 interrupted: the checks that were requested are still made.`,
		Args: someKeys,
	}, func(c *cobra.Command, args []string, f *engineFlags, o *output) error {
		keys, err := incidentKeys(c, args)
		if err != nil {
			return err
		}
		return f.withApp(c, func(ctx context.Context, a *app.App, e *engines) error {
			r := incidentChecks{request: schemas.NewID(), begun: time.Now()}
			err := r.ask(ctx, a, keys)
			if wait && len(r.rows) > 0 {
				if waited := r.await(c, e, a, *f); waited != nil {
					return errors.Join(err, waited)
				}
			}
			err = errors.Join(err, printList(c.OutOrStdout(), o, r.rows, checkTable()), r.findings())
			if e.state != nil && !wait && len(r.rows) > 0 {
				fmt.Fprintln(c.ErrOrStderr(), f.laterWithState("the checks are made"))
			}
			return err
		})
	})
	c.Flags().BoolVar(&wait, "wait", false, "wait until the results are recorded")
	return c
}

// incidentChecks are the checks of the copies of incidents that one command requests.
type incidentChecks struct {
	request string // the cause of the checks
	begun   time.Time
	rows    []checkRow
	copies  []schemas.Copy // of the rows, each once
}

// A checkRow is a requested check in a list.
type checkRow struct {
	Key     string `json:"key"` // of the incident
	Account string `json:"account"`
	Store   string `json:"store"`
	Space   string `json:"space"`
	Item    string `json:"item"`
	// The result, with --wait.
	Verdict  string `json:"verdict,omitempty"`
	Finding  string `json:"finding,omitempty"`
	Level    *uint8 `json:"evidence_level,omitempty"`
	Metadata string `json:"metadata,omitempty"`
	Detail   string `json:"detail,omitempty"`
}

func (r checkRow) copy() schemas.Copy {
	return schemas.Copy{Account: r.Account, Store: r.Store, Space: r.Space, Item: r.Item}
}

// isFinding reports whether the check found the copy, or its properties, not to be as on record.
func (r checkRow) isFinding() bool {
	return slices.Contains(failedVerdicts(), r.Verdict) || r.Metadata == "damaged"
}

func checkTable() table[checkRow] {
	return table[checkRow]{"INCIDENT\tVERDICT\tFINDING\tDETAIL", func(r checkRow) []string {
		verdict, finding := r.Verdict, r.Finding
		if verdict == "" {
			verdict = "requested"
		}
		if r.Metadata == "damaged" {
			finding += ", " + metadataDamaged
		}
		return []string{r.Key, verdict, finding, r.Detail}
	}}
}

// ask requests the checks, one for each copy.
func (r *incidentChecks) ask(ctx context.Context, a *app.App, keys []string) error {
	open, err := openIncidents(ctx, a)
	if err != nil {
		return err
	}
	_, err = decideEach(ctx, keys, open, func(i *pb.Incident) (decision, error) {
		of := schemas.CopyOf(i)
		if !slices.Contains(r.copies, of) {
			if err := a.CheckIncident(ctx, i, r.request); err != nil {
				return decision{}, err
			}
			r.copies = append(r.copies, of)
		}
		r.rows = append(r.rows, checkRow{Key: schemas.IncidentKey(i), Account: of.Account, Store: of.Store,
			Space: of.Space, Item: of.Item})
		return decision{incident: i}, nil
	})
	return err
}

// clockSkew bounds by how much the clock of a checker may be behind.
const clockSkew = time.Hour

// await waits until each check has a final result.
func (r *incidentChecks) await(c *cobra.Command, e *engines, a *app.App, f engineFlags) error {
	by := []schemas.Role{schemas.RoleChecker, schemas.RoleDelayer, schemas.RoleSink}
	var results map[schemas.Copy]read.FinalCheck
	err := e.withRoles(c, a, f, rolesWithoutSweeper(), func(ctx context.Context, w *waiter) error {
		return w.until(ctx, "checks", by, func(ctx context.Context) (_ app.Progress, err error) {
			results, err = read.FinalChecks(ctx, a.DB(), r.request, r.begun.Add(-clockSkew), r.copies)
			return app.Progress{Done: int64(len(results)), Total: int64(len(r.copies))}, err
		})
	})
	for n := range r.rows {
		row := &r.rows[n]
		if found, ok := results[row.copy()]; ok {
			row.Verdict, row.Finding, row.Level = found.Verdict, found.Finding, &found.Level
			row.Metadata, row.Detail = found.Metadata, found.Detail
		}
	}
	return err
}

// findings returns an error that wraps errFindings if a check has found a fault.
func (r *incidentChecks) findings() error {
	n := 0
	for _, row := range r.rows {
		if row.isFinding() {
			n++
		}
	}
	if n == 0 {
		return nil
	}
	return fmt.Errorf("%w: %d of %d copies failed their check or lost their properties", errFindings, n, len(r.rows))
}
