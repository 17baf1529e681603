// Package config defines the settings of millrace, their defaults, and how they are loaded.
//
// Later layers override earlier ones: defaults, the file, MILLRACE_* variables, the command line.
// Load validates every layer and returns all faults at once, each with its origin and the expected
// value. It returns no configuration if there is a fault. Secrets are references: they are resolved
// when they are used and never printed.
package config

import (
	"cmp"
	"strconv"
	"strings"
	"time"

	"github.com/millrace/millrace/sinks/export"
	"github.com/millrace/millrace/streams/schedule"
)

// Config holds all settings.
type Config struct {
	// The tenants and their stores.
	Accounts []Account `key:"accounts"`
	// Documents of accounts that are published at run time.
	AccountTopic AccountTopic `key:"account_topic"`
	// Which spaces are copied from which store to which.
	Policies Policies `key:"policies"`
	// The Kafka cluster. standalone and demo start a broker of their own, with one replica and two
	// partitions.
	Kafka Kafka `key:"kafka"`
	// The ClickHouse server. standalone and demo start one of their own.
	ClickHouse ClickHouse `key:"clickhouse"`
	// The delay lanes: topics that hold messages until a later time.
	Delay Delay `key:"delay"`
	// How changes are copied.
	Duplication Duplication `key:"duplication"`
	// How copies are checked.
	Fixity Fixity `key:"fixity"`
	// What holds for all sweeps.
	Sweep Sweep `key:"sweep"`
	// How the listings of stores are compared with the records.
	Reconcile Reconcile `key:"reconcile"`
	// How deletes are applied to copies.
	Deletes Deletes `key:"deletes"`
	// Workers, limits and retries of each role.
	Roles Roles `key:"roles"`
	// Sources of events besides producers that write to the topic changes themselves.
	Ingest Ingest `key:"ingest"`
	// The outbox of changes that millrace makes as a client and that Kafka has not acknowledged yet.
	// Only millrace demo uses it, in its state directory; run and standalone do not. Other programs
	// open theirs with outbox.Open (docs/outbox.md).
	Outbox Outbox `key:"outbox"`
	// How rows are batched for ClickHouse.
	Sink Sink `key:"sink"`
	// How topics are trimmed.
	Trim Trim `key:"trim"`
	// What happens to bytes that are replaced or deleted.
	Replaced Replaced `key:"replaced"`
	// How stores are cleaned up.
	Expire Expire `key:"expire"`
	// How the audit log is exported.
	Audit Audit `key:"audit"`
	// When the process reports itself as unhealthy.
	Health Health `key:"health"`
	// The HTTP endpoints /livez, /readyz, /startupz and /metrics.
	HTTP HTTP `key:"http"`
	// Where trace spans are sent.
	Trace Trace `key:"trace"`
	// Where standalone stores the data of its embedded Kafka and ClickHouse.
	State State `key:"state"`
	// The log, on standard error.
	Log Log `key:"log"`
}

// Account is a tenant.
type Account struct {
	// The account's name: letters, digits, dot, dash and underscore. Every record contains it, so it
	// cannot be changed later.
	ID string `key:"id"`
	// The account's stores.
	Stores []Store `key:"stores"`
	// Limits of the tasks of all its stores together, in one process.
	Limits Limits `key:"limits"`
	// The size that its items may have in its primary store. If they have more, the incident
	// allocation-exceeded opens, and nothing else happens. 0: any.
	Allocation Size `key:"allocation"`
	// Whether its work is done. If false, its work waits, as if the account were paused, and nothing
	// is lost. Default: true.
	Active Active `key:"active"`

	// Revision is that of the topic accounts which the account is from; 0: it is from a configuration. It is no setting.
	Revision int64 `key:""`
	// Unusable are why stores of the topic accounts are not used, by their ids. It is no setting.
	Unusable map[string]string `key:""`
}

// AccountTopic configures which documents of the topic accounts a process accepts.
type AccountTopic struct {
	// Whether secrets of documents may be exec:COMMAND. If true, whoever may write to the topic can
	// run commands in this process. If false, a store with such a secret is unavailable in it.
	AllowExec bool `key:"allow_exec"`
}

// Active is a setting whose zero value means true.
type Active uint8

// Inactive is the value of Active that means false.
const Inactive Active = 1

// String returns true or false.
func (a Active) String() string { return strconv.FormatBool(a != Inactive) }

