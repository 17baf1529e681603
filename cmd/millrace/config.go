package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/config"
)

func newConfig() *cobra.Command {
	return noun("config", "Look at the configuration", newConfigCheck(), newConfigPrint())
}

func newConfigCheck() *cobra.Command {
	var file string
	c := &cobra.Command{
		Use:   "check --config FILE",
		Short: "Name every fault of the configuration at once",
		Args:  noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if _, err := loadConfig(file); err != nil {
				return err
			}
			_, err := fmt.Fprintln(c.OutOrStdout(), "no faults")
			return err
		},
	}
	c.Flags().StringVar(&file, "config", "", "configuration `FILE`; without one, defaults and environment")
	return c
}

func newConfigPrint() *cobra.Command {
	var (
		file   string
		origin bool
	)
	c := &cobra.Command{
		Use:   "print --config FILE [--origin]",
		Short: "Print every setting in force, secrets left out",
		Args:  noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, origins, err := config.Load(config.Sources{File: file})
			if err != nil {
				return fmt.Errorf("%w: %w", errUsage, err)
			}
			if !origin {
				origins = nil
			}
			return config.Print(c.OutOrStdout(), cfg, origins)
		},
	}
	c.Flags().StringVar(&file, "config", "", "configuration `FILE`")
	c.Flags().BoolVar(&origin, "origin", false, "say where each value came from")
	return c
}
