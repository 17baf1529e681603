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
	"github.com/millrace/millrace/streams/sweep/filter"
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
	// The ClickHouse server or cluster. standalone and demo start one of their own.
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

// Limits bound the tasks of one process; zero is no limit. Each process applies its limits by
// itself, so with several processes divide them.
type Limits struct {
	// Tasks that run at the same time.
	Tasks int `key:"tasks"`
	// Tasks started per second.
	TasksPerSecond int `key:"tasks_per_second"`
	// Bytes per second of the tasks that are started, as far as their sizes are known in advance.
	BytesPerSecond Size `key:"bytes_per_second"`
}

// Store is one storage provider of an account.
type Store struct {
	// The store's name, unique in the account: letters, digits, dot, dash and underscore. It cannot be
	// changed later.
	ID string `key:"id"`
	// The kind of store.
	Driver string `key:"driver" oneof:"file|s3"`
	// Driver file: the directory that holds the spaces, an absolute path.
	Root string `key:"root"`
	// Driver file: how items are stored in root. millrace: the layout of millrace. plain: an ordinary
	// directory tree, such as an existing archive. The path of a file is its item id; the tree is read
	// only.
	Layout string `key:"layout" oneof:"millrace|plain"`
	// Layout plain: the name of the single space that contains all of root. Default: each directory in
	// root is a space.
	Space string `key:"space"`
	// Layout plain: the path, relative to root, of a file or directory that proves that root is
	// mounted; a plain tree has no marker file. Choose one that an empty mount point or another disk
	// does not have, such as bagit.txt.
	Expect string `key:"expect"`
	// Layout plain: the SHA-256 of the file expect, in hex. The file may have up to 1 MiB. Default:
	// any content.
	ExpectSHA256 string `key:"expect_sha256"`
	// Driver s3: the URL of the service, https://host[:port]; http for a service on the same machine.
	Endpoint string `key:"endpoint"`
	// Driver s3: the region of the bucket. Default: us-east-1.
	Region string `key:"region"`
	// Driver s3: the bucket that holds all spaces, each below a prefix with the space's name.
	Bucket string `key:"bucket"`
	// Driver s3, with bucket: a key prefix before the names of spaces, such as a folder name.
	Prefix string `key:"prefix"`
	// Driver s3, without bucket: each space is a bucket, named by this prefix and the space's name.
	BucketPrefix string `key:"bucket_prefix"`
	// Driver s3: path-style requests: the bucket is in the path, not in the host name. Most services
	// other than AWS need it.
	PathStyle bool `key:"path_style"`
	// Driver s3: the credentials.
	Credentials Credentials `key:"credentials"`
	// Driver s3: a PEM file with certificate authorities to trust in addition to the system's.
	CA string `key:"ca"`
	// Driver s3: the URL of an HTTP proxy. Default: the proxy of the environment.
	Proxy string `key:"proxy"`
	// Driver s3: the server-side encryption of objects that are written. Default: the bucket's.
	Encryption string `key:"encryption" oneof:"AES256|aws:kms"`
	// Driver s3, with encryption aws:kms: the id of the key. Default: the bucket's key.
	KMSKey string `key:"kms_key"`
	// Driver s3: the storage class of objects that are written. Default: the service's.
	StorageClass string `key:"storage_class"`
	// Driver s3: requester pays: reads are charged to this account.
	RequesterPays bool `key:"requester_pays"`
	// Driver s3: restore archived objects before they are read, which costs. If false, reading them
	// fails.
	Restore bool `key:"restore"`
	// Whether clients write to this store. At most one store of an account is primary.
	Primary bool `key:"primary"`
	// Whether checks read the bytes of copies. never: for archives where reads cost too much. sampled:
	// rounds read sample_percent of the copies in each fixity.period, each copy in its turn; checks
	// for any other reason, such as on demand, always read.
	Read string `key:"read" oneof:"always|sampled|never"`
	// With read: sampled, the percentage of copies that is read in each fixity.period. Default: 5.
	SamplePercent int `key:"sample_percent"`
	// Whether damaged copies are repaired at once (auto), after approval (approve), or not at all
	// (off). Default: off for layout plain, approve for the primary store, auto for the others.
	Repair string `key:"repair" oneof:"auto|approve|off"`
	// Whether programs other than millrace may change this store.
	ExternalWrites string `key:"external_writes" oneof:"refused|expected"`
	// With external_writes: expected, whether an item that another program has replaced without an
	// event is put on record at once (auto), or after approval (approve).
	Corrections string `key:"corrections" oneof:"approve|auto"`
	// Driver file: whether the ingester watches the directory with inotify and reports changes at
	// once. When it starts, it reports every existing file. It does not report files that were deleted
	// while it was stopped (docs/ingest.md).
	Watch bool `key:"watch"`
	// Limits of this store's tasks, in one process.
	Limits Limits `key:"limits"`
	// Limits of the requests to this store, of all tasks of one process together.
	Requests Requests `key:"requests"`
}

