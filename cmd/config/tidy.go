package config

import "time"

func validateTidy(c *Config, fault report) {
	if c.Tidy.Every != 0 {
		atLeast("tidy.every", c.Tidy.Every, time.Minute, fault)
	}
	if k := c.Replaced.Keep; k != 0 && k < day {
		fault("replaced.keep", formatDuration(k), "want 0 (forever), or 1d or more: recovery needs these bytes")
	}
}
