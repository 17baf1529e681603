package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"github.com/rogpeppe/go-internal/diff"
	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/cmd/millrace/usage"
	"github.com/millrace/millrace/cmd/precondition"
	"github.com/millrace/millrace/streams/policy"
)

// changeFlags are the flags of commands that publish a policy.
type changeFlags struct {
	engineFlags
	base   int64
	reason string
	output *output
}

func (f *changeFlags) register(c *cobra.Command) {
	f.engineFlags.register(c)
	c.Flags().Int64Var(&f.base, "base", 0,
		"the revision `N` that was edited: nothing is published if it is no longer the current one")
	c.Flags().StringVar(&f.reason, "reason", "", "the reason, which is recorded")
	f.output = outputFlag(c, formText, formJSON)
}

// A policyResult is the result of a change.
type policyResult struct {
	Account  string `json:"account"`
	Revision int64  `json:"revision"` // the current one
	Changed  bool   `json:"changed"`
}

// publish publishes a change, and prints the result. done says what was done, and same that it changes nothing.
func (f *changeFlags) publish(ctx context.Context, c *cobra.Command, p *app.Policies, change app.PolicyChange) error {
	change.Base, change.By = app.AnyBase, app.Actor{Who: currentUser(), Reason: f.reason, From: policy.FromCLI}
	if c.Flags().Changed("base") {
		change.Base = f.base
	}
	revision, changed, err := p.Publish(ctx, change)
	var lost *policy.LostError
	if errors.As(err, &lost) {
		return refusedChange(c.ErrOrStderr(), p, change, lost)
	}
	if err != nil {
		return err
	}
	r := policyResult{change.Account, revision, changed}
	if f.output.form == formJSON {
		return writeJSON(c.OutOrStdout(), r)
	}
	_, err = fmt.Fprintln(c.OutOrStdout(), r.text(change.Document == nil))
	return err
}

func (r policyResult) text(removal bool) string {
	switch {
	case !r.Changed && removal:
		return fmt.Sprintf("account %s has no policy in force: nothing is published", r.Account)
	case !r.Changed:
		return fmt.Sprintf("policy of account %s: revision %d is the same: nothing is published", r.Account, r.Revision)
	case removal:
		return fmt.Sprintf("policy of account %s is removed by revision %d", r.Account, r.Revision)
	}
	return fmt.Sprintf("policy of account %s: revision %d is in force", r.Account, r.Revision)
}

// refusedChange prints how a change that was not published differs from the policy in force, and returns its error.
func refusedChange(w io.Writer, p *app.Policies, change app.PolicyChange, lost *policy.LostError) error {
	now := p.Info(change.Account)
	mine, err := canonical(change.Document)
	if err != nil {
		return err
	}
	held := ""
	if now.Active != nil {
		if held, err = canonical(now.Active.Document); err != nil {
			return err
		}
	}
	_, err = w.Write(diff.Diff(fmt.Sprintf("revision %d, in force", now.Revision), []byte(held), "not published",
		[]byte(mine)))
	return errors.Join(fmt.Errorf("%w: %w; 'millrace policy diff %s %d' prints what has changed since, and "+
		"--base %d publishes over it", precondition.Err, lost, change.Account, lost.Revision-1, now.Revision), err)
}

// canonical returns the canonical text of a document without its account, which is known; empty for nil.
func canonical(d *policy.Document) (string, error) {
	if d == nil {
		return "", nil
	}
	anonymous := *d
	anonymous.Account = ""
	return anonymous.YAML()
}

func newPolicySet() *cobra.Command {
	f := new(changeFlags)
	c := &cobra.Command{
		Use:   "set ACCOUNT FILE",
		Short: "Publish a policy",
		Long: `Reads a document from FILE, or from stdin if FILE is -, and checks it with the configured stores. It is in
force everywhere within a second after the command ends. A document that equals the one in force is not published.

With --base N nothing is published if the current revision is not N: the command prints who published the current one
and how the documents differ. Without --base the change is based on the revision that is current when the command
reads it.

Exit codes: 0 fine, 1 error, 2 usage or faults in the document, 5 another revision was published after the base,
130 interrupted.`,
		Args: exactly(2),
		RunE: func(c *cobra.Command, args []string) error {
			content, err := readPolicyFile(c, args[1])
			if err != nil {
				return err
			}
			return f.withPolicies(c, func(ctx context.Context, p *app.Policies, e *engines) error {
				file := app.CheckPolicy(e.cfg, args[0], args[1], content)
				if err := reportPolicies(c.ErrOrStderr(), file); err != nil {
					return err
				}
				return f.publish(ctx, c, p, app.PolicyChange{Account: args[0], Document: &file.Document})
			})
		},
	}
	f.register(c)
	return c
}

