package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/cmd/millrace/usage"
	"github.com/millrace/millrace/cmd/statedir"
)

func newAccount() *cobra.Command {
	return noun("account", "List, change and remove accounts and their stores at run time",
		newAccountList(), newAccountShow(), newAccountHistory(), newAccountDiff(), newAccountSet(), newAccountRemove())
}

// withAccounts calls do with the accounts. engine is whether the ClickHouse of a state is started.
func (f *engineFlags) withAccounts(
	c *cobra.Command, engine bool, do func(ctx context.Context, a *app.Accounts) error,
) error {
	return f.withEngines(c, statedir.Config{WithoutEngine: !engine}, func(ctx context.Context, e *engines) error {
		return app.WithAccounts(ctx, e.cfg, e.log, func(ctx context.Context, a *app.Accounts) error {
			if !engine && e.state != nil {
				a.WithoutRecords()
			}
			return do(ctx, a)
		})
	})
}

// Origins of an account.
const (
	fromConfiguration = "configuration"
	fromTopic         = "topic"
)

// An accountRow is an account in a list.
type accountRow struct {
	policyRow
	Source string `json:"source"` // configuration or topic; empty if it was removed
	Active bool   `json:"active"`
	Stores int    `json:"stores"`
}

func accountRowOf(a *app.Accounts, account string) accountRow {
	info := a.Info(account)
	r := accountRow{policyRow: policyRowOf(info)}
	d := config.AccountDocument{}
	if info.Active != nil {
		d, r.Source = *info.Active.Document, fromTopic
	} else if file, is := a.Configured(account); is && info.Revision == 0 {
		d, r.Source, r.State = file, fromConfiguration, policyActive
	}
	if r.Source != "" {
		r.Active, r.Stores = d.Active != config.Inactive, len(d.Stores)
	}
	if r.State == policyActive && !r.Active {
		r.State = "inactive"
	}
	return r
}

func newAccountList() *cobra.Command {
	return listing(&cobra.Command{
		Use:   "list",
		Short: "List the accounts: where they come from, revision, since when, by whom, faults",
		Long: `Lists the accounts of the configuration and of the topic accounts. An account that has revisions in the topic
is governed by them, and one without by the configuration: SOURCE. STATE is

  active    its work is done
  inactive  its work waits
  removed   it was removed: its commands end as dead letters

FAULTS are those of the newest records, and documents of the configuration that do not count.`,
		Args: usage.NoArgs,
	}, func(c *cobra.Command, _ []string, f *engineFlags, o *output) error {
		return f.withAccounts(c, false, func(_ context.Context, a *app.Accounts) error {
			row := func(account string) accountRow { return accountRowOf(a, account) }
			return printList(c.OutOrStdout(), o, rowsOf(a.Accounts(), row), accountTable())
		})
	})
}

// accountTable returns the table of accounts.
func accountTable() table[accountRow] {
	return table[accountRow]{"ACCOUNT\tSTATE\tSTORES\tSOURCE\tREVISION\tSINCE\tBY\tREASON\tFAULTS",
		func(r accountRow) []string {
			return []string{r.Account, r.State, fmt.Sprint(r.Stores), r.Source, fmt.Sprint(r.Revision), stamp(r.Since), r.By,
				r.Reason, strings.Join(r.Faults, "; ")}
		}}
}

