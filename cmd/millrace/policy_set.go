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
	"github.com/millrace/millrace/streams/revision"
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
	change.Base, change.By = f.revised(c)
	n, changed, err := p.Publish(ctx, change)
	if err != nil {
		return refusedChange(c.ErrOrStderr(), p, change.Account, change.Document, err)
	}
	r := policyResult{change.Account, n, changed}
	return f.print(c, r, r.text(change.Document == nil))
}

// revised returns the base of a change, and who makes it.
func (f *changeFlags) revised(c *cobra.Command) (base int64, by app.Actor) {
	base = app.AnyBase
	if c.Flags().Changed("base") {
		base = f.base
	}
	return base, app.Actor{Who: currentUser(), Reason: f.reason, From: revision.FromCLI}
}

// print prints the result of a change.
func (f *changeFlags) print(c *cobra.Command, r policyResult, text string) error {
	if f.output.form == formJSON {
		return writeJSON(c.OutOrStdout(), r)
	}
	_, err := fmt.Fprintln(c.OutOrStdout(), text)
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

// refusedChange returns the error of a change that was not published. If another writer was first, it prints how the
// change differs from the document in force.
func refusedChange[D revised](w io.Writer, p documents[D], account string, mine *D, err error) error {
	var lost *revision.LostError
	if !errors.As(err, &lost) {
		return err
	}
	now := p.Info(account)
	text, err := canonical(mine)
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
		[]byte(text)))
	return errors.Join(fmt.Errorf("%w: %w; 'millrace %s diff %s %d' prints what has changed since, and "+
		"--base %d publishes over it", precondition.Err, lost, nounOf[D](), account, lost.Revision-1, now.Revision), err)
}

// canonical returns the canonical text of a document, that of a policy without its account, which is known; empty for
// nil.
func canonical[D revised](d *D) (string, error) {
	if d == nil {
		return "", nil
	}
	if p, is := any(*d).(policy.Document); is {
		p.Account = ""
		return p.YAML()
	}
	return (*d).YAML()
}

func newPolicySet() *cobra.Command {
	f := new(changeFlags)
	c := &cobra.Command{
		Use:   "set ACCOUNT FILE",
		Short: "Publish a policy",
		Long: `Reads a document from FILE, or from stdin if FILE is -, and checks it with the configured stores. It is in
force everywhere within a second after the command ends. A document that equals the one in force is not published.
'millrace policy plan' reports beforehand what it would do.

With --base N nothing is published if the current revision is not N: the command prints who published the current one
and how the documents differ. Without --base the change is based on the revision that is current when the command
reads it.

Exit codes: 0 fine, 1 error, 2 usage or faults in the document, 5 another revision was published after the base,
130 interrupted.`,
		Args: exactly(2),
		RunE: func(c *cobra.Command, args []string) error {
			content, err := readDocument(c, args[1])
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

// readDocument reads a file, or stdin if its name is -. An unreadable one is a usage error.
func readDocument(c *cobra.Command, name string) (content []byte, err error) {
	if info, unknown := os.Lstat(name); name == "-" {
		content, err = io.ReadAll(c.InOrStdin())
	} else if unknown == nil && info.Mode().Type() == os.ModeNamedPipe { // it may have no writer, ever
		err = fmt.Errorf("%s is a named pipe: pass it as stdin, with the name -", name)
	} else {
		content, err = os.ReadFile(name)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: read the document: %w", usage.Err, err)
	}
	return content, nil
}

// diffArgs accepts an account, and at most two revisions or a file.
func diffArgs(c *cobra.Command, args []string) error {
	if len(args) < 1 || len(args) > 3 {
		return exactly(1)(c, args)
	}
	return nil
}

// newDiff returns a command diff. The help calls the document in force what, and do prints the difference.
func newDiff(what string, do func(f *engineFlags, c *cobra.Command, args []string) error) *cobra.Command {
	f := new(engineFlags)
	c := &cobra.Command{
		Use:   "diff ACCOUNT [REVISION [REVISION] | FILE]",
		Short: "Compare two revisions, or a file with the " + what + " in force",
		Long: `Prints the unified diff of two documents in their canonical form:

  diff ACCOUNT      the previous revision and the current one
  diff ACCOUNT 3    revision 3 and the ` + what + ` in force
  diff ACCOUNT 3 5  revisions 3 and 5
  diff ACCOUNT FILE the ` + what + ` in force and a file (- is stdin)

Exit codes: 0 they are equal, 1 error, 2 usage or faults in the file, 3 they differ, 130 interrupted.`,
		Args: diffArgs,
		RunE: func(c *cobra.Command, args []string) error { return do(f, c, args) },
	}
	f.register(c)
	return c
}

func newPolicyDiff() *cobra.Command {
	return newDiff("policy", func(f *engineFlags, c *cobra.Command, args []string) error {
		return f.withPolicies(c, func(_ context.Context, p *app.Policies, e *engines) error {
			return printDiff(c.OutOrStdout(), p, args, func(name string) (*policy.Document, error) {
				content, err := readDocument(c, name)
				if err != nil {
					return nil, err
				}
				file := app.CheckPolicy(e.cfg, args[0], name, content)
				return &file.Document, reportPolicies(c.ErrOrStderr(), file)
			})
		})
	})
}

// A namedDocument is a document to compare.
type namedDocument[D revised] struct {
	name     string
	document *D // nil: none
}

// printDiff prints the difference of the documents that the arguments of diff name. read reads the document of a file.
// The error wraps errFindings if they differ.
func printDiff[D revised](w io.Writer, p documents[D], args []string, read func(name string) (*D, error)) error {
	before, after, err := compared(p, args, read)
	if err != nil {
		return err
	}
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

// compared returns the documents that the arguments of diff name. read reads the document of a file.
func compared[D revised](
	p documents[D], args []string, read func(name string) (*D, error),
) (before, after namedDocument[D], err error) {
	account, now := args[0], p.Info(args[0])
	if len(args) == 2 {
		if _, err := strconv.ParseInt(args[1], 10, 64); err != nil {
			d, err := read(args[1])
			return inForce(now), namedDocument[D]{args[1], d}, err
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
func inForce[D revised](i app.DocumentInfo[D]) namedDocument[D] {
	n := namedDocument[D]{name: "no " + nounOf[D]() + " in force"}
	if i.Active != nil {
		n = namedDocument[D]{fmt.Sprintf("revision %d, in force", i.Active.Revision), i.Active.Document}
	}
	return n
}

// revisionOf returns the document of a revision. If named is false, revision 0 is the empty state before the first one.
func revisionOf[D revised](p documents[D], account string, n int64, named bool) (namedDocument[D], error) {
	name := fmt.Sprintf("revision %d", n)
	if n == 0 && !named {
		return namedDocument[D]{name: name}, nil
	}
	e, err := requireRevision(p, account, n)
	if err != nil {
		return namedDocument[D]{}, err
	}
	if e.Fault != nil {
		return namedDocument[D]{}, e.Fault
	}
	return namedDocument[D]{name, e.Document}, nil
}
