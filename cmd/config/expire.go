package config

import "time"

func validateExpire(c *Config, fault report) {
	if c.Expire.Every != 0 {
		atLeast("expire.every", c.Expire.Every, time.Minute, fault)
	}
	if k := c.Replaced.Keep; k != 0 && k < day {
		fault("replaced.keep", formatDuration(k), "want 0 (forever), or 1d or more: recovery needs these bytes")
	}
}
