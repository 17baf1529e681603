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
	return noun("store", "List, check and initialise stores",
		newStoreList(), newStoreCheck(), newStoreProbe(), newStoreInit())
}

func newStoreInit() *cobra.Command {
	var file, document string
	c := &cobra.Command{
		Use:   "init ACCOUNT/STORE",
		Short: "Initialise a store: write the marker with its id",
		Long: `Writes the store's marker. millrace treats an item as absent only while it can read the marker, so that an
unmounted disk does not look like a store that lost everything. Run it once, when the store is mounted.

With --document it initialises a store of a document that is not published yet (millrace account set).`,
		Args: exactly(1),
		RunE: func(c *cobra.Command, args []string) error {
			cfg, names, err := namedStores(c, file, args)
			if err == nil && document != "" {
				cfg, err = withDocument(c, cfg, document)
			}
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
	c.Flags().StringVar(&document, "document", "", "`FILE` with the document of the account, which is not published yet")
	return c
}

func newStoreList() *cobra.Command {
	var (
		file string
		o    *output
	)
	c := &cobra.Command{
		Use:   "list --config FILE",
		Short: "List the stores in force without accessing them",
		Long: `Lists the stores of the configuration and of the topic accounts. SOURCE is where the account of a store comes
from: the configuration, or a revision of the topic (millrace account list). If Kafka does not answer, it is a warning,
and the stores are those of the configuration.`,
		Args: usage.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := storeConfig(c, file)
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
		Short: "Read the markers of stores; nothing is written",
		Long: `Reads the markers of the named stores, or of all stores. STATE is

  ok            the store has the expected marker
  no-marker     the store was not initialised (millrace store init), or another disk or bucket is in its place
  other-marker  the store has the marker of another store, or the format of another version
  unavailable   the store cannot be reached, or refuses the credentials
  unusable      permanent error
  error         transient error: try again

Exit codes: 0 all are ok, 2 usage, 3 one is not, 5 the configuration has no such store.`,
		RunE: func(c *cobra.Command, args []string) error {
			cfg, names, err := namedStores(c, file, args)
			if err != nil {
				return err
			}
			views, err := app.InspectStores(c.Context(), cfg, slog.New(slog.NewTextHandler(c.ErrOrStderr(), nil)), names...)
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
		Short: "Test and print the capabilities of a store",
		Long: `Tests the capabilities of the service of a store of driver s3, with objects below .millrace/probe/ that it
removes. For other drivers it prints the known capabilities. 'millrace store init' stores the result in the marker;
--record updates it there. Running processes read it at their next start.

Exit codes: 0 fine, 2 usage, 3 the store is not ok, 5 the configuration has no such store.`,
		Args: exactly(1),
		RunE: func(c *cobra.Command, args []string) error {
			cfg, names, err := namedStores(c, file, args)
			if err != nil {
				return err
			}
			v, err := app.ProbeStore(c.Context(), cfg, slog.New(slog.NewTextHandler(c.ErrOrStderr(), nil)), names[0], record)
			if err != nil {
				return err
			}
			if err := notOK([]app.StoreInfo{v}); err != nil && o.form == formTable {
				return fmt.Errorf("%w: %s: %s", err, v.Error, v.Remedy)
			}
			if o.form == formJSON {
				err = writeJSON(c.OutOrStdout(), v)
			} else {
				err = printList(c.OutOrStdout(), o, v.Capabilities, abilityTable())
			}
			if err != nil {
				return err
			}
			return notOK([]app.StoreInfo{v})
		},
	}
	c.Flags().StringVar(&file, "config", "", "configuration `FILE`")
	o = outputFlag(c, formTable, formJSON)
	c.Flags().BoolVar(&record, "record", false, "write the result to the store's marker")
	return c
}

// namedStores parses arguments of the form ACCOUNT/STORE, and loads a configuration as storeConfig does.
func namedStores(c *cobra.Command, file string, args []string) (*config.Config, []app.StoreName, error) {
	var names []app.StoreName
	for _, arg := range args {
		account, store, err := accountStore(arg)
		if err != nil {
			return nil, nil, err
		}
		names = append(names, app.StoreName{Account: account, Store: store})
	}
	cfg, err := storeConfig(c, file)
	return cfg, names, err
}

// storeConfig loads a configuration, with the accounts in force. If Kafka does not answer, those of the file stay.
func storeConfig(c *cobra.Command, file string) (*config.Config, error) {
	if file == "" {
		return nil, fmt.Errorf("%w: name a configuration with --config FILE", usage.Err)
	}
	cfg, err := loadConfig(file)
	if err != nil {
		return nil, err
	}
	e := engines{cfg: cfg, log: slog.New(slog.NewTextHandler(c.ErrOrStderr(), nil))}
	e.useTopicAccounts(c.Context())
	return e.cfg, nil
}

// withDocument returns cfg with the account of a document.
func withDocument(c *cobra.Command, cfg *config.Config, name string) (*config.Config, error) {
	content, err := readDocument(c, name)
	if err != nil {
		return nil, err
	}
	next, faults := app.WithDocument(cfg, name, content)
	if len(faults) > 0 {
		return nil, fmt.Errorf("%w: %w", usage.Err, faults.InDocument())
	}
	return next, nil
}

// notOK returns an error that names the stores that are not ok; nil if all are.
func notOK(views []app.StoreInfo) error {
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

// showStores prints stores. Below a table it prints the error and the remedy for each store that is
// not ok.
func showStores(w io.Writer, o *output, views []app.StoreInfo) error {
	if err := printList(w, o, views, storeTable()); err != nil || o.form != formTable {
		return err
	}
	for _, v := range views {
		if v.Error == "" {
			continue
		}
		if _, err := fmt.Fprintf(w, "%s/%s: %s: %s\n", v.Account, v.Store, v.Error, v.Remedy); err != nil {
			return err
		}
	}
	return nil
}

// storeTable returns the table of stores.
func storeTable() table[app.StoreInfo] {
	const head = "STORE\tSTATE\tDRIVER\tPRIMARY\tREAD\tREPAIR\tLOCATION\tSOURCE"
	return table[app.StoreInfo]{head, func(v app.StoreInfo) []string {
		primary := ""
		if v.Primary {
			primary = "primary"
		}
		return []string{v.Account + "/" + v.Store, string(v.State), v.Driver, primary, v.Read, v.Repair, v.Location, v.Source}
	}}
}

// abilityTable returns the table of a store's capabilities.
func abilityTable() table[app.Capability] {
	return table[app.Capability]{"CAPABILITY\tVALUE\tORIGIN", func(a app.Capability) []string {
		return []string{a.Name, a.Value, a.Origin}
	}}
}
