package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/cmd/millrace/progress"
	"github.com/millrace/millrace/cmd/millrace/usage"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/retry"
)

func newDead() *cobra.Command {
	return noun("dead", "Look at what could not be handled, and decide", newDeadList(), newDeadShow(), newDeadRedrive(), newDeadDiscard())
}

// deadFlags choose dead letters.
type deadFlags struct {
	engineFlags
	role, topic, class, cause, since string
}

func (f *deadFlags) register(c *cobra.Command) {
	f.engineFlags.register(c)
	c.Flags().StringVar(&f.role, "role", "", "only what this `ROLE` could not handle")
	c.Flags().StringVar(&f.topic, "topic", "", "only what was first sent to this `TOPIC`")
	c.Flags().StringVar(&f.class, "class", "", "only failures of this `CLASS`: transient, wait, unavailable or permanent")
	c.Flags().StringVar(&f.cause, "cause", "", "only errors that hold this `TEXT`")
	c.Flags().StringVar(&f.since, "since", "", "only what died since this `TIME`, or not longer ago: 2006-01-02T15:04:05Z, 90m, 7d")
}

// query turns the flags into what is asked for.
func (f *deadFlags) query(ids []string) (kafka.DeadQuery, error) {
	q := kafka.DeadQuery{IDs: ids, Role: schemas.Role(f.role), Topic: schemas.Topic(f.topic), Class: f.class, Cause: f.cause}
	var roles, topics, classes []string
	for _, e := range schemas.Catalogue() {
		if !e.Raw {
			topics = append(topics, string(e.Topic))
		}
		for _, r := range e.Readers {
			if !slices.Contains(roles, string(r)) {
				roles = append(roles, string(r))
			}
		}
	}
	roles = append(roles, string(schemas.RoleDelayer))
	if _, foreign := q.Topic.Foreign(); foreign { // of which there are any
		topics = append(topics, f.topic)
	}
	for _, c := range []retry.Class{retry.Transient, retry.ClassWait, retry.ClassUnavailable, retry.ClassPermanent} {
		classes = append(classes, c.String())
	}
	for _, w := range []struct {
		flag, value string
		known       []string
	}{{"role", f.role, roles}, {"topic", f.topic, topics}, {"class", f.class, classes}} {
		if w.value != "" && !slices.Contains(w.known, w.value) {
			return q, fmt.Errorf("%w: there is no %s %q: there are %s", usage.Err, w.flag, w.value, strings.Join(w.known, ", "))
		}
	}
	if f.since != "" {
		at, err := sinceTime(f.since, time.Now())
		if err != nil {
			return q, err
		}
		q.Since = at
	}
	return q, nil
}

// sinceTime reads a time, or how long ago it was.
func sinceTime(text string, now time.Time) (time.Time, error) {
	at, ok := parseTimeOr(text, func(d time.Duration) time.Time { return now.Add(-d) })
	if !ok {
		return at, fmt.Errorf("%w: --since is a time such as 2006-01-02T15:04:05Z, or how long ago: 90m, 24h, 7d; not %q",
			usage.Err, text)
	}
	return at, nil
}

// withDead runs do with the dead letters. With roles, which need all engines, do can run roles.
func (f *engineFlags) withDead(c *cobra.Command, roles bool,
	do func(ctx context.Context, e *engines, d *kafka.DeadLetters) error) (err error) {
	ctx := c.Context()
	e, err := f.open(ctx, c.ErrOrStderr(), app.StateConfig{WithoutEngine: !roles})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close(ctx)) }()
	d, err := app.OpenDead(ctx, e.cfg, e.log)
	if err != nil {
		return err
	}
	defer d.Close()
	return do(ctx, e, d)
}

func newDeadList() *cobra.Command {
	var (
		f         deadFlags
		all, each bool
		o         *output
	)
	c := &cobra.Command{
		Use:   "list",
		Short: "List dead letters by their causes, the most frequent first",
		Args:  usage.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			q, err := f.query(nil)
			if err != nil {
				return err
			}
			q.Closed = all
			return f.withDead(c, false, func(ctx context.Context, _ *engines, d *kafka.DeadLetters) error {
				if each {
					return listLetters(ctx, c.OutOrStdout(), d, q, o)
				}
				causes, err := causesOf(ctx, d, q)
				if err != nil {
					return err
				}
				return printList(c.OutOrStdout(), o, causes, causeTable())
			})
		},
	}
	f.register(c)
	c.Flags().BoolVar(&all, "all", false, "those too that were redriven or discarded")
	c.Flags().BoolVar(&each, "each", false, "every letter for itself")
	o = listFlag(c)
	return c
}

