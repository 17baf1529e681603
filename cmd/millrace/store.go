package main

import (
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/cmd/millrace/usage"
)

func newStore() *cobra.Command {
	return noun("store", "Look after stores", newStoreList(), newStoreCheck(), newStoreProbe(), newStoreInit(), newStoreUpgrade())
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
			names, err := storeNames(args)
			if err != nil {
				return err
			}
			cfg, err := storeConfig(file)
			if err != nil {
				return err
			}
			log := slog.New(slog.NewTextHandler(c.ErrOrStderr(), nil))
			if err := app.InitStore(c.Context(), cfg, log, names[0]); err != nil {
				return err
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "store %s/%s has its marker\n", names[0].Account, names[0].Store)
			return err
		},
	}
	c.Flags().StringVar(&file, "config", "", "configuration `FILE`")
	return c
}

func newStoreList() *cobra.Command {
	var (
		file string
		o    *output
	)
	c := &cobra.Command{
		Use:   "list --config FILE",
		Short: "What the configuration says of the stores; none of them is asked",
		Args:  usage.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := storeConfig(file)
			if err != nil {
				return err
			}
			return showStores(c.OutOrStdout(), o, app.ListStores(cfg))
		},
	}
	c.Flags().StringVar(&file, "config", "", "configuration `FILE`")
	o = listFlag(c)
	return c
}

func newStoreCheck() *cobra.Command {
	var (
		file string
		o    *output
	)
	c := &cobra.Command{
		Use:   "check --config FILE [ACCOUNT/STORE ...]",
		Short: "Reach stores and read their markers; nothing is written",
		Long: `Reaches the stores, all where none is named, and reads their markers. STATE is

  ok            it is the store that it should be
  no-marker     it was never made known (millrace store init), or something else is in its place
  other-marker  another store is in its place
  unavailable   it cannot be reached, or does not let us in
  unusable      it refuses for good
  error         this look failed, and another may not

Exit codes: 0 all are ok, 2 usage, 3 one is not, 5 the configuration has no such store.`,
		RunE: func(c *cobra.Command, args []string) error {
			names, err := storeNames(args)
			if err != nil {
				return err
			}
			cfg, err := storeConfig(file)
			if err != nil {
				return err
			}
			views, err := app.CheckStoresOf(c.Context(), cfg, slog.New(slog.NewTextHandler(c.ErrOrStderr(), nil)), names...)
			if err != nil {
				return err
			}
			if err := showStores(c.OutOrStdout(), o, views); err != nil {
				return err
			}
			return notOK(views)
		},
	}
	c.Flags().StringVar(&file, "config", "", "configuration `FILE`")
	o = listFlag(c)
	return c
}

func newStoreProbe() *cobra.Command {
	var (
		file   string
		record bool
		o      *output
	)
	c := &cobra.Command{
		Use:   "probe --config FILE ACCOUNT/STORE",
		Short: "Try what a store can do, and show it",
		Long: `Tries what the service of a store of driver s3 can do, with objects below .millrace/probe/ that it removes. A store
remembers in its marker what 'millrace store init' found; --record has the marker say what is found now, which
running processes learn when they start. Of other drivers it shows what is known.

Exit codes: 0 fine, 2 usage, 3 the store is not ok, 5 the configuration has no such store.`,
		Args: exactly(1),
		RunE: func(c *cobra.Command, args []string) error {
			names, err := storeNames(args)
			if err != nil {
				return err
			}
			cfg, err := storeConfig(file)
			if err != nil {
				return err
			}
			v, err := app.ProbeStore(c.Context(), cfg, slog.New(slog.NewTextHandler(c.ErrOrStderr(), nil)), names[0], record)
			if err != nil {
				return err
			}
			if err := notOK([]app.StoreView{v}); err != nil && o.form == formTable {
				return fmt.Errorf("%w: %s: %s", err, v.Error, v.Do)
			}
			if o.form == formJSON {
				err = writeJSON(c.OutOrStdout(), v)
			} else {
				err = printList(c.OutOrStdout(), o, v.Abilities, abilityTable())
			}
			if err != nil {
				return err
			}
			return notOK([]app.StoreView{v})
		},
	}
	c.Flags().StringVar(&file, "config", "", "configuration `FILE`")
	o = outputFlag(c, formTable, formJSON)
	c.Flags().BoolVar(&record, "record", false, "have the store's marker say what is found")
	return c
}

// storeNames reads names of stores.
func storeNames(args []string) (names []app.StoreName, err error) {
	for _, arg := range args {
		account, id, ok := strings.Cut(arg, "/")
		if !ok || account == "" || id == "" {
			return nil, fmt.Errorf("%w: %q is not ACCOUNT/STORE", usage.Err, arg)
		}
		names = append(names, app.StoreName{Account: account, Store: id})
	}
	return names, nil
}

func storeConfig(file string) (*config.Config, error) {
	if file == "" {
		return nil, fmt.Errorf("%w: name a configuration with --config FILE", usage.Err)
	}
	return loadConfig(file)
}

// notOK is an error where a store is not as it should be.
func notOK(views []app.StoreView) error {
	var names []string
	for _, v := range views {
		if v.State != app.StoreOK {
			names = append(names, fmt.Sprintf("%s/%s (%s)", v.Account, v.Store, v.State))
		}
	}
	if len(names) == 0 {
		return nil
	}
	return fmt.Errorf("%w: not ok: %s", errFindings, strings.Join(names, ", "))
}

// showStores prints stores, and below a table, of those that are not ok, why and what to do.
func showStores(w io.Writer, o *output, views []app.StoreView) error {
	if err := printList(w, o, views, storeTable()); err != nil || o.form != formTable {
		return err
	}
	for _, v := range views {
		if v.Error == "" {
			continue
		}
		if _, err := fmt.Fprintf(w, "%s/%s: %s: %s\n", v.Account, v.Store, v.Error, v.Do); err != nil {
			return err
		}
	}
	return nil
}

// storeTable is the table of stores.
func storeTable() table[app.StoreView] {
	return table[app.StoreView]{"STORE\tSTATE\tDRIVER\tPRIMARY\tREAD\tREPAIR\tPLACE", func(v app.StoreView) []string {
		primary := ""
		if v.Primary {
			primary = "primary"
		}
		return []string{v.Account + "/" + v.Store, string(v.State), v.Driver, primary, v.Read, v.Repair, v.Place}
	}}
}

// abilityTable is the table of what a store can do.
func abilityTable() table[app.Ability] {
	return table[app.Ability]{"ABILITY\tIS\tKNOWN FROM", func(a app.Ability) []string {
		return []string{a.Name, a.Is, a.Origin}
	}}
}
