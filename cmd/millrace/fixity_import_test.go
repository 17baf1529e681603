package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/cmd/millrace/usage"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/fixity"
	"github.com/millrace/millrace/streams/inventory"
)

// Reports are read one after the other, stdin among them. The first that cannot be read ends the import.
func TestReportRows(t *testing.T) {
	const failed = "b,k,,failed,404,PermanentFailure,not found\n"
	file := filepath.Join(t.TempDir(), "report.csv")
	must(t, os.WriteFile(file, []byte(failed+failed), 0o600))
	for name, tt := range map[string]struct {
		names []string
		rows  int
		err   error
	}{
		"a file and stdin": {[]string{file, "-"}, 3, nil},
		"an absent file":   {[]string{"-", file + "x", file}, 1, usage.Err},
		"another file":     {[]string{"fixity_import_test.go", "-"}, 0, inventory.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			rows, failure := 0, error(nil)
			for _, err := range reportRows(strings.NewReader(failed), tt.names) {
				if err != nil {
					failure = err
					continue
				}
				rows++
			}
			if rows != tt.rows || !errors.Is(failure, tt.err) {
				t.Errorf("%d rows, %v, want %d, %v", rows, failure, tt.rows, tt.err)
			}
		})
	}
}

// The summary counts all rows, and names those that need a look.
func TestPrintComputed(t *testing.T) {
	done := app.ComputedImport{Rows: 9, Failed: 1, Compared: map[fixity.Comparison]int64{fixity.ComputedAgrees: 4,
		fixity.ComputedDiffers: 1, fixity.ComputedIncomparable: 1, fixity.ComputedNotCurrent: 1, fixity.ComputedUnknown: 1},
		Named: []app.ComputedOutcome{
			{At: inventory.Position{File: "r", Line: 2}, Key: "b/s/a", What: "differs",
				Copy: schemas.Copy{Account: "acme", Store: "1", Space: "s", Item: "a"}},
			{At: inventory.Position{File: "r", Line: 3}, Key: "b/k", What: "failed", Why: "404"}}}
	for form, want := range map[string]string{
		formText: "r:2: b/s/a: differs\nr:3: b/k: failed: 404\n" +
			"9 rows: 4 agreed, 1 differ and are checked, 1 not comparable, 1 not current, 1 unknown, 1 failed\n",
		formJSON: `{"rows":9,"agreed":4,"differ":1,"not_comparable":1,"not_current":1,"unknown":1,"failed":1,"named":[` +
			`{"file":"r","line":2,"key":"b/s/a","result":"differs","copy":"acme/1/s/a"},` +
			`{"file":"r","line":3,"key":"b/k","result":"failed","detail":"404"}]}`,
	} {
		var out bytes.Buffer
		must(t, printComputed(&out, &output{form: form}, done))
		got := out.String()
		if form == formJSON {
			got = strings.Join(strings.Fields(got), "")
		}
		if got != want {
			t.Errorf("%s: got\n%s, want\n%s", form, got, want)
		}
	}
}