// Requests bound the requests of one process to one store; zero is no limit. When a store asks for
// fewer requests, the rate is halved and then raised again step by step, with or without a limit.
type Requests struct {
	// Concurrent requests of each kind: reads of items, writes of items, and others.
	AtOnce int `key:"at_once"`
	// Requests started per second.
	PerSecond int `key:"per_second"`
	// Bytes read and written per second.
	BytesPerSecond Size `key:"bytes_per_second"`
}

// Credentials are keys, or the credentials of the machine. Without any, requests are not signed.
type Credentials struct {
	// The access key id.
	AccessKey Secret `key:"access_key"`
	// The secret access key.
	SecretKey Secret `key:"secret_key"`
	// The session token of temporary keys.
	SessionToken Secret `key:"session_token"`
	// Whether credentials come from the sources of the AWS tools: variables, ~/.aws, the role of the
	// machine or pod.
	FromEnvironment bool `key:"from_environment"`
}

// Policies configures where policy documents come from.
type Policies struct {
	// A folder with duplication-accounts.json and one ACCOUNT-duplication-policy.json (or .yaml) for
	// each account: a directory, or s3://BUCKET/PREFIX with the credentials of the AWS tools. It is
	// read at startup and published. Default: the policies that were published before apply.
	Folder string `key:"folder"`
	// The URL of another S3 service of a folder s3://BUCKET/PREFIX.
	Endpoint string `key:"endpoint"`
	// How often changed files of the folder are looked for; 0: only at startup, and while documents
	// are refused.
	Interval time.Duration `key:"interval"`
}

// InBucket reports whether the folder is a prefix of a bucket.
func (p Policies) InBucket() bool { return strings.HasPrefix(p.Folder, "s3://") }

// Kafka configures the connection to the brokers, and the topics that are created.
type Kafka struct {
	// Bootstrap addresses, host:port.
	Brokers []string `key:"brokers"`
	// A prefix of all topic and group names: letters, digits, dot, dash and underscore, starting with
	// a letter or digit.
	TopicPrefix string `key:"topic_prefix"`
	// Partitions of topics that are created; existing topics stay as they are.
	Partitions int `key:"partitions"`
	// Replicas of each partition of topics that are created.
	Replication int `key:"replication"`
	// min.insync.replicas of topics that are created; existing topics must have at least this.
	MinInSync int `key:"min_insync"`
	// TLS.
	TLS TLS `key:"tls"`
	// SASL authentication.
	SASL SASL `key:"sasl"`
	// The group protocol: classic, or consumer (KIP-848, for Kafka 4.3 and newer).
	GroupProtocol string `key:"group_protocol" oneof:"classic|consumer"`
	// The group.instance.id of this process: a name that is unique among the processes with the same
	// roles, such as the pod's. With it, a restart within the session timeout does not move
	// partitions.
	Instance string `key:"instance"`
	// The session timeout of group members, 6s to 30m; 0 means 10s, or 45s with kafka.instance. It
	// must not be set with group_protocol consumer: the brokers' group.consumer.session.timeout.ms
	// applies.
	SessionTimeout time.Duration `key:"session_timeout"`
}

