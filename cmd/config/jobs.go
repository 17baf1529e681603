package config

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/millrace/millrace/sinks/export"
)

// exportName matches the names of exports, which are part of names of files.
var exportName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// CheckExportName returns why a text is no name of an export of the audit log.
func CheckExportName(name string) error {
	if !exportName.MatchString(name) {
		return fmt.Errorf("the name of an export has 1 to 64 letters, digits, '.', '_' and '-', not %q", name)
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
		if account, store, space := e.To(); account == "" || store == "" || space == "" || strings.Contains(space, "/") {
			fault(at+".space", e.Space, "want ACCOUNT/STORE/SPACE")
		}
	}
}
