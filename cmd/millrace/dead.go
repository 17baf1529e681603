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
	"github.com/millrace/millrace/cmd/statedir"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka/deadletter"
	"github.com/millrace/millrace/streams/retry"
)

func newDead() *cobra.Command {
	return noun("dead", "List, redrive and discard dead letters",
		newDeadList(), newDeadShow(), newDeadRedrive(), newDeadDiscard())
}

// deadFlags select dead letters.
type deadFlags struct {
	engineFlags
	role, topic, class, cause, since string
}

func (f *deadFlags) register(c *cobra.Command) {
	f.engineFlags.register(c)
	c.Flags().StringVar(&f.role, "role", "", "only dead letters of this `ROLE`")
	c.Flags().StringVar(&f.topic, "topic", "", "only messages first sent to this `TOPIC`")
	c.Flags().StringVar(&f.class, "class", "", "only failures of this `CLASS`: transient, wait, unavailable or permanent")
	c.Flags().StringVar(&f.cause, "cause", "", "only errors that contain this `TEXT`")
	c.Flags().StringVar(&f.since, "since", "",
		"only dead letters since this `TIME`, or of the last such period: 2006-01-02T15:04:05Z, 90m, 7d")
}

// query converts the flags to a query.
func (f *deadFlags) query(ids []string) (deadletter.Query, error) {
	q := deadletter.Query{
		IDs: ids, Role: schemas.Role(f.role), Topic: schemas.Topic(f.topic), Class: f.class, Cause: f.cause,
	}
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
	if _, foreign := q.Topic.Foreign(); foreign { // any foreign topic is accepted
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

// sinceTime parses a time, or a duration before now.
func sinceTime(text string, now time.Time) (time.Time, error) {
	at, ok := parseTimeOr(text, func(d time.Duration) time.Time { return now.Add(-d) })
	if !ok {
		return at, fmt.Errorf("%w: --since is a time such as 2006-01-02T15:04:05Z, or how long ago: 90m, 24h, 7d; not %q",
			usage.Err, text)
	}
	return at, nil
}

// withDead calls do with access to the dead letters. If roles is true, all engines are started, so
// that do can run roles.
func (f *engineFlags) withDead(c *cobra.Command, roles bool,
	do func(ctx context.Context, e *engines, d *deadletter.Letters) error) error {
	return f.withEngines(c, statedir.Config{WithoutEngine: !roles}, func(ctx context.Context, e *engines) error {
		d, err := app.OpenDeadLetters(ctx, e.cfg, e.log)
		if err != nil {
			return err
		}
		defer d.Close()
		return do(ctx, e, d)
	})
}

func newDeadList() *cobra.Command {
	var (
		f         deadFlags
		all, each bool
		o         *output
	)
	c := &cobra.Command{
		Use:   "list",
		Short: "List dead letters by cause, the most frequent first",
		Args:  usage.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			q, err := f.query(nil)
			if err != nil {
				return err
			}
			q.Closed = all
			return f.withDead(c, false, func(ctx context.Context, _ *engines, d *deadletter.Letters) error {
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
	c.Flags().BoolVar(&all, "all", false, "include those that were redriven or discarded")
	c.Flags().BoolVar(&each, "each", false, "list each dead letter")
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
		Short: "Print a dead letter: headers, history and message",
		Args:  exactly(1),
		RunE: func(c *cobra.Command, args []string) error {
			return f.withDead(c, false, func(ctx context.Context, _ *engines, d *deadletter.Letters) error {
				return d.Each(ctx, deadletter.Query{IDs: args}, func(l *deadletter.Letter) error {
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
const deadCodes = `Exit codes: 0 all are done, 1 none is done or the command stopped early, 2 usage,
4 some were refused (the reason is printed) and the others are done, 5 precondition, 130 interrupted.`

// deadDecision has the flags that redrive and discard share.
type deadDecision struct {
	deadFlags
	reason, rate string
	dryRun       bool
	force        bool
	wait         bool // of redrive only
	output       *output
}

func (o *deadDecision) register(c *cobra.Command) {
	o.deadFlags.register(c)
	c.Flags().StringVar(&o.reason, "reason", "", "the reason, which is recorded")
	c.Flags().BoolVar(&o.dryRun, "dry-run", false, "only print the number of dead letters, by cause")
	c.Flags().BoolVar(&o.force, "force", false, "include named dead letters that were redriven or discarded before")
	o.output = listFlag(c)
	c.Flags().Lookup("output").Usage += ", for the list of --dry-run"
}

// parse checks the flags and returns the query and the order.
func (o *deadDecision) parse(ids []string) (deadletter.Query, deadletter.Order, error) {
	order := deadletter.Order{Who: currentUser(), Reason: o.reason, From: "cli", Force: o.force}
	q, err := o.query(ids)
	switch {
	case err != nil:
	case !q.Restricted():
		err = fmt.Errorf("%w: name dead letters by their ids, or choose them with --role, --topic, --class, --cause "+
			"or --since", usage.Err)
	case o.force && len(ids) == 0:
		err = fmt.Errorf("%w: --force is for dead letters that are named by their ids", usage.Err)
	case o.rate != "":
		order.Rate, err = strconv.ParseFloat(strings.TrimSuffix(o.rate, "/s"), 64)
		if err != nil || order.Rate <= 0 {
			err = fmt.Errorf("%w: --rate is a number of dead letters per second, such as 50/s, not %q", usage.Err, o.rate)
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
		Short: "Send dead letters back to their roles",
		Long: `Sends the selected dead letters back to the roles that could not handle them. Their attempts start again at
zero, and their history is kept. Dead letters of the sinks, and those with an edited value, go to their original topic.
The dead letters stay and are recorded as redriven. If the command is stopped, the same command continues with the
rest.

With --wait the command ends when the roles have handled the messages and ClickHouse has the results: outputs, or
new dead letters. A message in a delay lane, for example because its store is unavailable, counts as handled: the
delayer retries it when it is due. With --state all roles run in this command until then.

Exit codes: 0 all are done, 1 none is done or the command stopped early, 2 usage, 3 with --wait: some are dead letters
again, 4 some were refused (the reason is printed) and the others are done, 5 precondition, 130 interrupted.`,
		RunE: func(c *cobra.Command, ids []string) error {
			q, order, err := o.parse(ids)
			if err != nil {
				return err
			}
			if file != "" {
				if len(ids) != 1 || o.reason == "" {
					return fmt.Errorf("%w: --value is for one dead letter, named by its id, and needs a --reason", usage.Err)
				}
				if order.Value, err = os.ReadFile(file); err != nil {
					return fmt.Errorf("read the edited value: %w", err)
				}
				if len(order.Value) == 0 {
					return fmt.Errorf("%w: %s is empty", usage.Err, file)
				}
			}
			return o.run(c, "redrive", "redriven", q, order, (*deadletter.Letters).Redrive)
		},
	}
	o.register(c)
	c.Flags().BoolVar(&o.wait, "wait", false,
		"wait until they are handled or dead letters again, and ClickHouse has the results")
	c.Flags().StringVar(&o.rate, "rate", "", "at most `N/s` dead letters per second")
	c.Flags().StringVar(&file, "value", "",
		"send the message in this `FILE` (JSON in the form of show -o json, or Protobuf) instead of the original")
	return c
}

func newDeadDiscard() *cobra.Command {
	var o deadDecision
	c := &cobra.Command{
		Use:   "discard [ID...] --reason TEXT",
		Short: "Record that dead letters will not be handled",
		Long: `Records that the selected dead letters will not be handled, and the reason. The dead letters stay, and can be
redriven by id with --force.

` + deadCodes,
		RunE: func(c *cobra.Command, ids []string) error {
			q, order, err := o.parse(ids)
			if err != nil {
				return err
			}
			if o.reason == "" && !o.dryRun {
				return fmt.Errorf("%w: say with --reason why they are discarded", usage.Err)
			}
			return o.run(c, "discard", "discarded", q, order, (*deadletter.Letters).Discard)
		},
	}
	o.register(c)
	return c
}

type decideFunc func(*deadletter.Letters, context.Context, deadletter.Query, deadletter.Order) (deadletter.Report,
	error)

// progressThreshold is the number of dead letters from which progress is shown.
const progressThreshold = 200

//nolint:revive // redrive and discard differ in their words only
func (o *deadDecision) run(
	c *cobra.Command, verb, done string, q deadletter.Query, order deadletter.Order, decide decideFunc,
) error {
	return o.withDead(c, o.wait, func(ctx context.Context, e *engines, d *deadletter.Letters) error {
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
			order.Progress = func(n int) { step.Set(int64(n)) }
		}
		r, err := decide(d, ctx, q, order)
		if step != nil {
			step.End(err == nil)
		}
		if ctx.Err() != nil {
			fmt.Fprintf(stderr, "stopped: %d of %d dead letters are %s; the same command continues with the rest\n",
				r.Done, total, done)
			return err
		}
		if err != nil {
			return fmt.Errorf("%d of %d dead letters are %s; the same command continues with the rest: %w",
				r.Done, total, done, err)
		}
		deadAgain := 0
		if o.wait && r.Done > 0 {
			if err = e.waitHandled(c, o.engineFlags, rolesOf(causes)...); err == nil {
				deadAgain, err = letters.countDeadAgain(ctx, d)
			}
		}
		fmt.Fprintf(out, "%s %d dead letters\n", done, r.Done)
		if err != nil {
			return err
		}
		if o.state != "" && verb == "redrive" && r.Done > 0 && !o.wait {
			fmt.Fprintln(out, o.laterWithState("they are handled"))
		}
		return outcome(r, deadAgain)
	})
}

// outcome returns an error if dead letters were refused, or messages are dead letters again.
func outcome(r deadletter.Report, again int) (err error) {
	if again > 0 {
		err = fmt.Errorf("%w: %d messages are dead letters again: see 'millrace dead list'", errFindings, again)
	}
	if r.Refused == 0 {
		return err
	}
	refused := fmt.Errorf("%d dead letters were refused; the first: %w", r.Refused, r.FirstRefusal)
	if r.Done > 0 {
		refused = fmt.Errorf("%w: %w", errPartly, refused)
	}
	return errors.Join(err, refused)
}