// TLS configures the encryption of a connection.
type TLS struct {
	// Whether connections use TLS.
	Enabled bool `key:"enabled"`
	// A PEM file with the certificate authorities to trust. Default: the system's.
	CA string `key:"ca"`
	// A PEM file with the client certificate, if the server asks for one.
	Cert string `key:"cert"`
	// A PEM file with the private key of cert.
	Key string `key:"key"`
	// The name that the server's certificate must have. Default: the host of the address.
	ServerName string `key:"server_name"`
}

// SASL configures the authentication to the brokers.
type SASL struct {
	// The SASL mechanism. Default: no authentication.
	Mechanism string `key:"mechanism" oneof:"PLAIN|SCRAM-SHA-256|SCRAM-SHA-512"`
	// The user name.
	User string `key:"user"`
	// The password.
	Password Secret `key:"password"`
}

// ClickHouse configures the connection to ClickHouse.
type ClickHouse struct {
	// Addresses of the native protocol, host:port. The first address that answers is used for as long
	// as it answers.
	Addresses []string `key:"addresses"`
	// The database of the tables; millrace migrate creates it.
	Database string `key:"database"`
	// The user of sinks and of millrace migrate, which write.
	User string `key:"user"`
	// The password of user.
	Password Secret `key:"password"`
	// A separate user for reads.
	Reader Reader `key:"reader"`
	// TLS.
	TLS TLS `key:"tls"`
	// The name of the ClickHouse cluster that holds the tables. Default: a single server. Set it
	// before the first migrate.
	Cluster string `key:"cluster"`
	// Replicas of a shard that must store a row before an insert succeeds: all, auto (a majority), or
	// a number. With fewer than all, a read after the loss of a replica can return older data than was
	// written.
	InsertQuorum string `key:"insert_quorum"`
	// Whether to use servers older than the oldest tested release (docs/clickhouse.md). If false, they
	// are refused.
	AllowOlder bool `key:"allow_older"`
}

// Reader is the ClickHouse user for reads.
type Reader struct {
	// The user that commands use to read, and that roles use for fresh records. Default:
	// clickhouse.user.
	User string `key:"user"`
	// The password of user.
	Password Secret `key:"password"`
}

// Delay configures the delay lanes.
type Delay struct {
	// The lanes, shortest first. A message passes through the longest lane that does not exceed its
	// remaining delay; a delay shorter than all lanes takes the first.
	Lanes []Lane `key:"lanes"`
}

// Lane is a topic in which every message waits for the same time.
type Lane struct {
	// The lane's name; its topic is delay.NAME.
	Name string `key:"name"`
	// How long messages wait in it.
	Delay time.Duration `key:"delay"`
}

// Duplication configures how changes are copied to the other stores.
type Duplication struct {
	// Items of this size or larger have a topic and workers of their own, so that they do not delay
	// smaller ones.
	LargeThreshold Size `key:"large_threshold"`
	// How long a command waits, each time, for the record of a change of its source that is not in
	// ClickHouse yet. After the last wait the source is checked.
	Wait []time.Duration `key:"wait"`
}

// Fixity configures how copies are checked.
type Fixity struct {
	// The time in which every copy is read at least once.
	Period time.Duration `key:"period"`
	// Other periods, of some spaces. The first entry whose pattern matches counts.
	Periods []SpacePeriod `key:"periods"`
	// How much the rounds over some stores check in a day. The first entry whose pattern matches counts.
	Budgets []StoreBudget `key:"budgets"`
	// A sweep skips a copy that passed a check within this time; sweep start --all does not.
	MinInterval time.Duration `key:"min_interval"`
	// A difference found within this time after the newest change of the item is checked again before
	// it counts as a fault.
	Settle time.Duration `key:"settle"`
	// The intervals before the re-checks, of a check and of a command with a missing source. After the
	// last re-check the fault is final. A repair waits for the first interval for the records that it
	// needs.
	Recheck []time.Duration `key:"recheck"`
	// How long a fresh read of the records waits until the sinks have caught up.
	FreshWait time.Duration `key:"fresh_wait"`
	// Whether every copy is checked as soon as it is written.
	AfterCopy bool `key:"after_copy"`
	// Where the reports of rounds are written.
	Reports []FixityReport `key:"reports"`
}

