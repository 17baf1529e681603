package config

import "path/filepath"

func validateOutbox(o Outbox, fault report) {
	if o.Dir != "" && !filepath.IsAbs(o.Dir) {
		fault("outbox.dir", o.Dir, "want an absolute path: a relative one depends on the working directory")
	}
	if o.Limit < 1<<20 {
		fault("outbox.limit", o.Limit, "want 1MiB or more")
	}
}