func newDeadShow() *cobra.Command {
	var (
		f engineFlags
		o *output
	)
	c := &cobra.Command{
		Use:   "show ID",
		Short: "Print all that is known of a dead letter: headers, history and message",
		Args:  exactly(1),
		RunE: func(c *cobra.Command, args []string) error {
			return f.withDead(c, false, func(ctx context.Context, _ *engines, d *kafka.DeadLetters) error {
				return d.Each(ctx, kafka.DeadQuery{IDs: args}, func(l *kafka.DeadLetter) error {
					if o.form == formJSON {
						return writeJSON(c.OutOrStdout(), fullLetter(l))
					}
					return showLetter(c.OutOrStdout(), l)
				})
			})
		},
	}
	f.register(c)
	o = outputFlag(c, formText, formJSON)
	return c
}

// deadCodes are the exit codes of discard.
const deadCodes = `Exit codes: 0 all of them, 1 none or not to the end, 2 usage, 4 some were refused (it is said why) and the
others are done, 5 precondition, 130 interrupted.`

// deadOrder is what redrive and discard have in common.
type deadDecision struct {
	deadFlags
	reason, rate string
	dryRun       bool
	force        bool
	wait         bool // of redrive
	output       *output
}

func (o *deadDecision) register(c *cobra.Command) {
	o.deadFlags.register(c)
	c.Flags().StringVar(&o.reason, "reason", "", "why, for the record")
	c.Flags().BoolVar(&o.dryRun, "dry-run", false, "only say how many that are, by cause")
	c.Flags().BoolVar(&o.force, "force", false, "also letters that are named and were decided about before")
	o.output = listFlag(c)
	c.Flags().Lookup("output").Usage += "; of the list of --dry-run"
}

// order checks the flags.
func (o *deadDecision) parse(ids []string) (kafka.DeadQuery, kafka.DeadOrder, error) {
	order := kafka.DeadOrder{Who: currentUser(), Reason: o.reason, From: "cli", Force: o.force}
	q, err := o.query(ids)
	switch {
	case err != nil:
	case !q.Narrow():
		err = fmt.Errorf("%w: name dead letters by their ids, or choose them with --role, --topic, --class, --cause or --since", usage.Err)
	case o.force && len(ids) == 0:
		err = fmt.Errorf("%w: --force is for dead letters that are named by their ids", usage.Err)
	case o.rate != "":
		order.Rate, err = strconv.ParseFloat(strings.TrimSuffix(o.rate, "/s"), 64)
		if err != nil || order.Rate <= 0 {
			err = fmt.Errorf("%w: --rate is a number of letters a second, such as 50/s, not %q", usage.Err, o.rate)
		}
	}
	return q, order, err
}

func newDeadRedrive() *cobra.Command {
	var (
		o    deadDecision
		file string
	)
	c := &cobra.Command{
		Use:   "redrive [ID...]",
		Short: "Have dead letters handled once more, by the role that could not",
		Long: `Sends dead letters, named or chosen, to the role that could not handle them, with all attempts before
them and their history kept. What the sinks could not store goes to the topic where it came from, and so
does a letter whose value was edited. Nothing is removed: the letters stay, and it is put on record that
they were redriven, so that the same command goes on with the rest where it was stopped.

With --wait it ends when the roles have handled the letters and what came of that is on record: outputs, or another
dead letter. A letter that waits in a delay lane, since a store is away for example, counts as handled: the delayer
has it tried again when it is due. With --state all roles run in this command until then.

Exit codes: 0 all of them, 1 none or not to the end, 2 usage, 3 with --wait: some are dead letters again, 4 some were
refused (it is said why) and the others are done, 5 precondition, 130 interrupted.`,
		RunE: func(c *cobra.Command, ids []string) error {
			q, order, err := o.parse(ids)
			if err != nil {
				return err
			}
			if file != "" {
				if len(ids) != 1 || o.reason == "" {
					return fmt.Errorf("%w: --value is for one dead letter, named by its id, and wants a --reason", usage.Err)
				}
				if order.Value, err = os.ReadFile(file); err != nil {
					return fmt.Errorf("read the edited value: %w", err)
				}
				if len(order.Value) == 0 {
					return fmt.Errorf("%w: %s is empty", usage.Err, file)
				}
			}
			return o.run(c, "redrive", "redriven", q, order, (*kafka.DeadLetters).Redrive)
		},
	}
	o.register(c)
	c.Flags().BoolVar(&o.wait, "wait", false,
		"wait until they are handled, or dead once more, and what came of it is on record")
	c.Flags().StringVar(&o.rate, "rate", "", "at most `N/s` letters a second")
	c.Flags().StringVar(&file, "value", "", "send the message in this `FILE` (JSON, as show -o json has it, or Protobuf) in place of the letter's")
	return c
}