// FixityReport writes the reports of fixity rounds to files.
type FixityReport struct {
	// The name of the reports, which begins the names of the files.
	Name string `key:"name"`
	// The account whose rounds are reported; empty: all.
	Account string `key:"account"`
	// When a file is written of the rounds that have ended since the one before.
	Schedule schedule.Schedule `key:"schedule"`
	// The format of the files: html, json, csv or tsv; empty: html.
	Format string `key:"format"`
	// The space in which the files are items, as ACCOUNT/STORE/SPACE. They are copied and checked like others.
	Space string `key:"space"`
	// Or the directory of the files, on the machine of the role sweeper that writes them.
	Dir string `key:"dir"`
}

// To returns the space of the files; empty if they are in a directory. The settings have been validated.
func (r FixityReport) To() (account, store, space string) { return spaceOf(r.Space) }

// FormatOrDefault returns the format of the files.
func (r FixityReport) FormatOrDefault() string { return cmp.Or(r.Format, "html") }

// SpacePeriod is the period of the checks of some spaces.
type SpacePeriod struct {
	// The spaces, as ACCOUNT[/STORE[/SPACE]]; * and ? stand for any names.
	Spaces string `key:"spaces"`
	// The time in which every copy in them is read at least once.
	Period time.Duration `key:"period"`
}

// StoreBudget bounds the checks that the scheduled rounds request of each of some stores in 24 hours. Those of rounds
// by hand count, and are not bounded.
type StoreBudget struct {
	// The stores, as ACCOUNT[/STORE]; * and ? stand for any names.
	Stores string `key:"stores"`
	// The number of checks; 0: any. A check makes two or three requests to a store. Copies whose newest check did not
	// pass take a quarter at most.
	Items int `key:"items"`
	// The bytes of the checked copies; 0: any.
	Bytes Size `key:"bytes"`
	// The times of the day in which checks are requested, as 'window 22:00-06:00 zone Europe/Zurich', with the windows
	// of a schedule. Requested checks may end after them. Default: any time.
	Windows string `key:"windows"`
}

// Open reports whether checks may be requested at a time. The windows have been validated.
func (b StoreBudget) Open(at time.Time) bool {
	windows, err := schedule.ParseWindows(b.Windows)
	return b.Windows == "" || err == nil && windows.Open(at)
}

// BudgetOf returns the budget of a store; false if it has none. The patterns have been validated.
func (f Fixity) BudgetOf(account, store string) (StoreBudget, bool) {
	for _, b := range f.Budgets {
		if of, err := filter.New([]string{b.Stores}, nil); err == nil && of.Selects(account, store, "") {
			return b, true
		}
	}
	return StoreBudget{}, false
}

// PeriodOf returns the period of a space in a store. The patterns have been validated.
func (f Fixity) PeriodOf(account, store, space string) time.Duration {
	for _, p := range f.Periods {
		if of, err := filter.New([]string{p.Spaces}, nil); err == nil && of.Selects(account, store, space) {
			return p.Period
		}
	}
	return f.Period
}

