package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/cmd/millrace/usage"
	"github.com/millrace/millrace/streams/policy"
)

func newPolicyCheck() *cobra.Command {
	var file, account string
	c := &cobra.Command{
		Use:   "check [--config FILE] DOCUMENT...",
		Short: "Report all faults of policy documents; nothing is published",
		Long: `Reads documents in both forms, and reports every fault with its file, line and column. The account is that of
the key account, of the file name ACCOUNT-duplication-policy.json or .yaml, or of --account. With --config the account
and the stores must be in the configuration. The command does not connect to stores and servers.

Exit codes: 0 no faults, 2 faults.`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return fmt.Errorf("%w: name a document; see '%s --help'", usage.Err, c.CommandPath())
			}
			return nil
		},
		RunE: func(c *cobra.Command, files []string) error {
			var cfg *config.Config
			if file != "" {
				var err error
				if cfg, err = loadConfig(file); err != nil {
					return err
				}
			}
			return checkPolicies(c, cfg, account, files)
		},
	}
	c.Flags().StringVar(&file, "config", "", "configuration `FILE`; without one, accounts and stores are not checked")
	c.Flags().StringVar(&account, "account", "", "`ACCOUNT` of the documents")
	return c
}

// checkPolicies reports the faults of all files. If cfg is nil, accounts and stores are not checked.
func checkPolicies(c *cobra.Command, cfg *config.Config, account string, names []string) error {
	var (
		files    []policy.File
		accounts []string
	)
	for _, name := range names {
		content, err := readDocument(c, name)
		if err != nil {
			return err
		}
		file := app.CheckPolicy(cfg, account, name, content)
		files, accounts = append(files, file), append(accounts, file.Account)
	}
	if err := reportPolicies(c.ErrOrStderr(), files...); err != nil {
		return err
	}
	slices.Sort(accounts)
	_, err := fmt.Fprintf(c.OutOrStdout(), "no faults: %d documents, of %s\n", len(files),
		strings.Join(slices.Compact(accounts), ", "))
	return err
}

// reportPolicies prints the warnings of files, and returns their faults as a usage error.
func reportPolicies(stderr io.Writer, files ...policy.File) error {
	var faults policy.Faults
	for _, f := range files {
		for _, warning := range f.Warnings {
			fmt.Fprintf(stderr, "warning: %s\n", warning)
		}
		faults = append(faults, f.Faults...)
	}
	return faultyPolicies(faults)
}

// faultyPolicies returns faults as a usage error, one per line; nil if there are none.
func faultyPolicies(faults policy.Faults) error {
	if len(faults) == 0 {
		return nil
	}
	count := "1 fault"
	if len(faults) > 1 {
		count = fmt.Sprintf("%d faults", len(faults))
	}
	return fmt.Errorf("%w: %s in policies:\n  %s", usage.Err, count, strings.ReplaceAll(faults.Error(), "\n", "\n  "))
}

// policyImportFlags are the flags of policy import.
type policyImportFlags struct {
	engineFlags
	endpoint, store string
	options         app.ImportOptions
	output          *output
}

func newPolicyImport() *cobra.Command {
	f := new(policyImportFlags)
	c := &cobra.Command{
		Use:   "import DIR | s3://BUCKET/PREFIX | --store ACCOUNT/STORE SPACE/PREFIX",
		Short: "Publish the policies of a folder, in the form of the DuraCloud Mill or in ours",
		Long: `Reads duplication-accounts.json and, for each account in it, ACCOUNT-duplication-policy.json or .yaml. It
publishes the documents that differ from the policies in force. Repeating the command has no effect. A document with a
fault is refused, with its faults; the others are published. 'millrace policy plan' reports beforehand what a document
would do.

An account that an earlier import from the same place published, and that is no longer in duplication-accounts.json, is
named. With --prune its policy is withdrawn: the account is not copied any more, and its copies stay.

The place is a directory, a prefix of a bucket, or a prefix of a space in a configured store (--store). For a bucket,
credentials and region are those of the AWS environment: variables, configuration files, or the role of the machine.
--endpoint names another S3 service.

Exit codes: 0 fine, 1 error, 2 usage, or nothing could be read without faults, 4 some accounts were refused or another
writer was first, 5 precondition, 130 interrupted.`,
		Args: exactly(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := f.check(args[0]); err != nil {
				return err
			}
			return f.withPolicies(c, func(ctx context.Context, p *app.Policies, e *engines) (err error) {
				from, err := f.source(ctx, e.cfg, e.log, args[0])
				if err != nil {
					return err
				}
				defer func() { err = errors.Join(err, from.Close()) }()
				f.options.By.Who = currentUser()
				result, err := p.Import(ctx, from, f.options)
				var faults policy.Faults
				if errors.As(err, &faults) {
					return faultyPolicies(faults)
				}
				if result != nil {
					err = errors.Join(err, f.print(c.OutOrStdout(), result))
				}
				if err != nil {
					return err
				}
				return importOutcome(result)
			})
		},
	}
	f.register(c)
	c.Flags().StringVar(&f.store, "store", "", "read from a space of the configured `ACCOUNT/STORE`")
	c.Flags().StringVar(&f.endpoint, "endpoint", "", "`URL` of an S3 service other than AWS")
	c.Flags().BoolVar(&f.options.Prune, "prune", false,
		"withdraw the policies of accounts that are no longer in duplication-accounts.json")
	c.Flags().BoolVar(&f.options.DryRun, "dry-run", false, "only report what would be done")
	c.Flags().StringVar(&f.options.By.Reason, "reason", "", "the reason, which is recorded")
	f.output = outputFlag(c, formText, formJSON)
	return c
}

