package config

import (
	"errors"
	"strings"
	"testing"
)

const s3Store = "accounts: [{id: a, stores: [{id: s, driver: s3, endpoint: \"https://s3.example.org\", "

const fileStore = "accounts: [{id: a, stores: [{id: s, root: /srv/s, "

// Each row is a setting that without validation would fail, or have no effect, only at run time.
func TestValidate(t *testing.T) {
	const rare = "sweep.fixity = every 1d: is longer than the shortest fixity.period"
	for text, want := range map[string]string{ // the fault, after its origin; empty: no fault
		"kafka: {session_timeout: 2s}":  "kafka.session_timeout = 2s: want 6s to 30m",
		"kafka: {session_timeout: 31m}": "kafka.session_timeout = 31m: want 6s to 30m",
		"kafka: {session_timeout: 6s}":  "",
		"kafka: {session_timeout: 10s, group_protocol: consumer}": "kafka.session_timeout = 10s: " +
			"has no effect with kafka.group_protocol consumer",
		"kafka: {session_timeout: 45s, group_protocol: consumer}": "kafka.session_timeout = 45s: " +
			"has no effect with kafka.group_protocol consumer",
		"kafka: {session_timeout: 0s}":      "",
		"kafka: {group_protocol: consumer}": "",
		"kafka: {topic_prefix: ..}": "kafka.topic_prefix = ..: " +
			"want at most 100 letters",
		"kafka: {topic_prefix: .}": "kafka.topic_prefix = .: want at most 100 letters",
		"kafka: {topic_prefix: __consumer}": "kafka.topic_prefix = __consumer: " +
			"want at most 100 letters",
		"kafka: {topic_prefix: a/b}": "kafka.topic_prefix = a/b: " +
			"want at most 100 letters",
		"kafka: {topic_prefix: \"a b\"}": "kafka.topic_prefix = a b: " +
			"want at most 100 letters",
		"kafka: {topic_prefix: ü}": "kafka.topic_prefix = ü: want at most 100 letters",
		"kafka: {topic_prefix: " + strings.Repeat("a", 101) + "}": "kafka.topic_prefix = " +
			strings.Repeat("a", 60) + "...: want at most 100 letters",
		"kafka: {topic_prefix: " + strings.Repeat("a", 99) + ".}": "",
		"kafka: {topic_prefix: \"\"}":                             "",
		"health: {stall_after: 1ns}":                              "health.stall_after = 1ns: want 1s or more",
		"health: {stall_after: 0s}":                               "health.stall_after = 0s: want 1s or more",
		"health: {stall_after: 1s}":                               "",
		"sweep: {fixity: off}":                                    "",
		"policies: {folder: policies, interval: 0s}":              "",
		"policies: {folder: policies, interval: 10ms}":            "policies.interval = 10ms: want 1s or more",
		"policies: {folder: \"s3://repo/mill\", interval: 5m}":    "",
		"policies: {folder: \"s3://\"}": "policies.folder = s3://: " +
			"want a directory or s3://BUCKET/PREFIX",
		"policies: {folder: \"s3://repo?x=1\"}": "policies.folder = s3://repo?x=1: " +
			"want a directory or s3://BUCKET/PREFIX",
		"policies: {folder: \"s3://repo\", endpoint: \"https://s3.example.org\"}": "",
		"policies: {folder: \"s3://repo\", endpoint: example.org}": "policies.endpoint = example.org: " +
			"want a URL",
		"policies: {folder: \"s3://repo\", endpoint: \"https://a:b@example.org\"}": "policies.endpoint: has a password",
		"policies: {folder: policies, endpoint: \"https://s3.example.org\"}": "policies.endpoint = https://s3.example.org: " +
			"is only for a folder",
		"sweep: {fixity: every 1m}":  "",
		"sweep: {fixity: every 59s}": "sweep.fixity = every 59s: want a period of 1m or more",
		"sweep: {reconcile: every 1s window 22:00-06:00}": "sweep.reconcile = every 1s window 22:00-06:00: " +
			"want a period of 1m or more",
		"sweep: {duplication: every 30s}": "sweep.duplication = every 30s: " +
			"want a period of 1m or more",
		"sweep: {duplication: cron * * * * *}":                                        "",
		"sweep: {fixity: every 1w start 20:00 window 22:00-06:00 zone Europe/Zurich}": "",
		"sweep: {fixity: 20m}": "sweep.fixity = 20m: " +
			`want off, every and a period, or cron and five fields at column 1, got "20m"`,
		"sweep: {fixity: every 1M}": "sweep.fixity = every 1M: " +
			`want a period of at least 1s, such as 20m, 12h, 60d, 1w or 1mo, at column 7, got "1M"`,
		"sweep: {fixity: every 1d zone Mars}": "sweep.fixity = every 1d zone Mars: " +
			`want a time zone such as UTC or Europe/Zurich at column 15, got "Mars"`,
		"sweep: {fixity: 60}":                             "sweep.fixity = 60: want off, every and a period",
		"sweep: {fixity: {every: 1h}}":                    "sweep.fixity = map[every:1h]: want off, every and a period",
		"sweep: {max_backlog: 0}":                         "sweep.max_backlog = 0: want 1 to 1000000000",
		"sweep: {max_backlog: 1}":                         "",
		"sweep: {workers: 0}":                             "sweep.workers = 0: want 1 to 256",
		"sweep: {workers: 257}":                           "sweep.workers = 257: want 1 to 256",
		"fixity: {periods: [{spaces: a//b, period: 1d}]}": "fixity.periods[0].spaces = a//b: \"a//b\" has an empty part",
		"fixity: {period: 12h}":                           rare,
		"fixity: {objective: 0%}":                         "fixity.objective = 0%: want more than 0%",
		"fixity: {objective: 100%}":                       "fixity.objective = 100%: want more than 0%",
		"fixity: {objective: 99.99%}":                     "",
		"fixity: {periods: [{spaces: a, period: 2h}]}":    rare,
		"fixity: {budgets: [{stores: a/1, items: 1}, {stores: a, bytes: 1GiB}]}": "",
		"fixity: {budgets: [{stores: a/1, requests: 1}]}":                        "",
		"fixity: {budgets: [{stores: a/1, items: 1, requests: -1}]}": "fixity.budgets[0] = a/1: " +
			"want items, bytes or requests, of 1 or more, or windows",
		"fixity: {budgets: [{stores: a/1}]}": "fixity.budgets[0] = a/1: " +
			"want items, bytes or requests, of 1 or more, or windows",
		"fixity: {budgets: [{stores: a/1, items: -1}]}": "fixity.budgets[0] = a/1: " +
			"want items, bytes or requests, of 1 or more, or windows",
		"fixity: {budgets: [{stores: a/1, windows: window 22:00-06:00 zone Europe/Zurich}]}": "",
		"fixity: {budgets: [{stores: a/1, items: 1, windows: 22:00-06:00}]}": "fixity.budgets[0].windows = 22:00-06:00: " +
			"want window or zone at column 1",
		"fixity: {budgets: [{stores: a/1/b, items: 1}]}": "fixity.budgets[0].stores = a/1/b: " +
			"\"a/1/b\" has",
		"fixity: {periods: [{spaces: a}]}": "fixity.periods[0].period",
		"sweep: {spaces: {fixity: {exclude: [acme, a//b]}}}": "sweep.spaces.fixity.exclude[1] = a//b: " +
			"\"a//b\" has an empty part",
		"sweep: {spaces: {duplication: {include: [a/1/b/c]}}}": "",
		"sweep: {spaces: {duplication: {include: [a/1/b/c, \"a/1/b/[\"]}}}": "sweep.spaces.duplication.include[1] = " +
			"a/1/b/[: \"a/1/b/[\": \"[\" is not a pattern",
		"fixity: {periods: [{spaces: a/1/b/c, period: 1d}]}": "fixity.periods[0].spaces = a/1/b/c: \"a/1/b/c\" has more",

		"sweep: {schedules: [{sweep: fixity, spaces: a/*, schedule: every 30d}, {sweep: groups, spaces: a/*, " +
			"schedule: every 1d}]}": "",
		"sweep: {schedules: [{sweep: stats, spaces: a, schedule: every 1d}]}": "sweep.schedules[0].sweep = stats: " +
			"want one of fixity, reconcile, duplication, groups",
		"sweep: {schedules: [{spaces: a, schedule: every 1d}]}": "sweep.schedules[0].sweep: is missing",
		"sweep: {schedules: [{sweep: fixity, spaces: a/1/b/c, schedule: every 1d}]}": "sweep.schedules[0].spaces = " +
			"a/1/b/c: \"a/1/b/c\" has more",
		"sweep: {schedules: [{sweep: fixity, schedule: every 1d}]}": "sweep.schedules[0].spaces: is missing",
		"sweep: {schedules: [{sweep: groups, spaces: a, schedule: every 1d}, {sweep: groups, spaces: /a, " +
			"schedule: every 2d}]}": "sweep.schedules[1].spaces = /a: has a schedule of this sweep in sweep.schedules[0]",
		"sweep: {schedules: [{sweep: reconcile, spaces: a}]}": "sweep.schedules[0].schedule = off: want a schedule",
		"sweep: {schedules: [{sweep: reconcile, spaces: a, schedule: every 1s}]}": "sweep.schedules[0].schedule = " +
			"every 1s: want a period of 1m or more",
		"sweep: {schedules: [{sweep: fixity, spaces: a, schedule: every 91d}]}": "sweep.schedules[0].schedule = " +
			"every 91d: is longer than the shortest fixity.period",

		"reconcile: {every: 1d}":     "reconcile.every: unknown setting",
		"trim: {schedule: every 1s}": "trim.schedule = every 1s: want a period of 1m or more",
		"trim: {schedule: off}":      "",
		"trim: {schedule: every 1m}": "",
		"audit: {exports: [{name: a, schedule: every 1d, space: acme/1/exports}]}": "",
		"audit: {exports: [{name: a, space: acme/1/x}]}": "audit.exports[0].schedule = off: " +
			"want a",
		"audit: {exports: [{name: a/b, schedule: every 1d, space: acme/1/exports}]}": "audit.exports[0].name = a/b: " +
			"a name",
		"audit: {exports: [{name: a, schedule: every 1d, space: acme/1}]}": "audit.exports[0].space = acme/1: " +
			"want ACCOUNT",
		"audit: {exports: [{name: a, schedule: every 1d, space: acme/1/x, format: xml}]}": "audit.exports[0].format = xml: " +
			"want tsv",
		"audit: {exports: [{name: a, schedule: every 1d, space: a/1/x}, {name: a, schedule: every 1d, space: a/1/x}]}": "" +
			"audit.exports[1].name = a: is the name of another export",
		"fixity: {reports: [{name: a, schedule: every 1d, space: acme/1/x}]}":          "",
		"fixity: {reports: [{name: a, schedule: every 1d, dir: /srv/x, format: tsv}]}": "",
		"fixity: {reports: [{name: a, dir: /srv/x}]}": "fixity.reports[0].schedule = off: " +
			"want a schedule",
		"fixity: {reports: [{name: a, schedule: every 1d}]}": "fixity.reports[0] = a: " +
			"want space or dir",
		"fixity: {reports: [{name: a, schedule: every 1d, space: acme/1/x, dir: /srv/x}]}": "fixity.reports[0] = a: " +
			"want space or dir",
		"fixity: {reports: [{name: a, schedule: every 1d, dir: x}]}": "fixity.reports[0].dir = x: want an absolute path",
		"fixity: {reports: [{name: a, schedule: every 1d, space: acme/1}]}": "fixity.reports[0].space = acme/1: " +
			"want ACCOUNT/STORE/SPACE",
		"fixity: {reports: [{name: a, schedule: every 1d, dir: /x, format: pdf}]}": "fixity.reports[0].format = pdf: " +
			"want html",
		"roles: {stall: 1ns}": "roles.stall = 1ns: want 1s or more",
		"roles: {deleter: {reserved: 2}}": "roles.deleter.reserved = 2: " +
			"deletes have no class low",
		"roles: {deleter: {large: 2}}": "roles.deleter.large = 2: " +
			"deletes have no large class",
		"roles: {copier: {workers: 3, reserved: 2, large: 1}}": "",
		"roles: {copier: {workers: 2, reserved: 2}}": "roles.copier.reserved = 2: " +
			"want 0 or more, and fewer than workers",
		s3Store + "bucket: b1}]}]": "accounts[0].stores[0].bucket = b1: " +
			"want 3 to 63 letters",
		s3Store + "bucket: a/b}]}]": "accounts[0].stores[0].bucket = a/b: " +
			"want 3 to 63 letters",
		s3Store + "bucket: Old_Bucket}]}]": "",
		s3Store + "bucket_prefix: A-}]}]": "accounts[0].stores[0].bucket_prefix = A-: " +
			"want at most 55 lower-case",
		s3Store + "bucket_prefix: acme-}]}]":                   "",
		s3Store + "region: x}]}]":                              "accounts[0].stores[0].bucket: is missing",
		fileStore + "endpoint: \"https://s3.example.org\"}]}]": "accounts[0].stores[0].endpoint: is for driver s3",
		fileStore + "bucket: b}]}]":                            "accounts[0].stores[0].bucket: is for driver s3",
		fileStore + "bucket_prefix: b-}]}]": "accounts[0].stores[0].bucket_prefix: " +
			"is for driver s3",
		fileStore + "prefix: p/}]}]": "accounts[0].stores[0].prefix: is for driver s3",
		fileStore + "credentials: {from_environment: true}}]}]": "accounts[0].stores[0].credentials: " +
			"is for driver s3",
		fileStore + "region: x}]}]": "accounts[0].stores[0].region: is for driver s3",
		fileStore + "path_style: true}]}]": "accounts[0].stores[0].path_style: " +
			"is for driver s3",
		fileStore + "ca: /ca.pem}]}]":                  "accounts[0].stores[0].ca: is for driver s3",
		fileStore + "proxy: \"http://proxy:3128\"}]}]": "accounts[0].stores[0].proxy: is for driver s3",
		fileStore + "encryption: AES256}]}]": "accounts[0].stores[0].encryption: " +
			"is for driver s3",
		fileStore + "kms_key: k}]}]": "accounts[0].stores[0].kms_key: is for driver s3",
		fileStore + "storage_class: DEEP_ARCHIVE}]}]": "accounts[0].stores[0].storage_class: " +
			"is for driver s3",
		fileStore + "requester_pays: true}]}]": "accounts[0].stores[0].requester_pays: " +
			"is for driver s3",
		fileStore + "restore: true}]}]":                                   "accounts[0].stores[0].restore: is for driver s3",
		fileStore + "path_style: false, restore: false, region: \"\"}]}]": "",
		s3Store + "bucket: bbb, proxy: \"http://u:hunter2@proxy:3128\"}]}]": "accounts[0].stores[0].proxy: " +
			"has a password in clear text",
		s3Store + "bucket: bbb, proxy: \"http://proxy:3128\"}]}]": "",
		strings.Replace(s3Store, "https://", "https://u:hunter2@", 1) + "bucket: bbb}]}]": "accounts[0].stores[0]." +
			"endpoint: has a user or password in clear text",
		"trace: {endpoint: \"http://u:hunter2@localhost:4318\"}": "trace.endpoint: has a password in clear text",
		"expire: {schedule: every 1s}":                           "expire.schedule = every 1s: want a period of 1m or more",
		"expire: {schedule: off}":                                "",
		"replaced: {keep: 1h}": "replaced.keep = 1h: " +
			"want 0 (forever), or 1d or more",
		"replaced: {keep: -1d}": "replaced.keep = -1d: " +
			"want 0 (forever), or 1d or more",
		"replaced: {keep: 0s}":                                        "",
		"outbox: {dir: outbox}":                                       "outbox.dir = outbox: want an absolute path",
		"outbox: {dir: /outbox, limit: 1MiB}":                         "",
		"outbox: {limit: 1KiB}":                                       "outbox.limit = 1KiB: want 1MiB or more",
		"kafka: {session_timeout: 0s, group_protocol: consumer}":      "",
		"kafka: {session_timeout: -1s}\nlog: {level: info}":           "kafka.session_timeout = -1s: want 6s to 30m",
		"kafka: {instance: pod-1, group_protocol: consumer}\nlog: {}": "",
	} {
		t.Run(text, func(t *testing.T) {
			_, _, err := load(t, text+"\n")
			if want == "" {
				if err != nil {
					t.Errorf("got %v", err)
				}
				return
			}
			var faults Faults
			if !errors.As(err, &faults) || len(faults) != 1 || !strings.Contains(faults[0].String(), ": "+want) {
				t.Errorf("got %v, want %s", err, want)
			}
			if len(faults) > 0 && strings.Contains(faults[0].Value, "hunter2") {
				t.Errorf("it prints the password: %v", faults[0])
			}
		})
	}
}
