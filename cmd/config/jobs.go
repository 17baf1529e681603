package config

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/millrace/millrace/sinks/export"
)

// exportName matches the names of exports and reports, which are part of names of files.
var exportName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// CheckExportName returns why a text is no name of an export of the audit log, or of reports.
func CheckExportName(name string) error {
	if !exportName.MatchString(name) {
		return fmt.Errorf("a name has 1 to 64 letters, digits, '.', '_' and '-', not %q", name)
	}
	return nil
}

// validateJobs checks the settings of what recurs besides sweeps.
func validateJobs(c *Config, fault report) {
	validateSchedule("trim.schedule", c.Trim.Schedule, fault)
	validateSchedule("expire.schedule", c.Expire.Schedule, fault)
	if k := c.Replaced.Keep; k != 0 && k < day {
		fault("replaced.keep", formatDuration(k), "want 0 (forever), or 1d or more: recovery needs these bytes")
	}
	seen := map[string]bool{}
	for i, e := range c.Audit.Exports {
		at := fmt.Sprintf("audit.exports[%d]", i)
		if err := CheckExportName(e.Name); err != nil {
			fault(at+".name", e.Name, err.Error())
		} else if seen[e.Name] {
			fault(at+".name", e.Name, "is the name of another export: each has its own position")
		}
		seen[e.Name] = true
		if validateSchedule(at+".schedule", e.Schedule, fault); e.Schedule.Off() {
			fault(at+".schedule", e.Schedule, "want a schedule: 'millrace audit export' makes exports without one")
		}
		if !slices.Contains(export.Formats(), e.FormatOrDefault()) {
			fault(at+".format", e.Format, "want tsv, csv, jsonl or parquet")
		}
		validateSpace(at+".space", e.Space, fault)
	}
	seen = map[string]bool{}
	for i, r := range c.Fixity.Reports {
		at := fmt.Sprintf("fixity.reports[%d]", i)
		if err := CheckExportName(r.Name); err != nil {
			fault(at+".name", r.Name, err.Error())
		} else if seen[r.Name] {
			fault(at+".name", r.Name, "is the name of other reports: each has its own position")
		}
		seen[r.Name] = true
		if validateSchedule(at+".schedule", r.Schedule, fault); r.Schedule.Off() {
			fault(at+".schedule", r.Schedule, "want a schedule: 'millrace fixity report' writes reports without one")
		}
		if !slices.Contains([]string{"html", "json", "csv", "tsv"}, r.FormatOrDefault()) {
			fault(at+".format", r.Format, "want html, json, csv or tsv")
		}
		switch {
		case (r.Space == "") == (r.Dir == ""):
			fault(at, r.Name, "want space or dir, and not both")
		case r.Space != "":
			validateSpace(at+".space", r.Space, fault)
		case !filepath.IsAbs(r.Dir):
			fault(at+".dir", r.Dir, "want an absolute path: a relative one depends on the working directory")
		}
	}
}

// validateSpace checks the name of a space in a store.
func validateSpace(key, name string, fault report) {
	account, store, space := spaceOf(name)
	if account == "" || store == "" || space == "" || strings.Contains(space, "/") {
		fault(key, name, "want ACCOUNT/STORE/SPACE")
	}
}
