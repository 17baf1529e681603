package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/sinks/clickhouse/read"
)

// maxSkippedShown is the number of skipped names that the text output lists.
const maxSkippedShown = 5

// A result is the result of the demo.
type result struct {
	OK       bool      `json:"ok"`
	Missed   []string  `json:"missed,omitempty"` // expectations that were not met
	Dir      string    `json:"dir"`
	State    string    `json:"state,omitempty"`
	Items    int       `json:"items"`
	Bytes    int64     `json:"bytes"`
	Skipped  []skip    `json:"skipped,omitempty"`
	Stores   []counts  `json:"stores"`
	Findings []finding `json:"findings"`
	// Adopted is the number of files that no event had reported and that now have a copy in every store.
	Adopted int `json:"adopted"`
	// Seconds is the time from the first write to the last first check, over all runs.
	Seconds   float64 `json:"seconds"`
	ItemRate  float64 `json:"items_per_second"`
	DelayP50  float64 `json:"change_to_copy_seconds_median"` // of the slower pair of stores
	DelayP99  float64 `json:"change_to_copy_seconds_p99"`
	Checks    int64   `json:"checks"` // with a final result
	BytesRead int64   `json:"bytes_checked"`
	// Rounds are the fixity rounds that have ended, with their reports.
	Rounds []roundResult `json:"rounds"`

	timeline   []read.Event
	adopted    string // the name of that file
	checkpoint *checkpoint
	kept       bool
}

type counts struct {
	Store    string `json:"store"`
	Driver   string `json:"driver"`
	Items    int64  `json:"items"`
	Verified int64  `json:"verified"`
	Deleted  int64  `json:"deleted"`
	Bytes    int64  `json:"bytes"`
}

// result collects the result. short is the step that did not succeed; nil if all did.
func (d *demo) result(ctx context.Context, short *shortfall) (*result, error) {
	r := &result{
		Dir: d.checkpoint.Dir, State: d.cfg.State, Skipped: d.checkpoint.Skipped, Seconds: d.checkpoint.Spent,
		checkpoint: d.checkpoint, kept: d.cfg.Keep, adopted: d.unreported(),
	}
	if short != nil {
		r.Missed = append(r.Missed, short.what)
	}
	for _, f := range d.checkpoint.Files {
		r.Items++
		r.Bytes += f.Size
	}
	if r.Seconds > 0 {
		r.ItemRate = float64(r.Items) / r.Seconds
	}
	if err := d.measure(ctx, r); err != nil {
		return nil, err
	}
	var err error
	if r.Findings, err = d.findings(ctx); err != nil {
		return nil, err
	}
	open, err := read.OpenIncidents(ctx, d.app.DB(), account)
	if err != nil {
		return nil, err
	}
	for i := range r.Findings {
		f := &r.Findings[i]
		if f.Expected > 0 {
			if f.Repaired, err = d.isRepaired(ctx, *f, open); err != nil {
				return nil, err
			}
		}
		if !f.Found || !f.Repaired {
			r.Missed = append(r.Missed, fmt.Sprintf("%s in store %s (%s): expected row %d, found row %d %q, repaired: %v",
				f.Item, f.Store, f.Harm, f.Expected, f.Row, f.Finding, f.Repaired))
		}
	}
	if r.timeline, err = read.Timeline(ctx, d.app.DB(), account, space, d.checkpoint.Picks.Flip); err != nil {
		return nil, err
	}
	r.OK = len(r.Missed) == 0
	return r, nil
}

// measure reads counts and delays, and records counts that differ from the expected ones.
func (d *demo) measure(ctx context.Context, r *result) error {
	list, err := read.CopyCounts(ctx, d.app.DB(), account)
	if err != nil {
		return err
	}
	if n, err := d.countAdopted(ctx); err != nil {
		return err
	} else if n == int64(len(stores)) {
		r.Adopted = 1
	} else {
		r.Missed = append(r.Missed, fmt.Sprintf("%s: adopted in %d of %d stores", d.unreported(), n, len(stores)))
	}
	for _, c := range list {
		r.Stores = append(r.Stores,
			counts{c.Store, d.driver(c.Store), int64(c.Live), int64(c.Verified), int64(c.Tombstones), c.Bytes})
		if want := uint64(r.Items - 1 + r.Adopted); c.Live != want || c.Verified != want || c.Tombstones != 1 {
			r.Missed = append(r.Missed, fmt.Sprintf("store %s: %d items, %d verified, %d deleted; expected %d, %d, 1",
				c.Store, c.Live, c.Verified, c.Tombstones, want, want))
		}
	}
	if len(list) != len(stores) {
		r.Missed = append(r.Missed, fmt.Sprintf("%d stores recorded, expected %d", len(list), len(stores)))
	}
	delays, err := read.PairDelays(ctx, d.app.DB(), account, d.checkpoint.Started)
	if err != nil {
		return err
	}
	for _, p := range delays {
		r.DelayP50, r.DelayP99 = max(r.DelayP50, p.P50), max(r.DelayP99, p.P99)
	}
	checks, _, err := read.Failures(ctx, d.app.DB(), read.FailureQuery{Account: account})
	if err != nil {
		return err
	}
	r.Checks, r.BytesRead = int64(checks.Checks), checks.Bytes
	r.Rounds, err = d.reported(ctx)
	return err
}