// Sweep configures the sweeps, which find what events missed.
type Sweep struct {
	// The share of the copies of a space that a listing of the store may lack. If it lacks more, and the space has 100
	// copies or more, or if it lacks all, nothing is concluded from what it lacks, and the incident listing-incomplete
	// opens. Likewise, if checks find that so many copies are missing within a period, further repairs wait for the
	// approval of the incident repairs-held.
	MaxMissing Share `key:"max_missing"`
	// When a round of fixity checks begins over each space in a store. It requests checks of the copies that are due by
	// fixity.period before the next round.
	Fixity schedule.Schedule `key:"fixity"`
	// When a round begins over each space in a store that compares its listing with the records.
	Reconcile schedule.Schedule `key:"reconcile"`
	// When a round begins over each space of a pair of stores that compares the two.
	Duplication schedule.Schedule `key:"duplication"`
	// When a round begins over each space in a store that looks for chunked items that lack chunks.
	Groups schedule.Schedule `key:"groups"`
	// When the items and bytes of the spaces of an account are counted for the view space_stats.
	Stats schedule.Schedule `key:"stats"`
	// The number of records in the topics to which a sweep publishes that their roles have not handled yet. Above it,
	// the sweep waits until half of them are left.
	MaxBacklog int `key:"max_backlog"`
	// The number of pages of all sweeps at which a process works at the same time.
	Workers int `key:"workers"`
	// The spaces of the scheduled rounds of each sweep. Rounds by hand select theirs.
	Spaces SweepSpaces `key:"spaces"`
}

// SweepSpaces selects the spaces, and the items, of the scheduled rounds.
type SweepSpaces struct {
	// Without checks the copies of a space become overdue.
	Fixity SpaceFilter `key:"fixity"`
	// Without this sweep, what events have missed is never found.
	Reconcile SpaceFilter `key:"reconcile"`
	// Of a pair, both stores must be selected.
	Duplication SpaceFilter `key:"duplication"`
	// Of a space without this sweep it is not known whether its chunked items are whole.
	Groups SpaceFilter `key:"groups"`
}

// SpaceFilter selects spaces, and items in them, by patterns.
type SpaceFilter struct {
	// What is swept, as ACCOUNT[/STORE[/SPACE[/ITEM]]]. * and ? stand for any characters of a name; ** in ITEM for any
	// folders. Empty: all.
	Include []string `key:"include"`
	// What is not swept, in the same form.
	Exclude []string `key:"exclude"`
}

// Reconcile configures the sweep that compares the listings of stores with the records.
type Reconcile struct {
	// How long an item that no event has reported must stay unchanged before it is taken in. Objects of S3 appear
	// whole, and are taken in at once.
	Settle time.Duration `key:"settle"`
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

// Token is a sender that may post events of one account.
type Token struct {
	// The sender's name; it becomes the user of events that have none.
	Name string `key:"name"`
	// The account of the stores that its events are about.
	Account string `key:"account"`
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
	// Default: in memory, so that unpublished changes are lost with the process.
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
	// trace contexts are passed on.
	Endpoint string `key:"endpoint"`
	// The percentage of traces that start in millrace and are recorded.
	Percent int `key:"percent"`
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
			Addresses: []string{"localhost:9000"}, Database: "millrace", User: "default", InsertQuorum: "all",
		},
		Delay: Delay{Lanes: []Lane{
			{"30s", 30 * time.Second}, {"5m", 5 * time.Minute}, {"1h", time.Hour}, {"1d", day},
		}},
		Duplication: Duplication{
			LargeThreshold: 5 << 30,
			Wait:           []time.Duration{30 * time.Second, 5 * time.Minute, time.Hour},
		},
		Fixity: Fixity{
			Period: 90 * day, MinInterval: time.Hour, Settle: day,
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
		Trace:    Trace{Percent: 100},
		Log:      Log{Level: "info", Format: "text"},
	}
}

// withDefaults sets the fields of a store that are empty to their defaults.
func (s Store) withDefaults() Store {
	if s.Driver == "" {
		s.Driver = "file"
	}
	if s.Layout == "" && s.Driver == "file" {
		s.Layout = "millrace"
	}
	if s.Read == "" {
		s.Read = "always"
	}
	if s.Read == "sampled" && s.SamplePercent == 0 {
		s.SamplePercent = 5
	}
	if s.Repair == "" {
		s.Repair = "auto"
		switch {
		case s.Layout == layoutPlain:
			s.Repair = "off"
		case s.Primary:
			s.Repair = "approve"
		}
	}
	if s.ExternalWrites == "" {
		s.ExternalWrites = "refused"
	}
	if s.Corrections == "" {
		s.Corrections = "approve"
	}
	return s
}
