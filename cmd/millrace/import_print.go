package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/inventory"
)

// An importReport is the result of an import.
type importReport struct {
	flags *importFlags
	check *inventory.Check
	done  inventory.Progress
}

// importJSON is the report as JSON.
type importJSON struct {
	Listings  []listingJSON     `json:"listings"`
	Rows      int64             `json:"rows"`
	Sound     int64             `json:"sound"`
	Faulty    int64             `json:"faults"`
	Repeated  int64             `json:"listed_again"`
	NoDigest  int64             `json:"without_digest"`
	NoSize    int64             `json:"without_size"`
	NoTime    int64             `json:"without_time"`
	Passed    map[string]int64  `json:"ignored"`
	Unread    []string          `json:"columns_not_read"`
	DryRun    bool              `json:"dry_run"`
	Published int64             `json:"published"`
	Skipped   int64             `json:"skipped"`
	First     []json.RawMessage `json:"first"`
	Found     []faultJSON       `json:"found"`
}

type listingJSON struct {
	Path     string    `json:"path"`
	Format   string    `json:"format"`
	Modified time.Time `json:"modified"`
}

type faultJSON struct {
	File   string `json:"file"`
	Line   int64  `json:"line"`
	Reason string `json:"reason"`
}

// print writes the report to out, and the faults as text to problems.
func (r importReport) print(out, problems io.Writer) error {
	if r.flags.output.form == formJSON {
		return r.json(out)
	}
	for _, f := range r.check.Faults {
		fmt.Fprintln(problems, printable(f.Error()))
	}
	if more := r.check.Faulty - int64(len(r.check.Faults)); more > 0 {
		fmt.Fprintf(problems, "and %d more faults (--faults sets how many are printed)\n", more)
	}
	for _, l := range r.flags.order.Listings {
		fmt.Fprintf(out, "%s: %s\n", l.Path(), l.Format())
	}
	c := r.check
	fmt.Fprintf(out, "%d rows, %d of them sound; %d faults\n", c.Rows, c.Sound(), c.Faulty)
	for _, n := range []struct {
		n    int64
		text string
	}{
		{c.Repeated, "items are listed more than once, alike"},
		{c.NoDigest, "rows have no digest"},
		{c.NoSize, "rows have no size"},
		{c.NoTime, "rows have no time, and get " + r.defaultTimes()},
	} {
		if n.n > 0 {
			fmt.Fprintf(out, "%d %s\n", n.n, n.text)
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(c.PassedOver)) {
		fmt.Fprintf(out, "%d rows are ignored: %s\n", c.PassedOver[kind], kind)
	}
	if len(c.Unread) > 0 {
		fmt.Fprintf(out, "columns that are not read: %q\n", c.Unread)
	}
	switch {
	case r.flags.dryRun:
		for _, change := range c.First {
			fmt.Fprintln(out, changeLine(change))
		}
		fmt.Fprintf(out, "would publish %d changes of store %s/%s\n",
			r.publishable(), r.flags.target.Account, r.flags.target.Store)
	default:
		fmt.Fprintf(out, "published %d changes of store %s/%s; skipped %d rows\n",
			r.done.Published, r.flags.target.Account, r.flags.target.Store, r.done.Skipped)
		if r.flags.state != "" && r.done.Published > 0 && !r.flags.wait {
			fmt.Fprintln(out, r.flags.laterWithState("they are handled"))
		}
	}
	return nil
}

// publishable returns the number of rows that a run without --dry-run would publish, starting at
// the first.
func (r importReport) publishable() int64 {
	if r.check.Faulty > 0 && !r.flags.order.SkipFaulty {
		return 0
	}
	return r.check.Sound()
}

// defaultTimes returns the times for rows without one.
func (r importReport) defaultTimes() string {
	if t := r.flags.target.Default; !t.IsZero() {
		return t.UTC().Format(time.RFC3339)
	}
	words := make([]string, 0, len(r.flags.order.Listings))
	for _, l := range r.flags.order.Listings {
		if word := l.Modified().UTC().Format(time.RFC3339); !slices.Contains(words, word) && len(words) < 3 {
			words = append(words, word)
		}
	}
	return "the time of their listing: " + strings.Join(words, ", ")
}

func changeLine(c *pb.Change) string {
	words := []string{"  " + c.GetTime().AsTime().Format(time.RFC3339), fmt.Sprintf("%q", c.GetSpace()+"/"+c.GetItem())}
	size := "unknown size"
	if !c.GetSizeUnknown() {
		size = fmt.Sprintf("%d bytes", c.GetSize())
	}
	words = append(words, size)
	for _, alg := range slices.Sorted(maps.Keys(c.GetDigests())) {
		words = append(words, alg+":"+c.GetDigests()[alg])
	}
	return strings.Join(words, "  ")
}

func (r importReport) json(out io.Writer) error {
	c := r.check
	j := importJSON{
		Rows: c.Rows, Sound: c.Sound(), Faulty: c.Faulty, Repeated: c.Repeated,
		NoDigest: c.NoDigest, NoSize: c.NoSize, NoTime: c.NoTime,
		Passed: c.PassedOver, Unread: append([]string{}, c.Unread...), DryRun: r.flags.dryRun,
		Published: r.done.Published, Skipped: r.done.Skipped,
		Listings: []listingJSON{}, First: []json.RawMessage{}, Found: []faultJSON{},
	}
	for _, l := range r.flags.order.Listings {
		j.Listings = append(j.Listings, listingJSON{l.Path(), string(l.Format()), l.Modified().UTC()})
	}
	for _, change := range c.First {
		b, err := protojson.Marshal(change)
		if err != nil {
			return fmt.Errorf("print a change: %w", err)
		}
		j.First = append(j.First, b)
	}
	for _, f := range c.Faults {
		j.Found = append(j.Found, faultJSON{f.At.File, f.At.Line, f.Reason})
	}
	return writeJSON(out, j)
}

// exitError returns the error with which the command ends.
func (r importReport) exitError() error {
	switch {
	case r.check.Faulty == 0:
		return nil
	case r.flags.dryRun:
		return fmt.Errorf("%w: there are %d faults in the listings", errFindings, r.check.Faulty)
	case r.flags.order.SkipFaulty:
		return fmt.Errorf("%w: %d rows were skipped because there are %d faults in the listings",
			errPartly, r.done.Skipped, r.check.Faulty)
	}
	return fmt.Errorf("%w: there are %d faults in the listings, so nothing is published; "+
		"--skip-faulty publishes the %d sound rows", errFindings, r.check.Faulty, r.check.Sound())
}