func newPolicyRemove() *cobra.Command {
	f := new(changeFlags)
	c := &cobra.Command{
		Use:   "remove ACCOUNT --reason TEXT",
		Short: "Remove the policy of an account: it is not copied any more",
		Long: `Publishes a revision without a document. Waiting commands of the account end without effect, and existing
copies stay and are checked further. 'millrace policy set' publishes a policy again.

Exit codes: 0 fine, 1 error, 2 usage, 5 another revision was published after the base, 130 interrupted.`,
		Args: exactly(1),
		RunE: func(c *cobra.Command, args []string) error {
			if f.reason == "" {
				return fmt.Errorf("%w: --reason is missing: it is recorded", usage.Err)
			}
			return f.withPolicies(c, func(ctx context.Context, p *app.Policies, _ *engines) error {
				if len(p.History(args[0])) == 0 {
					return unknownAccount(p, args[0])
				}
				return f.publish(ctx, c, p, app.PolicyChange{Account: args[0]})
			})
		},
	}
	f.register(c)
	return c
}

// readPolicyFile reads a file, or stdin if its name is -. An unreadable one is a usage error.
func readPolicyFile(c *cobra.Command, name string) (content []byte, err error) {
	if name == "-" {
		content, err = io.ReadAll(c.InOrStdin())
	} else {
		content, err = os.ReadFile(name)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: read the policy: %w", usage.Err, err)
	}
	return content, nil
}

func newPolicyDiff() *cobra.Command {
	var f engineFlags
	c := &cobra.Command{
		Use:   "diff ACCOUNT [REVISION [REVISION] | FILE]",
		Short: "Compare two revisions, or a file with the policy in force",
		Long: `Prints the unified diff of two documents in their canonical form:

  diff ACCOUNT      the previous revision and the current one
  diff ACCOUNT 3    revision 3 and the policy in force
  diff ACCOUNT 3 5  revisions 3 and 5
  diff ACCOUNT FILE the policy in force and a file (- is stdin)

Exit codes: 0 they are equal, 1 error, 2 usage or faults in the file, 3 they differ, 130 interrupted.`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) < 1 || len(args) > 3 {
				return exactly(1)(c, args)
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			return f.withPolicies(c, func(_ context.Context, p *app.Policies, e *engines) error {
				before, after, err := comparedPolicies(c, p, e, args)
				if err != nil {
					return err
				}
				return comparePolicies(c.OutOrStdout(), before, after)
			})
		},
	}
	f.register(c)
	return c
}

// A namedPolicy is a document to compare.
type namedPolicy struct {
	name     string
	document *policy.Document // nil: none
}

// comparePolicies prints the difference of two documents. The error wraps errFindings if they differ.
func comparePolicies(w io.Writer, before, after namedPolicy) error {
	old, err := canonical(before.document)
	if err != nil {
		return err
	}
	text, err := canonical(after.document)
	if err != nil || old == text {
		return err
	}
	if _, err := w.Write(diff.Diff(before.name, []byte(old), after.name, []byte(text))); err != nil {
		return err
	}
	return fmt.Errorf("%w: %s and %s differ", errFindings, before.name, after.name)
}

// comparedPolicies returns the documents that the arguments of diff name.
func comparedPolicies(
	c *cobra.Command, p *app.Policies, e *engines, args []string,
) (before, after namedPolicy, err error) {
	account, now := args[0], p.Info(args[0])
	if len(args) == 2 {
		if _, err := strconv.ParseInt(args[1], 10, 64); err != nil {
			content, err := readPolicyFile(c, args[1])
			if err != nil {
				return before, after, err
			}
			file := app.CheckPolicy(e.cfg, account, args[1], content)
			return inForce(now), namedPolicy{args[1], &file.Document}, reportPolicies(c.ErrOrStderr(), file)
		}
	}
	if len(p.History(account)) == 0 {
		return before, after, unknownAccount(p, account)
	}
	revisions := []int64{now.Revision - 1, now.Revision}
	for i, arg := range args[1:] {
		if revisions[i], err = strconv.ParseInt(arg, 10, 64); err != nil {
			return before, after, fmt.Errorf("%w: %q is not the number of a revision", usage.Err, arg)
		}
	}
	if before, err = revisionOf(p, account, revisions[0], len(args) > 1); err != nil {
		return before, after, err
	}
	if len(args) == 2 {
		return before, inForce(now), nil
	}
	after, err = revisionOf(p, account, revisions[1], true)
	return before, after, err
}

// inForce returns the document in force.
func inForce(i app.PolicyInfo) namedPolicy {
	n := namedPolicy{name: "no policy in force"}
	if i.Active != nil {
		n = namedPolicy{fmt.Sprintf("revision %d, in force", i.Active.Revision), i.Active.Document}
	}
	return n
}

// revisionOf returns the document of a revision. If named is false, revision 0 is the empty state before the first one.
func revisionOf(p *app.Policies, account string, revision int64, named bool) (namedPolicy, error) {
	name := fmt.Sprintf("revision %d", revision)
	if revision == 0 && !named {
		return namedPolicy{name: name}, nil
	}
	e, err := requireRevision(p, account, revision)
	if err != nil {
		return namedPolicy{}, err
	}
	if e.Fault != nil {
		return namedPolicy{}, e.Fault
	}
	return namedPolicy{name, e.Document}, nil
}
