package main

import (
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
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/sinks/clickhouse"
)

// errFindings is wrapped by what a command returns that found something wrong, and said what.
var errFindings = errors.New("findings")

// verifyFlags say what is verified, and how it is told.
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
		Short: "Compare what Kafka holds with what ClickHouse has of it: ids, bytes and rows",
		Long: `Reads each topic once, up to where it ends now, and its tables and their views once, and names
messages without a row, with several, or with one in the wrong month, rows without a message,
and rows that are not what was stored, or were not made of the bytes that Kafka has. An id that stands at
two offsets counts once, wherever its row is. Said apart, and no findings, are: what the sink made dead letters;
what its group has not committed yet (--strict counts it); rows whose records retention
has removed from Kafka; and rows that were stored before rows had hashes. A table that is behind what was committed,
since it was emptied or restored, is a finding, and so are records that Kafka has removed before they were
stored, and what 'millrace rebuild' found to be lost for good, until it is accepted.

With --manifest, makes the state of every copy once more, from audit log and bit log, in a table
that is dropped again, and names the copies that the state says something else of, by column.

Ids wait in a temporary file (120 bytes a message, in TMPDIR), so that memory does not grow with their number.

Exit codes: 0 no findings, 1 error, 2 usage, 3 findings, 5 precondition, 130 interrupted.`,
		Args: usage.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			topics, err := f.check()
			if err != nil {
				return err
			}
			return f.run(c, topics)
		},
	}
	f.register(c)
	c.Flags().StringSliceVar(&f.topics, "topic", nil, "only these `TOPICS`, named without their prefix")
	c.Flags().BoolVar(&f.manifest, "manifest", false, "compare the state of copies with the logs")
	c.Flags().BoolVar(&f.strict, "strict", false, "what the sink has not committed yet is a finding too")
	f.output = outputFlag(c, formTable, formJSON)
	return c
}

// check returns the topics that are meant.
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

func (f *verifyFlags) run(c *cobra.Command, topics []schemas.Topic) (err error) {
	ctx, out := c.Context(), c.OutOrStdout()
	e, err := f.open(ctx, c.ErrOrStderr(), app.StateConfig{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close(ctx)) }()
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
		r.Behind, err = v.Behind(ctx)
	}
	if err == nil {
		r.Lost, err = v.Lost(ctx)
	}
	if err == nil {
		r.Replicated, err = v.Replicated(ctx)
	}
	show.display.Close()
	if err != nil {
		return err
	}
	return r.finish(out, f.output.form == formJSON)
}

// shownSteps begins a step when it is first told of, and ends it when it is complete.
type stepTracker struct {
	display *progress.Display
	steps   map[string]*progress.Step // nil: it has ended
}

func (s *stepTracker) update(name string, done, total int64) {
	if total == 0 {
		return // nothing to be done is nothing to be shown
	}
	step, known := s.steps[name]
	if !known {
		step = s.display.Step(name, total)
		s.steps[name] = step
	}
	switch {
	case step == nil: // it was told once too often
	case done < total:
		step.Set(done)
	default:
		step.Set(total)
		step.End(true)
		s.steps[name] = nil
	}
}

// A verdict is what verify says, as JSON in these names.
type verifyReport struct {
	OK       bool                     `json:"ok"`
	Findings int64                    `json:"findings"`
	Strict   bool                     `json:"strict,omitempty"`
	Tables   []*clickhouse.TableProof `json:"tables,omitempty"`
	Manifest *app.ManifestReport      `json:"manifest,omitempty"`
	Behind   []clickhouse.Gap         `json:"behind,omitempty"` // what tables lack by their positions
	Lost     []app.Lost               `json:"lost,omitempty"`
	// Replicated are the shards of which one replica was asked: what the others have is not known.
	Replicated []clickhouse.Shard `json:"replicated,omitempty"`
}

// tell writes the verdict, and returns an error that wraps errFindings where there are any.
func (r *verifyReport) finish(out io.Writer, asJSON bool) error {
	for _, t := range r.Tables {
		r.Findings += t.Findings()
		if r.Strict {
			r.Findings += t.Pending.Messages
		}
	}
	r.Findings += int64(len(r.Behind) + len(r.Lost))
	if r.Manifest != nil {
		r.Findings += int64(len(r.Manifest.Differ))
		if r.Strict {
			r.Findings += int64(len(r.Manifest.Moving))
		}
	}
	r.OK = r.Findings == 0
	write := r.text
	if asJSON {
		write = func(w io.Writer) error { return json.NewEncoder(w).Encode(r) }
	}
	if err := write(out); err != nil {
		return fmt.Errorf("write what was found: %w", err)
	}
	if r.OK {
		return nil
	}
	what := "messages or rows"
	switch {
	case len(r.Behind)+len(r.Lost) > 0:
		what = "messages, rows, copies or ranges of offsets"
	case r.Manifest != nil:
		what = "copies"
	}
	return fmt.Errorf("%w: %d %s are not as they should be", errFindings, r.Findings, what)
}

func (r *verifyReport) text(out io.Writer) error {
	var b strings.Builder
	if r.Manifest != nil {
		writeManifest(&b, r.Manifest)
	} else {
		writeTables(&b, r.Tables)
	}
	for _, g := range r.Behind {
		fmt.Fprintf(&b, "%s (run millrace rebuild)\n", g)
	}
	writeLost(&b, r.Lost)
	for _, s := range r.Replicated {
		fmt.Fprintf(&b, "shard %d: one of its replicas %s was asked, the first that answered; what the others have was not compared\n",
			s.Number, strings.Join(s.Replicas, ", "))
	}
	if r.OK {
		b.WriteString("no findings\n")
	}
	_, err := io.WriteString(out, b.String())
	return err
}
