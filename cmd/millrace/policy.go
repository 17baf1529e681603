package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/cmd/millrace/usage"
	"github.com/millrace/millrace/cmd/statedir"
	"github.com/millrace/millrace/streams/policy"
)

func newPolicy() *cobra.Command {
	return noun("policy", "List, check, change and import the policies of accounts",
		newPolicyList(), newPolicyShow(), newPolicyHistory(), newPolicyDiff(), newPolicySet(), newPolicyRemove(),
		newPolicyCheck(), newPolicyImport())
}

// withPolicies calls do with the policies. They need no ClickHouse. An unknown account is a usage error.
func (f *engineFlags) withPolicies(
	c *cobra.Command, do func(ctx context.Context, p *app.Policies, e *engines) error,
) (err error) {
	ctx := c.Context()
	e, err := f.open(ctx, c.ErrOrStderr(), statedir.Config{WithoutEngine: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close(ctx)) }()
	return app.WithPolicies(ctx, e.cfg, e.log, func(ctx context.Context, p *app.Policies) error { return do(ctx, p, e) })
}

// unknownAccount returns the error for an account without records.
func unknownAccount(p *app.Policies, account string) error {
	known := p.Accounts()
	for _, k := range known {
		if k == account {
			return fmt.Errorf("account %s has no policy: millrace policy set %s FILE", account, account)
		}
	}
	return fmt.Errorf("%w: there is no account %q%s", usage.Err, account, suggestion(account, known))
}

func newPolicyList() *cobra.Command {
	var (
		f engineFlags
		o *output
	)
	c := &cobra.Command{
		Use:   "list",
		Short: "List the policies: revision, since when, by whom, from where, faults",
		Long: `Lists the accounts that are configured or have policies. STATE is

  active   a policy is in force
  removed  the policy was removed: the account is not copied
  none     no policy was published

FAULTS are those of the newest records, and stores that this configuration does not have.`,
		Args: usage.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return f.withPolicies(c, func(_ context.Context, p *app.Policies, _ *engines) error {
				rows := []policyRow{}
				for _, account := range p.Accounts() {
					rows = append(rows, policyRowOf(p.Info(account)))
				}
				return printList(c.OutOrStdout(), o, rows, policyTable())
			})
		},
	}
	f.register(c)
	o = listFlag(c)
	return c
}

// States of the policy of an account, and of a revision.
const (
	policyActive   = "active"
	policyRemoved  = "removed"
	policyReplaced = "replaced"
	policyNone     = "none"
)

// A policyRow is the policy of an account in a list.
type policyRow struct {
	Account  string     `json:"account"`
	State    string     `json:"state"`
	Revision int64      `json:"revision"`
	Since    *time.Time `json:"since"`
	By       string     `json:"by"`
	From     string     `json:"from"`
	Location string     `json:"location"`
	Reason   string     `json:"reason"`
	Faults   []string   `json:"faults"`
}

func policyRowOf(i app.PolicyInfo) policyRow {
	r := policyRow{Account: i.Account, State: policyNone, Revision: i.Revision, Faults: faultLines(i.Fault)}
	if e := i.Newest; e != nil {
		r.Since, r.By, r.From, r.Location, r.Reason = &e.Time, e.By, e.From, e.Location, e.Reason
	}
	switch {
	case i.Active != nil:
		r.State = policyActive
	case i.Newest != nil && i.Newest.State == policy.EntryRemoval:
		r.State = policyRemoved
	}
	return r
}

// faultLines returns the lines of an error; none if it is nil.
func faultLines(err error) []string {
	if err == nil {
		return []string{}
	}
	return strings.Split(err.Error(), "\n")
}

// policyTable returns the table of policies.
func policyTable() table[policyRow] {
	return table[policyRow]{"ACCOUNT\tSTATE\tREVISION\tSINCE\tBY\tFROM\tREASON\tFAULTS", func(r policyRow) []string {
		return []string{r.Account, r.State, strconv.FormatInt(r.Revision, 10), stamp(r.Since), r.By,
			strings.TrimSpace(r.From + " " + r.Location), r.Reason, strings.Join(r.Faults, "; ")}
	}}
}

// formYAML is the canonical form of a document.
const formYAML = "yaml"

func newPolicyShow() *cobra.Command {
	var (
		f        engineFlags
		revision int64
		o        *output
	)
	c := &cobra.Command{
		Use:   "show ACCOUNT",
		Short: "Print the policy in force, or a revision, with who published it, when and why",
		Long: `Prints the policy in force in its canonical form, which 'millrace policy set' reads. With --revision it prints
the document of that revision.

In the output as json, revision is the current one, or that of --revision. It is the --base of a change.`,
		Args: exactly(1),
		RunE: func(c *cobra.Command, args []string) error {
			return f.withPolicies(c, func(_ context.Context, p *app.Policies, _ *engines) error {
				v, err := viewPolicy(p, args[0], revision, c.Flags().Changed("revision"))
				if err != nil {
					return err
				}
				if o.form == formJSON {
					return writeJSON(c.OutOrStdout(), v)
				}
				return v.print(c.OutOrStdout())
			})
		},
	}
	f.register(c)
	c.Flags().Int64Var(&revision, "revision", 0, "print revision `N`, not the one in force")
	o = outputFlag(c, formYAML, formJSON)
	return c
}

