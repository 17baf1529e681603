package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/cmd/millrace/progress"
	"github.com/millrace/millrace/cmd/millrace/usage"
	"github.com/millrace/millrace/cmd/statedir"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/verify"
)

// errFindings is wrapped by the error of a command that has reported findings.
var errFindings = errors.New("findings")

// verifyFlags are the flags of verify.
type verifyFlags struct {
	engineFlags
	topics   []string
	manifest bool
	strict   bool
	output   *output
}

func newVerify() *cobra.Command {
	var f verifyFlags
	c := &cobra.Command{
		Use:   "verify",
		Short: "Compare the records of Kafka with the rows of ClickHouse: ids, bytes and rows",
		Long: `Reads each topic once up to its present end, and its tables and their views once. Findings are

  - messages without a row, or with several rows,
  - rows without a message,
  - rows that differ from what was stored, or from their records in Kafka,
  - tables that lack committed records, because they were emptied or restored,
  - records that Kafka removed before they were stored,
  - records that 'millrace rebuild' reported as lost, until they are accepted.

An id at two offsets counts as one message. These are reported and are no findings: dead letters of the sink, records
that its group has not committed (--strict makes them findings), and rows with records that retention removed from
Kafka.

With --manifest the command rebuilds the state of every copy from audit_log and bit_log in a temporary table, and
reports the copies that differ from it, by column.

Ids are kept in a temporary file (120 bytes per message, in TMPDIR), so that memory is bounded.

Exit codes: 0 no findings, 1 error, 2 usage, 3 findings, 5 precondition, 130 interrupted.`,
		Args: usage.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			topics, err := f.check()
			if err != nil {
				return err
			}
			return f.withEngines(c, statedir.Config{}, func(ctx context.Context, e *engines) error {
				return f.run(ctx, c.OutOrStdout(), e, topics)
			})
		},
	}
	f.register(c)
	c.Flags().StringSliceVar(&f.topics, "topic", nil, "only these `TOPICS`, without their prefix")
	c.Flags().BoolVar(&f.manifest, "manifest", false, "compare the state of copies with the logs")
	c.Flags().BoolVar(&f.strict, "strict", false, "treat records that the sink has not committed as findings")
	f.output = outputFlag(c, formTable, formJSON)
	return c
}

// check returns the topics to verify.
func (f *verifyFlags) check() ([]schemas.Topic, error) {
	if f.manifest && len(f.topics) > 0 {
		return nil, fmt.Errorf("%w: --manifest compares tables, and --topic a topic: name one of them", usage.Err)
	}
	known := app.SinkTopics()
	if len(f.topics) == 0 {
		return known, nil
	}
	var topics []schemas.Topic
	for _, t := range f.topics {
		topic := schemas.Topic(t)
		if !slices.Contains(known, topic) {
			return nil, fmt.Errorf("%w: no table is fed by topic %q: the topics are %v", usage.Err, t, known)
		}
		if !slices.Contains(topics, topic) {
			topics = append(topics, topic)
		}
	}
	return topics, nil
}

func (f *verifyFlags) run(ctx context.Context, out io.Writer, e *engines, topics []schemas.Topic) (err error) {
	show := &stepTracker{display: e.display, steps: map[string]*progress.Step{}}
	v, err := app.OpenVerifier(ctx, e.cfg, e.log, show.update)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, v.Close()) }()
	r := verifyReport{Strict: f.strict}
	if f.manifest {
		r.Manifest, err = v.Manifest(ctx)
	} else {
		r.Tables, err = v.Topics(ctx, topics)
	}
	if err == nil {
		r.Gaps, err = v.Gaps(ctx)
	}
	if err == nil {
		r.Lost, err = v.Lost(ctx)
	}
	show.display.Close()
	if err != nil {
		return err
	}
	return r.finish(out, f.output.form == formJSON)
}

// A stepTracker starts a progress step at its first update, and ends it when it is complete.
type stepTracker struct {
	display *progress.Display
	steps   map[string]*progress.Step // nil values are ended steps
}

func (s *stepTracker) update(name string, done, total int64) {
	if total == 0 {
		return // an empty step is not shown
	}
	step, known := s.steps[name]
	if !known {
		step = s.display.Step(name, total)
		s.steps[name] = step
	}
	switch {
	case step == nil: // already ended
	case done < total:
		step.Set(done)
	default:
		step.Set(total)
		step.End(true)
		s.steps[name] = nil
	}
}

// A verifyReport is the result of verify, and its JSON output.
type verifyReport struct {
	OK       bool                  `json:"ok"`
	Findings int64                 `json:"findings"`
	Strict   bool                  `json:"strict,omitempty"`
	Tables   []*verify.TableReport `json:"tables,omitempty"`
	Manifest *app.ManifestReport   `json:"manifest,omitempty"`
	// Gaps are ranges of committed records that tables lack according to their positions.
	Gaps []clickhouse.Gap `json:"gaps,omitempty"`
	Lost []app.Loss       `json:"lost,omitempty"`
}

// finish writes the report, and returns an error that wraps errFindings if there are findings.
func (r *verifyReport) finish(out io.Writer, asJSON bool) error {
	for _, t := range r.Tables {
		r.Findings += t.Findings()
		if r.Strict {
			r.Findings += t.Pending.Messages
		}
	}
	r.Findings += int64(len(r.Gaps) + len(r.Lost))
	if r.Manifest != nil {
		r.Findings += int64(len(r.Manifest.Differ))
		if r.Strict {
			r.Findings += int64(len(r.Manifest.InFlight))
		}
	}
	r.OK = r.Findings == 0
	write := r.text
	if asJSON {
		write = func(w io.Writer) error { return json.NewEncoder(w).Encode(r) }
	}
	if err := write(out); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	if r.OK {
		return nil
	}
	objects := "messages or rows"
	switch {
	case len(r.Gaps)+len(r.Lost) > 0:
		objects = "messages, rows, copies or ranges of offsets"
	case r.Manifest != nil:
		objects = "copies"
	}
	return fmt.Errorf("%w: %d %s differ or are missing", errFindings, r.Findings, objects)
}

func (r *verifyReport) text(out io.Writer) error {
	var b strings.Builder
	if r.Manifest != nil {
		writeManifest(&b, r.Manifest)
	} else {
		writeTables(&b, r.Tables)
	}
	for _, g := range r.Gaps {
		fmt.Fprintf(&b, "%s (run millrace rebuild)\n", g)
	}
	writeLost(&b, r.Lost)
	if r.OK {
		b.WriteString("no findings\n")
	}
	_, err := io.WriteString(out, b.String())
	return err
}
