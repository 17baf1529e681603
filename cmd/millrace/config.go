package main

import (
	"fmt"
	"io"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/cmd/millrace/usage"
	"github.com/millrace/millrace/streams/policy"
)

func newConfig() *cobra.Command {
	return noun("config", "Check and print the configuration", newConfigCheck(), newConfigPrint())
}

func newConfigCheck() *cobra.Command {
	var file, policies string
	c := &cobra.Command{
		Use:   "check --config FILE [--policies DIR]",
		Short: "Report all faults of the configuration and of the policies",
		Long: `Reads the configuration, and the policies in policies.folder or DIR, and reports every fault with its file and
line. It does not connect to stores and servers, and resolves no secrets.

Exit codes: 0 no faults, 2 faults.`,
		Args: usage.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return checkConfig(c.OutOrStdout(), file, policies)
		},
	}
	c.Flags().StringVar(&file, "config", "", "configuration `FILE`; without one, defaults and environment")
	c.Flags().StringVar(&policies, "policies", "", "folder `DIR` of policies, instead of policies.folder")
	return c
}

func checkConfig(out io.Writer, file, folder string) error {
	var found policy.Folder
	cfg, err := config.Check(config.Sources{File: file}, func(cfg *config.Config, sound bool) (faults config.Faults) {
		if folder == "" && !cfg.Policies.InBucket() {
			folder = cfg.Policies.Folder
		}
		if folder != "" {
			found, faults = app.CheckPolicies(cfg, sound, folder)
		}
		return faults
	})
	if err != nil {
		return fmt.Errorf("%w: %w", usage.Err, err)
	}
	stores := 0
	for _, a := range cfg.Accounts {
		stores += len(a.Stores)
	}
	report := fmt.Sprintf("no faults: %d accounts, %d stores", len(cfg.Accounts), stores)
	switch {
	case folder == "" && cfg.Policies.InBucket():
		report += "; the policies in " + cfg.Policies.Folder + " were not read"
	case folder == "":
		report += "; no policies: policies.folder is not set"
	default:
		report += fmt.Sprintf("; %d policies in %s", len(found.Documents), folder)
	}
	for _, name := range found.Ignored {
		report += fmt.Sprintf("\nignored: %s: its account is not in duplication-accounts.json, "+
			"or its name does not end in .json or .yaml", filepath.Join(folder, name))
	}
	_, err = fmt.Fprintln(out, report)
	return err
}

func newConfigPrint() *cobra.Command {
	var (
		file   string
		origin bool
	)
	c := &cobra.Command{
		Use:   "print --config FILE [--origin]",
		Short: "Print every setting in effect, with secrets hidden",
		Args:  usage.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, origins, err := config.Load(config.Sources{File: file})
			if err != nil {
				return fmt.Errorf("%w: %w", usage.Err, err)
			}
			if !origin {
				origins = nil
			}
			return config.Print(c.OutOrStdout(), cfg, origins)
		},
	}
	c.Flags().StringVar(&file, "config", "", "configuration `FILE`")
	c.Flags().BoolVar(&origin, "origin", false, "print the origin of each value")
	return c
}