// Policies configures where policy documents come from.
type Policies struct {
	// A folder with duplication-accounts.json and one ACCOUNT-duplication-policy.json (or .yaml) for
	// each account: a directory, or s3://BUCKET/PREFIX with the credentials of the AWS tools. It is
	// published at startup and when a file changes. Default: the policies that were published before apply.
	Folder string `key:"folder"`
	// The URL of another S3 service of a folder s3://BUCKET/PREFIX.
	Endpoint string `key:"endpoint"`
	// How often changed files of the folder are looked for; 0: only at startup, and while documents
	// are refused.
	Interval time.Duration `key:"interval"`
}

// InBucket reports whether the folder is a prefix of a bucket.
func (p Policies) InBucket() bool { return strings.HasPrefix(p.Folder, "s3://") }

// Duplication configures how changes are copied to the other stores.
type Duplication struct {
	// Items of this size or larger have a topic and workers of their own, so that they do not delay
	// smaller ones.
	LargeThreshold Size `key:"large_threshold"`
	// How long a command waits, each time, for the record of a change of its source that is not in
	// ClickHouse yet. After the last wait the source is checked.
	Wait []time.Duration `key:"wait"`
}

// Deletes configures how deletes are applied to copies.
type Deletes struct {
	// How long a copy is kept after its source was deleted.
	Delay time.Duration `key:"delay"`
	// The share of a space's copies at a destination that may be deleted within an hour without approval. Three times
	// that may be deleted within 30 days. It counts from the tenth delete on. 100% is no limit.
	MaxShare Share `key:"max_share"`
	// The number of a space's copies at a destination that may be deleted within an hour without approval. Three times
	// that may be deleted within 30 days.
	MaxCount int `key:"max_count"`
}

// MaxDrain is the largest value of roles.drain.
const MaxDrain = 4 * time.Minute

// Roles configures the roles of a process.
type Roles struct {
	// The copier copies items.
	Copier Role `key:"copier"`
	// The checker checks copies.
	Checker Role `key:"checker"`
	// The deleter deletes copies.
	Deleter Role `key:"deleter"`
	// The ingester verifies notifications of object stores.
	Ingester Role `key:"ingester"`
	// Attempts to handle a message before it becomes a dead letter. Waiting for an unavailable store
	// does not count.
	Attempts int `key:"attempts"`
	// Messages of class high that are started for each one of class low while both are queued.
	HighWeight int `key:"high_weight"`
	// How long a task may run without progress before it is cancelled; 1s or more.
	Stall time.Duration `key:"stall"`
	// How long running tasks may continue when the process stops or their partition moves. After that
	// they are cancelled and repeated.
	Drain time.Duration `key:"drain"`
}

// Role configures one role.
type Role struct {
	// Items that are processed at the same time, in one process.
	Workers int `key:"workers"`
	// Workers that do not take tasks of class low. The deleter and the ingester have no such class.
	Reserved int `key:"reserved"`
	// Additional workers for large items. The deleter and the ingester have no such class.
	Large int `key:"large"`
	// Messages of one partition that are fetched and not finished.
	Window int `key:"window"`
	// Bytes of messages of one class that are fetched and not finished.
	Bytes Size `key:"bytes"`
}

// Ingest configures how the ingester receives events.
type Ingest struct {
	// The address that accepts events (POST /v1/changes) and notifications of object stores (POST
	// /v1/notifications/s3), host:port; empty: none. It has no TLS; use a proxy. Without tokens it
	// must be a loopback address.
	Listen string `key:"listen"`
	// The senders that may post. Without any, everyone may post for every account.
	Tokens []Token `key:"tokens"`
	// The largest request body, in bytes.
	MaxBody Size `key:"max_body"`
	// The most events in one request.
	MaxEvents int `key:"max_events"`
	// Concurrent requests in one process; further requests get status 503.
	Concurrency int `key:"concurrency"`
	// Memory of all requests of one process together, besides their bodies. A request counts 16 times
	// the size of its body plus 4KiB for each event that it may hold. A request that needs more than
	// the whole is handled alone. One that waits for memory for 1s gets status 503.
	Memory Size `key:"memory"`
	// Topics to which object stores publish notifications.
	Notifications []Notification `key:"notifications"`
}

