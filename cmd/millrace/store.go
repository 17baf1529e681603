package main

import (
	"fmt"
	"log/slog"
	"strings"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/app"
)

func newStore() *cobra.Command {
	return noun("store", "Look after stores", newStoreInit())
}

func newStoreInit() *cobra.Command {
	var file string
	c := &cobra.Command{
		Use:   "init ACCOUNT/STORE",
		Short: "Make a store known: write the marker that carries its id",
		Long: `Writes the store's marker. millrace believes that something is absent only where it can
read the marker, so that a disk that is not mounted is never taken for a store that lost
everything. Run it once, when the store is mounted.`,
		Args: exactly(1),
		RunE: func(c *cobra.Command, args []string) error {
			account, id, ok := strings.Cut(args[0], "/")
			if !ok || account == "" || id == "" {
				return fmt.Errorf("%w: %q is not ACCOUNT/STORE", errUsage, args[0])
			}
			if file == "" {
				return fmt.Errorf("%w: name a configuration with --config FILE", errUsage)
			}
			cfg, err := loadConfig(file)
			if err != nil {
				return err
			}
			log := slog.New(slog.NewTextHandler(c.ErrOrStderr(), nil))
			if err := app.InitStore(c.Context(), cfg, log, app.StoreName{Account: account, Store: id}); err != nil {
				return err
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "store %s/%s has its marker\n", account, id)
			return err
		},
	}
	c.Flags().StringVar(&file, "config", "", "configuration `FILE`")
	return c
}
