package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/streams/policy"
)

// formYAML is the canonical form of a document.
const formYAML = "yaml"

const (
	// statusWindow is how far back delays of copies are shown.
	statusWindow = 24 * time.Hour
	// statusTimeout bounds the reading of the status, so that the document is shown while ClickHouse is away.
	statusTimeout = 2 * time.Minute
)

// showFlags are the flags of policy show.
type showFlags struct {
	engineFlags
	revision int64
	document bool
	output   *output
}

func newPolicyShow() *cobra.Command {
	f := new(showFlags)
	c := &cobra.Command{
		Use:   "show ACCOUNT",
		Short: "Print the policy in force with its delays and pending items, or a revision",
		Long: `Prints the policy in force in its canonical form, which 'millrace policy set' reads, with who published it,
when and why. With --revision it prints the document of that revision.

For the policy in force it also prints, as comments or in the key status: for each pair of stores the delays of the
copies of the last 24 hours (median and 99th percentile, from the change to the end of the copy), the items with newer
content at the source than on record at the destination, and the time of the oldest of them; and how many copies no
policy manages. If ClickHouse does not answer, the reason is printed instead. --document leaves this out, and needs only
Kafka.

In the output as json, revision is the current one, or that of --revision. It is the --base of a change.`,
		Args: exactly(1),
		RunE: func(c *cobra.Command, args []string) error {
			if f.document || c.Flags().Changed("revision") {
				return f.withPolicies(c, func(_ context.Context, p *app.Policies, _ *engines) error {
					v, err := viewDocument(p, args[0], f.revision, c.Flags().Changed("revision"))
					if err != nil {
						return err
					}
					return f.print(c.OutOrStdout(), v)
				})
			}
			return f.withApp(c, func(ctx context.Context, a *app.App, e *engines) error { return f.show(ctx, c, a, e, args[0]) })
		},
	}
	f.register(c)
	c.Flags().Int64Var(&f.revision, "revision", 0, "print revision `N`, not the one in force")
	c.Flags().BoolVar(&f.document, "document", false, "print only the document; ClickHouse is not needed")
	f.output = outputFlag(c, formYAML, formJSON)
	return c
}

// show prints the policy in force with its status.
func (f *showFlags) show(ctx context.Context, c *cobra.Command, a *app.App, e *engines, account string) error {
	return app.WithPolicies(ctx, e.cfg, e.log, func(ctx context.Context, p *app.Policies) error {
		v, err := viewDocument(p, account, 0, false)
		if err != nil {
			return err
		}
		reading, cancel := context.WithTimeoutCause(ctx, statusTimeout,
			fmt.Errorf("the tables did not answer within %s", statusTimeout))
		defer cancel()
		v.Status, err = a.PolicyStatus(reading, account, statusWindow)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			if cause := context.Cause(reading); cause != nil {
				err = errors.Join(cause, err)
			}
			v.StatusError = err.Error()
		}
		return f.print(c.OutOrStdout(), v)
	})
}

func (f *showFlags) print(w io.Writer, v *documentView[policy.Document]) error {
	if f.output.form == formJSON {
		return writeJSON(w, v)
	}
	return v.print(w)
}

// print prints the view as YAML, with comments on the revision.
func (v *documentView[D]) print(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "# account %s, revision %d, %s", v.Account, v.Revision, v.State)
	if v.Since != nil {
		fmt.Fprintf(&b, " since %s", stamp(v.Since))
	}
	b.WriteString("\n")
	for _, line := range []struct{ name, text string }{
		{"by", v.By}, {"from", strings.TrimSpace(v.From + " " + v.Location)}, {"reason", v.Reason},
		{"fault", strings.Join(v.Faults, "; ")}, {"copies: unknown", v.StatusError},
	} {
		if line.text != "" {
			fmt.Fprintf(&b, "# %s: %s\n", line.name, oneLine(line.text))
		}
	}
	if v.Status != nil {
		b.WriteString(statusText(v.Status))
	}
	if v.Document == nil {
		b.WriteString("# no document\n")
	} else {
		if v.of != v.Revision {
			fmt.Fprintf(&b, "# the document is that of revision %d\n", v.of)
		}
		text, err := (*v.Document).YAML()
		if err != nil {
			return err
		}
		b.WriteString(text)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// statusText returns the status as comments.
func statusText(s *app.PolicyStatus) string {
	var b strings.Builder
	for _, p := range s.Pairs {
		fmt.Fprintf(&b, "# store %s to %s: %s pending", p.Source, p.Destination, countText(p.Pending))
		if p.Oldest != nil {
			fmt.Fprintf(&b, ", the oldest of %s", stamp(p.Oldest))
		}
		if p.P50 != nil && p.P99 != nil {
			fmt.Fprintf(&b, "; %d copies since %s, delay p50 %.3g s, p99 %.3g s", p.Copies, stamp(&s.Since), *p.P50, *p.P99)
		}
		b.WriteString("\n")
	}
	fmt.Fprintf(&b, "# unmanaged: %s\n# as of %s", countText(s.Unmanaged), stamp(&s.AsOf))
	if s.Behind > 0 {
		fmt.Fprintf(&b, "; %d later changes are not in ClickHouse yet", s.Behind)
	}
	b.WriteString("\n")
	return b.String()
}