// Token is a sender that may post events of some stores of one account.
type Token struct {
	// The sender's name; it becomes the user of events that have none.
	Name string `key:"name"`
	// The account of the stores that its events are about.
	Account string `key:"account"`
	// The stores that its events are about, and no others.
	Stores []string `key:"stores"`
	// The secret that it sends as Authorization: Bearer TOKEN or as a password, 16 bytes or more.
	Token Secret `key:"token"`
}

// Notification is a topic with notifications in the format of AWS, MinIO, Ceph or versitygw.
type Notification struct {
	// The full topic name; kafka.topic_prefix is not added.
	Topic string `key:"topic"`
	// The account of the stores that it may report. Default: all accounts.
	Account string `key:"account"`
	// The only store that it reports, if several stores have buckets of the same name. For a store of
	// driver file that an S3 gateway serves, buckets are spaces.
	Store string `key:"store"`
}

// Outbox configures the outbox of changes that millrace makes as a client and that Kafka has not
// acknowledged yet (docs/outbox.md). Only millrace demo uses it; the roles of run and standalone do
// not. When it is full, writes fail without effect.
type Outbox struct {
	// The directory of the outboxes, an absolute path; each store that is written to has one below it.
	Dir string `key:"dir"`
	// The size limit of one outbox, in bytes; 1MiB or more.
	Limit Size `key:"limit"`
}

// Sink configures the batches of rows; a batch ends at the limit that it reaches first.
type Sink struct {
	// The most rows of one insert.
	Rows int `key:"rows"`
	// The most bytes of one insert.
	Bytes Size `key:"bytes"`
	// How long the first row of a batch waits at most.
	Age time.Duration `key:"age"`
	// Inserts per second into one table that are smaller than sink.rows and sink.bytes and younger
	// than sink.age; such an insert is sent if no other insert into the table is running. Of inserts
	// that reach sink.age, four times as many are sent.
	PartsPerSecond int `key:"parts_per_second"`
	// Bytes that are read for the log tables and not stored yet; for the table of copies a third of
	// this. At the limit, the largest batches are inserted even if they are not full.
	Memory Size `key:"memory"`
}

// Trim configures the deletion of records that every reader has handled. No other records are
// deleted.
type Trim struct {
	// When a run begins; off turns trimming off. Nothing is trimmed while the sweeper, or everything, is
	// paused.
	Schedule schedule.Schedule `key:"schedule"`
	// How long records are kept after they were handled.
	Keep time.Duration `key:"keep"`
}

// Replaced configures what happens to bytes that millrace replaces or deletes. In a versioned
// bucket the lifecycle rules of the bucket apply instead.
type Replaced struct {
	// How long replaced and deleted bytes are kept in the store; 1d or more; 0 is forever.
	Keep time.Duration `key:"keep"`
	// The share of a space's copies at a destination that may be replaced with other content within an hour without
	// approval. Three times that may be replaced within 30 days. It counts from the tenth on. 100% is no limit.
	MaxShare Share `key:"max_share"`
	// The number of a space's copies at a destination that may be replaced with other content within an hour without
	// approval. Three times that may be replaced within 30 days.
	MaxCount int `key:"max_count"`
}

// Expire configures the cleanup of stores by the sweeper: it aborts multipart uploads that are older
// than a week, and removes replaced bytes after replaced.keep.
type Expire struct {
	// When a cleanup of each store begins; off turns them off.
	Schedule schedule.Schedule `key:"schedule"`
}

// Audit configures how the audit log is exported.
type Audit struct {
	// The exports that role sweeper makes. The command millrace audit export makes others, without settings.
	Exports []AuditExport `key:"exports"`
}

// AuditExport is an export of the audit log.
type AuditExport struct {
	// The name of the export, which begins the names of its files. Each change is exported once under a name.
	Name string `key:"name"`
	// The account whose changes are exported; empty: all.
	Account string `key:"account"`
	// When the changes that were not exported before are exported.
	Schedule schedule.Schedule `key:"schedule"`
	// The format of the files: tsv, csv, jsonl or parquet; empty: tsv.
	Format string `key:"format"`
	// The space in which the files are items, as ACCOUNT/STORE/SPACE. They are copied and checked like others.
	Space string `key:"space"`
}

// To returns the space of the files. The settings have been validated.
func (e AuditExport) To() (account, store, space string) { return spaceOf(e.Space) }

// spaceOf returns the parts of ACCOUNT/STORE/SPACE.
func spaceOf(name string) (account, store, space string) {
	account, rest, _ := strings.Cut(name, "/")
	store, space, _ = strings.Cut(rest, "/")
	return account, store, space
}