func newAccountShow() *cobra.Command {
	var (
		f        engineFlags
		revision int64
		o        *output
	)
	c := &cobra.Command{
		Use:   "show ACCOUNT",
		Short: "Print the document of an account, or a revision, with who published it, when and why",
		Long: `Prints the document in force in its canonical form, which 'millrace account set' reads. With --revision it
prints the document of that revision. Of an account without revisions it prints the document of the configuration, as
revision 0. Secrets are printed as their references.

In the output as json, revision is the current one, or that of --revision. It is the --base of a change.`,
		Args: exactly(1),
		RunE: func(c *cobra.Command, args []string) error {
			return f.withAccounts(c, false, func(_ context.Context, a *app.Accounts) error {
				v, err := viewAccount(a, args[0], revision, c.Flags().Changed("revision"))
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

// viewAccount is viewDocument, and shows accounts of the configuration.
func viewAccount(
	a *app.Accounts, account string, revision int64, given bool,
) (*documentView[config.AccountDocument], error) {
	if file, is := a.Configured(account); is && !given && len(a.History(account)) == 0 {
		row := accountRowOf(a, account).policyRow
		row.From = fromConfiguration
		return &documentView[config.AccountDocument]{policyRow: row, Document: &file}, nil
	}
	return viewDocument(a, account, revision, given)
}

func newAccountHistory() *cobra.Command {
	return listing(&cobra.Command{
		Use:   "history ACCOUNT",
		Short: "List all records of an account: who, when, from where, why",
		Long: `Lists all records of an account in the topic accounts, oldest first. The states are those of
'millrace policy history'.`,
		Args: exactly(1),
	}, func(c *cobra.Command, args []string, f *engineFlags, o *output) error {
		return f.withAccounts(c, false, func(_ context.Context, a *app.Accounts) error {
			return printHistory(c.OutOrStdout(), o, a, args[0])
		})
	})
}

func newAccountDiff() *cobra.Command {
	return newDiff("document", func(f *engineFlags, c *cobra.Command, args []string) error {
		return f.withAccounts(c, false, func(_ context.Context, a *app.Accounts) error {
			return printDiff(c.OutOrStdout(), a, args, func(name string) (*config.AccountDocument, error) {
				content, err := readDocument(c, name)
				if err != nil {
					return nil, err
				}
				d, err := checkAccount(a, name, content)
				return &config.AccountDocument{Account: d}, err
			})
		})
	})
}

// checkAccount checks the document of an account in a file. Its faults are usage errors.
func checkAccount(a *app.Accounts, name string, content []byte) (config.Account, error) {
	d, faults := a.Check(name, content)
	if len(faults) > 0 {
		return d, fmt.Errorf("%w: %w", usage.Err, faults.InDocument())
	}
	return d, nil
}

func newAccountSet() *cobra.Command {
	f := new(changeFlags)
	c := &cobra.Command{
		Use:   "set FILE",
		Short: "Publish the document of an account: its stores and their settings",
		Long: `Reads the document of one account from FILE, or from stdin if FILE is -: what a configuration has as an entry
of accounts. It is checked together with the other accounts, and is in force everywhere within a second after the
command ends. From then on the account of the configuration does not count. A document that equals the one in force is
not published. Secrets must be references, which each process resolves by itself.

A store that is added is used when it has its marker: millrace store init ACCOUNT/STORE. The driver, the place and
primary of a store that has copies on record cannot change, and so neither can its id: add another store. Commands for
a store that is removed end as dead letters, and its copies stay as they are.

With --base N nothing is published if the current revision is not N: the command prints who published the current one
and how the documents differ.

Exit codes: 0 fine, 1 error, 2 usage or faults in the document, 5 another revision was published after the base, or a
store would move, 130 interrupted.`,
		Args: exactly(1),
		RunE: func(c *cobra.Command, args []string) error {
			content, err := readDocument(c, args[0])
			if err != nil {
				return err
			}
			set := func(ctx context.Context, a *app.Accounts) error {
				d, err := checkAccount(a, args[0], content)
				if err != nil {
					return err
				}
				return f.publishAccount(ctx, c, a, app.AccountChange{Account: d.ID, Document: &d})
			}
			err = f.withAccounts(c, false, set)
			if errors.Is(err, app.ErrRecordsUnknown) && f.state != "" {
				err = f.withAccounts(c, true, set)
			}
			return err
		},
	}
	f.register(c)
	return c
}

func newAccountRemove() *cobra.Command {
	f := new(changeFlags)
	c := &cobra.Command{
		Use:   "remove ACCOUNT --reason TEXT",
		Short: "Remove an account: nothing is done for it any more",
		Long: `Publishes a revision without a document, also if the configuration has the account. Its commands end as dead
letters, and its copies stay as they are. 'millrace account set' adds the account again.

Exit codes: 0 fine, 1 error, 2 usage, 5 another revision was published after the base, 130 interrupted.`,
		Args: exactly(1),
		RunE: func(c *cobra.Command, args []string) error {
			if f.reason == "" {
				return fmt.Errorf("%w: --reason is missing: it is recorded", usage.Err)
			}
			return f.withAccounts(c, false, func(ctx context.Context, a *app.Accounts) error {
				if _, is := a.Configured(args[0]); !is && len(a.History(args[0])) == 0 {
					return unknownAccount(a, args[0])
				}
				return f.publishAccount(ctx, c, a, app.AccountChange{Account: args[0]})
			})
		},
	}
	f.register(c)
	return c
}

// publishAccount publishes a change, and prints the result.
func (f *changeFlags) publishAccount(
	ctx context.Context, c *cobra.Command, a *app.Accounts, change app.AccountChange,
) error {
	change.Base, change.By = f.revised(c)
	n, changed, err := a.Publish(ctx, change)
	if err != nil {
		var mine *config.AccountDocument
		if change.Document != nil {
			mine = &config.AccountDocument{Account: *change.Document}
		}
		return refusedChange(c.ErrOrStderr(), a, change.Account, mine, err)
	}
	text := fmt.Sprintf("account %s: revision %d is in force", change.Account, n)
	switch {
	case !changed && change.Document == nil:
		text = fmt.Sprintf("there is no account %s: nothing is published", change.Account)
	case !changed:
		text = fmt.Sprintf("account %s: revision %d is the same: nothing is published", change.Account, n)
	case change.Document == nil:
		text = fmt.Sprintf("account %s is removed by revision %d", change.Account, n)
	}
	return f.print(c, policyResult{change.Account, n, changed}, text)
}