// A policyView is the document of an account, with its revision.
type policyView struct {
	policyRow
	Document *policy.Document `json:"document"` // null if none is in force
	// of is the revision of the document. It is not that of the row while newer ones cannot be parsed.
	of int64
}

// viewPolicy returns the policy in force or, if given is true, a revision.
func viewPolicy(p *app.Policies, account string, revision int64, given bool) (*policyView, error) {
	info := p.Info(account)
	if info.Newest == nil && info.Fault == nil || len(p.History(account)) == 0 {
		return nil, unknownAccount(p, account)
	}
	if !given {
		v := &policyView{policyRow: policyRowOf(info)}
		if info.Active != nil {
			v.Document, v.of = info.Active.Document, info.Active.Revision
		}
		return v, nil
	}
	e, err := requireRevision(p, account, revision)
	if err != nil {
		return nil, err
	}
	v := &policyView{Document: e.Document, of: revision}
	v.policyRow = policyRowOf(app.PolicyInfo{Account: account, Revision: revision, Newest: e, Fault: e.Fault})
	v.State = revisionState(info, *e)
	return v, nil
}

// requireRevision returns a revision of an account. An unknown one is a usage error.
func requireRevision(p *app.Policies, account string, revision int64) (*policy.Entry, error) {
	for _, e := range p.History(account) {
		if e.Revision == revision && revision > 0 {
			return &e, nil
		}
	}
	current := p.Info(account).Revision
	if current == 0 {
		return nil, unknownAccount(p, account)
	}
	return nil, fmt.Errorf("%w: account %s has no revision %d: there are 1 to %d", usage.Err, account, revision, current)
}

// revisionState returns the state of a record of an account.
func revisionState(i app.PolicyInfo, e policy.Entry) string {
	switch {
	case e.State == policy.EntryRemoval:
		return policyRemoved
	case e.State != policy.EntryRevision:
		return string(e.State)
	case i.Active != nil && i.Active.Revision == e.Revision:
		return policyActive
	}
	return policyReplaced
}

// print prints the view as YAML, with comments on the revision.
func (v *policyView) print(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "# account %s, revision %d, %s", v.Account, v.Revision, v.State)
	if v.Since != nil {
		fmt.Fprintf(&b, " since %s", stamp(v.Since))
	}
	b.WriteString("\n")
	for _, line := range []struct{ name, text string }{
		{"by", v.By}, {"from", strings.TrimSpace(v.From + " " + v.Location)}, {"reason", v.Reason},
		{"fault", strings.Join(v.Faults, "; ")},
	} {
		if line.text != "" {
			fmt.Fprintf(&b, "# %s: %s\n", line.name, oneLine(line.text))
		}
	}
	if v.Document == nil {
		b.WriteString("# no document\n")
	} else {
		if v.of != v.Revision {
			fmt.Fprintf(&b, "# the document is that of revision %d\n", v.of)
		}
		text, err := v.Document.YAML()
		if err != nil {
			return err
		}
		b.WriteString(text)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// oneLine returns text without line breaks and other control characters.
func oneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if strconv.IsPrint(r) {
			return r
		}
		return ' '
	}, text)
}

func newPolicyHistory() *cobra.Command {
	var (
		f engineFlags
		o *output
	)
	c := &cobra.Command{
		Use:   "history ACCOUNT",
		Short: "List all records of an account's policy: who, when, from where, why",
		Long: `Lists all records of an account in the topic policies, oldest first. STATE is

  active       the revision in force
  replaced     an earlier revision
  removed      a revision that removes the policy
  unreadable   a revision with a document that this version cannot parse; the last one that can be parsed is in force
  ignored      not a revision: another record with the same base came first
  undecodable  not a revision: the record cannot be decoded`,
		Args: exactly(1),
		RunE: func(c *cobra.Command, args []string) error {
			return f.withPolicies(c, func(_ context.Context, p *app.Policies, _ *engines) error {
				entries := p.History(args[0])
				if len(entries) == 0 {
					return unknownAccount(p, args[0])
				}
				rows := make([]revisionRow, len(entries))
				for i, e := range entries {
					rows[i] = revisionRow{e.Revision, revisionState(p.Info(args[0]), e), e.Base, e.Time, e.By, e.From, e.Location,
						e.Reason, faultLines(e.Fault)}
				}
				return printList(c.OutOrStdout(), o, rows, revisionTable())
			})
		},
	}
	f.register(c)
	o = listFlag(c)
	return c
}

// A revisionRow is a record of a policy in a list.
type revisionRow struct {
	Revision int64     `json:"revision"` // 0: it is not a revision
	State    string    `json:"state"`
	Base     int64     `json:"base"`
	Time     time.Time `json:"time"`
	By       string    `json:"by"`
	From     string    `json:"from"`
	Location string    `json:"location"`
	Reason   string    `json:"reason"`
	Faults   []string  `json:"faults"`
}

// revisionTable returns the table of the records of a policy.
func revisionTable() table[revisionRow] {
	return table[revisionRow]{"REVISION\tSTATE\tTIME\tBY\tFROM\tREASON\tFAULTS", func(r revisionRow) []string {
		revision := ""
		if r.Revision > 0 {
			revision = strconv.FormatInt(r.Revision, 10)
		}
		return []string{revision, r.State, stamp(&r.Time), r.By, strings.TrimSpace(r.From + " " + r.Location), r.Reason,
			strings.Join(r.Faults, "; ")}
	}}
}