// FormatOrDefault returns the format of the files.
func (e AuditExport) FormatOrDefault() export.Format {
	return cmp.Or(export.Format(e.Format), export.TSV)
}

// Health configures when the process reports itself as unhealthy.
type Health struct {
	// The process is unhealthy when it has had work that is due and not paused for this long without
	// finishing any; 1s or more.
	StallAfter time.Duration `key:"stall_after"`
}

// HTTP configures the endpoints for health and metrics.
type HTTP struct {
	// The address to listen on, host:port; empty: none.
	Listen string `key:"listen"`
}

// Trace configures the export of trace spans, by OTLP over HTTP.
type Trace struct {
	// The URL of the collector, such as http://localhost:4318. If empty, no spans are recorded, and
	// trace contexts are passed on. OTEL_TRACES_SAMPLER and OTEL_TRACES_SAMPLER_ARG say which of the
	// traces that start in millrace are recorded. Default: all.
	Endpoint string `key:"endpoint"`
}

// State configures where standalone stores its state.
type State struct {
	// A directory that is used for nothing else; --state overrides it.
	Dir string `key:"dir"`
}

// Log configures the log.
type Log struct {
	// The lowest level that is logged.
	Level string `key:"level" oneof:"debug|info|warn|error"`
	// The format of log lines.
	Format string `key:"format" oneof:"text|json"`
}

// Default returns the default settings.
func Default() Config {
	return Config{
		Kafka: Kafka{
			Brokers: []string{"localhost:9092"}, TopicPrefix: "millrace.",
			Partitions: 12, Replication: 3, MinInSync: 2, GroupProtocol: "classic",
		},
		ClickHouse: ClickHouse{
			Addresses: []string{"localhost:9000"}, Database: "millrace", User: "default",
		},
		Delay: Delay{Lanes: []Lane{
			{"30s", 30 * time.Second}, {"5m", 5 * time.Minute}, {"1h", time.Hour}, {"1d", day},
		}},
		Duplication: Duplication{
			LargeThreshold: 5 << 30,
			Wait:           []time.Duration{30 * time.Second, 5 * time.Minute, time.Hour},
		},
		Fixity: Fixity{
			Period: 90 * day, Objective: 0.999, MinInterval: time.Hour, Settle: day,
			Recheck:   []time.Duration{5 * time.Minute, 30 * time.Minute, 2 * time.Hour},
			FreshWait: 30 * time.Second, AfterCopy: true,
		},
		Sweep: Sweep{
			MaxMissing: 0.1, MaxBacklog: 10_000, Workers: 4,
			Fixity: schedule.MustParse("every 1d"), Reconcile: schedule.MustParse("every 1d"),
			Duplication: schedule.MustParse("every 1d"), Stats: schedule.MustParse("every 1d"),
			Groups: schedule.MustParse("every 7d"),
		},
		Policies:  Policies{Interval: time.Minute},
		Reconcile: Reconcile{Settle: time.Minute},
		Deletes:   Deletes{MaxShare: 0.1, MaxCount: 1000},
		Roles: Roles{
			Copier:   Role{Workers: 16, Reserved: 2, Large: 2, Window: 8192, Bytes: 64 << 20},
			Checker:  Role{Workers: 8, Reserved: 1, Large: 2, Window: 8192, Bytes: 64 << 20},
			Deleter:  Role{Workers: 16, Window: 8192, Bytes: 64 << 20},
			Ingester: Role{Workers: 16, Window: 8192, Bytes: 64 << 20},
			Attempts: 5, HighWeight: 8, Stall: 10 * time.Minute, Drain: time.Minute,
		},
		Ingest:   Ingest{MaxBody: 4 << 20, MaxEvents: 1000, Concurrency: 64, Memory: 256 << 20},
		Outbox:   Outbox{Limit: 1 << 30},
		Sink:     Sink{Rows: 50_000, Bytes: 32 << 20, Age: time.Second, PartsPerSecond: 4, Memory: 20 << 20},
		Trim:     Trim{Schedule: schedule.MustParse("every 1h"), Keep: 14 * day},
		Replaced: Replaced{Keep: 30 * day, MaxShare: 0.1, MaxCount: 1000},
		Expire:   Expire{Schedule: schedule.MustParse("every 6h")},
		Health:   Health{StallAfter: 5 * time.Minute},
		Log:      Log{Level: "info", Format: "text"},
	}
}