// check validates the flags.
func (f *policyImportFlags) check(place string) error {
	bucket := strings.HasPrefix(place, "s3://")
	switch {
	case f.store != "" && bucket:
		return fmt.Errorf("%w: --store names the store: give SPACE/PREFIX, not %s", usage.Err, place)
	case f.endpoint != "" && !bucket:
		return fmt.Errorf("%w: --endpoint is for s3://BUCKET/PREFIX", usage.Err)
	}
	if f.store == "" {
		return nil
	}
	_, _, err := accountStore(f.store)
	return err
}

// source opens the place of an import.
func (f *policyImportFlags) source(
	ctx context.Context, cfg *config.Config, log *slog.Logger, place string,
) (from *app.PolicySource, err error) {
	switch {
	case f.store != "":
		account, store, _ := strings.Cut(f.store, "/")
		return app.PolicyStore(ctx, cfg, log, app.StoreName{Account: account, Store: store}, place)
	case strings.HasPrefix(place, "s3://"):
		if from, err = app.PolicyBucket(ctx, place, f.endpoint); err != nil {
			return nil, fmt.Errorf("%w: %w", usage.Err, err)
		}
		return from, nil
	}
	return app.PolicyDirectory(place)
}

// print prints the result of an import.
func (f *policyImportFlags) print(w io.Writer, r *app.PolicyImport) error {
	if f.output.form == formJSON {
		return writeJSON(w, r)
	}
	var b strings.Builder
	would := ""
	if r.DryRun {
		would = "would be "
	}
	for _, p := range r.Policies {
		switch p.Result {
		case app.PolicyPublished, app.PolicyWithdrawn:
			fmt.Fprintf(&b, "%s: %s%s", p.Account, would, p.Result)
			if !r.DryRun {
				fmt.Fprintf(&b, ": revision %d", p.Revision)
			}
		case app.PolicyGone:
			fmt.Fprintf(&b, "%s: gone from duplication-accounts.json: revision %d stays in force; --prune withdraws it",
				p.Account, p.Revision)
		default:
			fmt.Fprintf(&b, "%s: %s: revision %d stays", p.Account, p.Result, p.Revision)
		}
		b.WriteString("\n")
		for _, fault := range p.Faults {
			fmt.Fprintf(&b, "  %s\n", fault)
		}
	}
	for _, name := range r.Ignored {
		fmt.Fprintf(&b, "ignored: %s: its account is not in duplication-accounts.json, "+
			"or its name does not end in .json or .yaml\n", name)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// importOutcome returns the error of an import with refused accounts; nil if there are none.
func importOutcome(r *app.PolicyImport) error {
	var refused []string
	good := 0
	for _, p := range r.Policies {
		switch p.Result {
		case app.PolicyRefused, app.PolicyLost:
			refused = append(refused, p.Account)
		default:
			good++
		}
	}
	kind := errPartly
	switch {
	case len(refused) == 0:
		return nil
	case good == 0:
		kind = usage.Err
	}
	return fmt.Errorf("%w: not published: %s", kind, strings.Join(refused, ", "))
}