// driver returns the kind of a store.
func (d *demo) driver(store string) string {
	if store == primary {
		return kindFile
	}
	return d.checkpoint.Kind
}

// write prints the result: as one JSON object on one line, or as text.
func (r *result) write(w io.Writer, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(w).Encode(r)
	}
	var b strings.Builder
	r.page(&b)
	_, err := io.WriteString(w, b.String())
	return err
}

func (r *result) page(b *strings.Builder) {
	fmt.Fprintf(b, "History of an item (%s):\n\n", r.checkpoint.Picks.Flip)
	tw := tabwriter.NewWriter(b, 2, 0, 2, ' ', 0)
	for _, e := range r.timeline {
		fmt.Fprintf(tw, "  %s\tstore %s\t%s\t%s\n",
			e.Time.Local().Format("15:04:05.000"), e.Store, e.Kind, e.What+" "+e.Detail)
	}
	tw.Flush()
	fmt.Fprintf(b, "\nStores of account %s, space %s:\n\n", account, space)
	tw = tabwriter.NewWriter(b, 2, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "store\tdriver\titems\tverified\tdeleted\tbytes\t")
	for _, c := range r.Stores {
		fmt.Fprintf(tw, "%s\t%s\t%d\t%d\t%d\t%d\t\n", c.Store, c.Driver, c.Items, c.Verified, c.Deleted, c.Bytes)
	}
	tw.Flush()
	fmt.Fprintf(b, "\n%d items (%d bytes) written, copied twice and all three checked in %.1f s: %.0f items/s\n",
		r.Items, r.Bytes, r.Seconds, r.ItemRate)
	fmt.Fprintf(b, "change to copy: median %v, p99 %v; %d checks read %d bytes\n",
		seconds(r.DelayP50), seconds(r.DelayP99), r.Checks, r.BytesRead)
	r.skips(b)
	fmt.Fprintln(b, "\nDamage without a report to millrace, and the result:")
	fmt.Fprintln(b)
	tw = tabwriter.NewWriter(b, 2, 0, 2, ' ', 0)
	for _, f := range r.Findings {
		row, end := fmt.Sprintf("row %d", f.Row), "repaired"
		if f.Expected == 0 {
			row, end = "", "done"
		}
		if !f.Found || !f.Repaired {
			end = "NOT AS EXPECTED"
		}
		fmt.Fprintf(tw, "  store %s\t%s\t%s\t%s\t%s\t%s\n", f.Store, f.Harm, row, f.Finding, end, f.Item)
	}
	tw.Flush()
	if r.Adopted > 0 {
		fmt.Fprintf(b, "\nA file that another program put into store %s was found, copied and checked: %s\n",
			primary, r.adopted)
	}
	fmt.Fprintf(b, "\n%d rounds of checks have ended, each with its report.\n", len(r.Rounds))
	r.next(b)
}

func (r *result) skips(b *strings.Builder) {
	if len(r.Skipped) == 0 {
		return
	}
	fmt.Fprintf(b, "%d names were skipped:\n", len(r.Skipped))
	for i, s := range r.Skipped {
		if i == maxSkippedShown {
			fmt.Fprintf(b, "  ... and %d more (all of them with -o json)\n", len(r.Skipped)-maxSkippedShown)
			break
		}
		fmt.Fprintf(b, "  %s: %s\n", s.Path, s.Reason)
	}
}

// next prints the next commands to try.
func (r *result) next(b *strings.Builder) {
	if !r.OK {
		fmt.Fprintln(b, "\nThe demo did not succeed:")
		for _, m := range r.Missed {
			fmt.Fprintf(b, "  %s\n", m)
		}
	} else {
		fmt.Fprintln(b, "\nThe demo succeeded: every result is as expected.")
	}
	fmt.Fprintln(b, "\nNext:")
	if r.State == "" {
		fmt.Fprintln(b, "  millrace demo --keep DIR          the same with your own files, and keep the state")
	} else {
		fmt.Fprintf(b, "  millrace object show --state %s %s/%s/%s\n",
			r.State, schemas.Key(account), space, r.checkpoint.Picks.Flip)
		fmt.Fprintf(b, "  millrace fixity rounds --all --state %s\n", r.State)
		fmt.Fprintf(b, "  millrace incident list --state %s\n", r.State)
	}
	fmt.Fprintln(b, "  millrace standalone --config examples/millrace.yaml --state STATE")
}

func seconds(s float64) time.Duration {
	return time.Duration(s * float64(time.Second)).Round(time.Millisecond)
}