func newDeadDiscard() *cobra.Command {
	var o deadDecision
	c := &cobra.Command{
		Use:   "discard [ID...] --reason TEXT",
		Short: "Put on record that dead letters are not to be handled any more; they stay where they are",
		Long: `Puts on record that dead letters, named or chosen, are not to be handled any more, and why. They stay
where they are, and can be redriven by their ids with --force.

` + deadCodes,
		RunE: func(c *cobra.Command, ids []string) error {
			q, order, err := o.parse(ids)
			if err != nil {
				return err
			}
			if o.reason == "" && !o.dryRun {
				return fmt.Errorf("%w: say with --reason why nothing more is to come of them", usage.Err)
			}
			return o.run(c, "discard", "discarded", q, order, (*kafka.DeadLetters).Discard)
		},
	}
	o.register(c)
	return c
}

type decideFunc func(*kafka.DeadLetters, context.Context, kafka.DeadQuery, kafka.DeadOrder) (kafka.DeadReport, error)

// longWork is from how many letters on it is shown how far they are.
const progressThreshold = 200

//nolint:revive // the words differ, and nothing else
func (o *deadDecision) run(c *cobra.Command, verb, done string, q kafka.DeadQuery, order kafka.DeadOrder, decide decideFunc) error {
	return o.withDead(c, o.wait, func(ctx context.Context, e *engines, d *kafka.DeadLetters) error {
		causes, err := causesOf(ctx, d, q)
		if err != nil {
			return err
		}
		total := 0
		for _, cause := range causes {
			total += cause.Open
			if o.force {
				total += cause.Redriven + cause.Discarded
			}
		}
		out, stderr := c.OutOrStdout(), c.ErrOrStderr()
		if o.dryRun {
			fmt.Fprintf(stderr, "would %s %d dead letters\n", verb, total)
			return printList(out, o.output, causes, causeTable())
		}
		letters, err := o.letters(ctx, d, q)
		if err != nil {
			return err
		}
		var step *progress.Step
		if total >= progressThreshold || order.Rate > 0 {
			step = e.display.Step(verb, int64(total))
			order.Told = func(n int) { step.Set(int64(n)) }
		}
		r, err := decide(d, ctx, q, order)
		if step != nil {
			step.End(err == nil)
		}
		if ctx.Err() != nil {
			fmt.Fprintf(stderr, "stopped: %d of %d dead letters are %s; the same command goes on with the rest\n", r.Done, total, done)
			return err
		}
		if err != nil {
			return fmt.Errorf("%d of %d dead letters are %s; the same command goes on with the rest: %w", r.Done, total, done, err)
		}
		again := 0
		if o.wait && r.Done > 0 {
			if err = e.waitHandled(c, o.engineFlags, rolesOf(causes)...); err == nil {
				again, err = letters.countDeadAgain(ctx, d)
			}
		}
		fmt.Fprintf(out, "%s %d dead letters\n", done, r.Done)
		if err != nil {
			return err
		}
		if o.state != "" && verb == "redrive" && r.Done > 0 && !o.wait {
			fmt.Fprintln(out, o.laterWithState("they are handled"))
		}
		return outcome(r, again)
	})
}

// outcome returns the error of letters that were refused, and of messages that are dead letters again.
func outcome(r kafka.DeadReport, again int) (err error) {
	if again > 0 {
		err = fmt.Errorf("%w: %d messages are dead letters again: see 'millrace dead list'", errFindings, again)
	}
	if r.Refused == 0 {
		return err
	}
	refused := fmt.Errorf("%d dead letters were refused; the first: %w", r.Refused, r.Why)
	if r.Done > 0 {
		refused = fmt.Errorf("%w: %w", errPartly, refused)
	}
	return errors.Join(err, refused)
}
