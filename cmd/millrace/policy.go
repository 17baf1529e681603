package main

import (
	"context"
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
	"github.com/millrace/millrace/streams/revision"
)

func newPolicy() *cobra.Command {
	return noun("policy", "List, check, change and import the policies of accounts",
		newPolicyList(), newPolicyShow(), newPolicyHistory(), newPolicyDiff(), newPolicySet(), newPolicyRemove(),
		newPolicyCheck(), newPolicyImport(), newPolicyPlan(), newPolicyUnmanaged())
}

// withPolicies calls do with the policies. They need no ClickHouse. An unknown account is a usage error.
func (f *engineFlags) withPolicies(
	c *cobra.Command, do func(ctx context.Context, p *app.Policies, e *engines) error,
) error {
	return f.withEngines(c, statedir.Config{WithoutEngine: true}, func(ctx context.Context, e *engines) error {
		e.useTopicAccounts(ctx)
		return app.WithPolicies(ctx, e.cfg, e.log, func(ctx context.Context, p *app.Policies) error { return do(ctx, p, e) })
	})
}

// unknownAccount returns the error for an account without records.
func unknownAccount[D revised](p documents[D], account string) error {
	known := p.Accounts()
	for _, k := range known {
		if k != account {
			continue
		}
		if nounOf[D]() == "account" {
			return fmt.Errorf("account %s is that of the configuration and has no revisions: millrace account set FILE", account)
		}
		return fmt.Errorf("account %s has no policy: millrace policy set %s FILE", account, account)
	}
	return fmt.Errorf("%w: there is no account %q%s", usage.Err, account, suggestion(account, known))
}

func newPolicyList() *cobra.Command {
	return listing(&cobra.Command{
		Use:   "list",
		Short: "List the policies: revision, since when, by whom, from where, faults",
		Long: `Lists the accounts that are configured or have policies. STATE is

  active   a policy is in force
  removed  the policy was removed: the account is not copied
  none     no policy was published

FAULTS are those of the newest records, and stores that this configuration does not have.`,
		Args: usage.NoArgs,
	}, func(c *cobra.Command, _ []string, f *engineFlags, o *output) error {
		return f.withPolicies(c, func(_ context.Context, p *app.Policies, _ *engines) error {
			row := func(account string) policyRow { return policyRowOf(p.Info(account)) }
			return printList(c.OutOrStdout(), o, rowsOf(p.Accounts(), row), policyTable())
		})
	})
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

func policyRowOf[D any](i app.DocumentInfo[D]) policyRow {
	r := policyRow{Account: i.Account, State: policyNone, Revision: i.Revision, Faults: faultLines(i.Fault)}
	if e := i.Newest; e != nil {
		r.Since, r.By, r.From, r.Location, r.Reason = &e.Time, e.By, e.From, e.Location, e.Reason
	}
	switch {
	case i.Active != nil:
		r.State = policyActive
	case i.Newest != nil && i.Newest.State == revision.EntryRemoval:
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

// A revised document has revisions, and a canonical form.
type revised interface{ YAML() (string, error) }

// nounOf returns the noun of the commands for documents: policy or account.
func nounOf[D revised]() string {
	if _, is := any(*new(D)).(policy.Document); is {
		return "policy"
	}
	return "account"
}

// documents are the documents of accounts in one topic.
type documents[D revised] interface {
	Accounts() []string
	Info(account string) app.DocumentInfo[D]
	History(account string) []revision.Entry[D]
}

// A documentView is the document of an account, with its revision.
type documentView[D revised] struct {
	policyRow
	Document *D `json:"document"` // null if none is in force
	// Status is how far the copies of a policy are; absent with --document and --revision, and if it is unknown.
	// StatusError says why it is unknown.
	Status      *app.PolicyStatus `json:"status,omitempty"`
	StatusError string            `json:"status_error,omitempty"`
	// of is the revision of the document. It is not that of the row while newer ones cannot be parsed.
	of int64
}

// viewDocument returns the document in force or, if given is true, a revision.
func viewDocument[D revised](p documents[D], account string, n int64, given bool) (*documentView[D], error) {
	info := p.Info(account)
	if info.Newest == nil && info.Fault == nil || len(p.History(account)) == 0 {
		return nil, unknownAccount(p, account)
	}
	if !given {
		v := &documentView[D]{policyRow: policyRowOf(info)}
		if info.Active != nil {
			v.Document, v.of = info.Active.Document, info.Active.Revision
		}
		return v, nil
	}
	e, err := requireRevision(p, account, n)
	if err != nil {
		return nil, err
	}
	v := &documentView[D]{Document: e.Document, of: n}
	v.policyRow = policyRowOf(app.DocumentInfo[D]{Account: account, Revision: n, Newest: e, Fault: e.Fault})
	v.State = revisionState(info, *e)
	return v, nil
}

// requireRevision returns a revision of an account. An unknown one is a usage error.
func requireRevision[D revised](p documents[D], account string, n int64) (*revision.Entry[D], error) {
	for _, e := range p.History(account) {
		if e.Revision == n && n > 0 {
			return &e, nil
		}
	}
	current := p.Info(account).Revision
	if current == 0 {
		return nil, unknownAccount(p, account)
	}
	return nil, fmt.Errorf("%w: account %s has no revision %d: there are 1 to %d", usage.Err, account, n, current)
}

// revisionState returns the state of a record of an account.
func revisionState[D any](i app.DocumentInfo[D], e revision.Entry[D]) string {
	switch {
	case e.State == revision.EntryRemoval:
		return policyRemoved
	case e.State != revision.EntryRevision:
		return string(e.State)
	case i.Active != nil && i.Active.Revision == e.Revision:
		return policyActive
	}
	return policyReplaced
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
	return listing(&cobra.Command{
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
	}, func(c *cobra.Command, args []string, f *engineFlags, o *output) error {
		return f.withPolicies(c, func(_ context.Context, p *app.Policies, _ *engines) error {
			return printHistory(c.OutOrStdout(), o, p, args[0])
		})
	})
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

// printHistory prints the records of an account.
func printHistory[D revised](w io.Writer, o *output, p documents[D], account string) error {
	entries, info := p.History(account), p.Info(account)
	if len(entries) == 0 {
		return unknownAccount(p, account)
	}
	row := func(e revision.Entry[D]) revisionRow {
		return revisionRow{e.Revision, revisionState(info, e), e.Base, e.Time, e.By, e.From, e.Location,
			e.Reason, faultLines(e.Fault)}
	}
	return printList(w, o, rowsOf(entries, row), revisionTable())
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
