package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/config/mill"
)

func newImportConfig() *cobra.Command {
	return &cobra.Command{
		Use:   "import-config FILE",
		Short: "Convert a properties file or a state file of the DuraCloud Mill to settings",
		Long: `Reads a properties file of the DuraCloud Mill, and the lists of spaces and the state files that it names, and
prints the settings of millrace that mean the same, as a part of a configuration file. Comments say what each line has
become, and each space that the state of a looping task producer has. Of a state file, which is JSON, it prints only
these comments. Nothing is changed. Values of passwords and keys are not printed.

Paths that are not absolute are relative to the properties file. The state files are in the directory of the property
workdir.

Exit codes: 0 fine, 1 error, 2 usage, 4 some lines could not be converted: the comments say which.`,
		Args: exactly(1),
		RunE: func(c *cobra.Command, args []string) error {
			f, err := os.Open(args[0])
			if err != nil {
				return err
			}
			defer f.Close()
			result, err := mill.Convert(args[0], f, func(name string) (io.ReadCloser, error) {
				if !filepath.IsAbs(name) {
					name = filepath.Join(filepath.Dir(args[0]), name)
				}
				return os.Open(name)
			})
			if err != nil {
				return err
			}
			_, err = io.WriteString(c.OutOrStdout(), settingsOf(&result))
			if result.Failed() {
				err = errors.Join(err, fmt.Errorf("%w: some lines could not be converted", errPartly))
			}
			return err
		},
	}
}

// settingsOf returns a part of a configuration file, after comments about each line.
func settingsOf(r *mill.Result) string {
	var b strings.Builder
	for _, l := range r.Lines {
		at := l.File
		if l.Number > 0 {
			at += ":" + strconv.Itoa(l.Number)
		}
		fmt.Fprintf(&b, "# %s: %s\n#   %s\n", at, l.Text, l.Became)
	}
	var open []string // the tables of the last setting
	for _, s := range r.Settings {
		parts := strings.Split(s.Key, ".")
		tables, name := parts[:len(parts)-1], parts[len(parts)-1]
		same := 0
		for same < min(len(open), len(tables)) && open[same] == tables[same] {
			same++
		}
		for i := same; i < len(tables); i++ {
			fmt.Fprintf(&b, "%s%s:\n", strings.Repeat("  ", i), tables[i])
		}
		open = tables
		indent := strings.Repeat("  ", len(tables))
		if !s.List {
			fmt.Fprintf(&b, "%s%s: %s\n", indent, name, scalar(s.Values[0]))
			continue
		}
		fmt.Fprintf(&b, "%s%s:\n", indent, name)
		for _, v := range s.Values {
			fmt.Fprintf(&b, "%s  - %s\n", indent, scalar(v))
		}
	}
	return b.String()
}

// scalar returns a value in YAML.
func scalar(v string) string {
	if _, err := strconv.ParseInt(v, 10, 64); err == nil {
		return v
	}
	return strconv.Quote(v)
}
