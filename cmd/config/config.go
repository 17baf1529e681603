// Package config is the tree of settings: what can be set, what holds where nothing is
// set, and where each value came from.
//
// Later layers win: defaults, then the file, then MILLRACE_* variables, then the
// command line. Loading is strict and complete: every fault of every layer is told at
// once, with its place and what would be right, and a configuration with a fault is
// not returned. Secrets are references, resolved when they are used and never printed.
package config

import "time"

// Config holds all settings.
type Config struct {
	// The tenants and their stores.
	Accounts []Account `key:"accounts"`
	// Which spaces are carried from where to where.
	Policies Policies `key:"policies"`
	// The broker. Standalone and demo bring their own, with one replica and two partitions.
	Kafka Kafka `key:"kafka"`
	// The read model. Standalone and demo bring their own.
	ClickHouse ClickHouse `key:"clickhouse"`
	// Where messages wait that are to be handled later.
	Delay Delay `key:"delay"`
	// How changes are carried.
	Duplication Duplication `key:"duplication"`
	// How copies are checked.
	Fixity Fixity `key:"fixity"`
	// How deletes are carried.
	Deletes Deletes `key:"deletes"`
	// How the parts run.
	Roles Roles `key:"roles"`
	// How events come in, other than from producers that write to topic changes themselves.
	Ingest Ingest `key:"ingest"`
	// Where changes wait that millrace itself made as a client, until Kafka has them: today those of millrace demo, which has its outbox
	// in its state directory. run and standalone open none; other programs open theirs with emit.OpenFile (docs/outbox.md).
	Outbox Outbox `key:"outbox"`
	// How rows are gathered for ClickHouse.
	Sink Sink `key:"sink"`
	// How topics are trimmed.
	Trim Trim `key:"trim"`
	// What becomes of what is replaced or deleted.
	Replaced Replaced `key:"replaced"`
	// How stores are tidied.
	Tidy Tidy `key:"tidy"`
	// When the process calls itself unhealthy.
	Health Health `key:"health"`
	// Where the process tells how it is: /livez, /readyz, /startupz and /metrics.
	HTTP HTTP `key:"http"`
	// Where spans go.
	Trace Trace `key:"trace"`
	// Where standalone keeps what its embedded engines hold.
	State State `key:"state"`
	// What the process says, on standard error.
	Log Log `key:"log"`
}

// Account is a tenant.
type Account struct {
	// Its name: letters, digits, dot, dash and underscore. It stands in every record, so it cannot be changed later.
	ID string `key:"id"`
	// Its storage providers.
	Stores []Store `key:"stores"`
	// What all its stores together may be asked for by one process.
	Limits Limits `key:"limits"`
}

// Limits bound what the tasks of one process do at a time; nothing set is no limit. Of several
// processes each has limits of its own: divide them.
type Limits struct {
	// Tasks at work at a time.
	Tasks int `key:"tasks"`
	// Tasks begun in a second.
	TasksPerSecond int `key:"tasks_per_second"`
	// Bytes, as far as they are known beforehand, of the tasks begun in a second.
	BytesPerSecond Size `key:"bytes_per_second"`
}

// Store is one storage provider of an account.
type Store struct {
	// Its name, unique in the account: letters, digits, dot, dash and underscore. Not to be changed later either.
	ID string `key:"id"`
	// What kind of store it is.
	Driver string `key:"driver" oneof:"file|s3"`
	// Driver file: the directory that holds the spaces, as an absolute path.
	Root string `key:"root"`
	// Driver file: how items lie in root. millrace: as millrace writes them. plain: an ordinary directory tree, which is only read, such
	// as an archive that exists already: the path of a file is the id of its item, and nothing is written into it.
	Layout string `key:"layout" oneof:"millrace|plain"`
	// Layout plain: the name of the one space that all of root is. Without it every directory in root is a space.
	Space string `key:"space"`
	// Layout plain: a file or directory by which root is known, as a path below it; it stands for the marker. Choose one
	// that an empty mount point or another disk does not have, such as bagit.txt.
	Expect string `key:"expect"`
	// Layout plain: the digest that the file expect has, in hex; it has 1 MiB at most. Without it: any content.
	ExpectSHA256 string `key:"expect_sha256"`
	// Driver s3: where the service is, https://host[:port]; http for what is on the same machine.
	Endpoint string `key:"endpoint"`
	// Driver s3: the bucket's region. Without it: us-east-1.
	Region string `key:"region"`
	// Driver s3: the bucket that holds all spaces, each below its own name.
	Bucket string `key:"bucket"`
	// Driver s3: with bucket, what goes before the names of spaces, such as a folder's name.
	Prefix string `key:"prefix"`
	// Driver s3: without bucket each space is a bucket, called this and the space's name.
	BucketPrefix string `key:"bucket_prefix"`
	// Driver s3: the bucket is in the path of requests, not in the host's name. For most services that are not AWS.
	PathStyle bool `key:"path_style"`
	// Driver s3: who asks.
	Credentials Credentials `key:"credentials"`
	// Driver s3: PEM file with the authorities to trust, beside the system's.
	CA string `key:"ca"`
	// Driver s3: URL of an HTTP proxy. Without it: the environment's.
	Proxy string `key:"proxy"`
	// Driver s3: how the service encrypts what is written. Without it: as the bucket says.
	Encryption string `key:"encryption" oneof:"AES256|aws:kms"`
	// Driver s3: with aws:kms, the key's id. Without it: the bucket's own.
	KMSKey string `key:"kms_key"`
	// Driver s3: of what is written. Without it: the service's own.
	StorageClass string `key:"storage_class"`
	// Driver s3: our account pays for what it reads.
	RequesterPays bool `key:"requester_pays"`
	// Driver s3: objects that are archived are asked back before they are read, which costs; else their reading fails.
	Restore bool `key:"restore"`
	// Clients write to this store. One in an account at most.
	Primary bool `key:"primary"`
	// Whether checks read the bytes of its copies. never is for archives whose reading costs too much. sampled reads those of a few in
	// each fixity.period, each copy in its turn, and those that are checked for another reason than a round, such as on demand.
	Read string `key:"read" oneof:"always|sampled|never"`
	// With read sampled: of how many copies in a hundred the bytes are read in each fixity.period. Without it: 5.
	SamplePercent int `key:"sample_percent"`
	// Whether damaged copies are repaired at once, after approval, or not at all. Without it: off for layout plain, approve for the primary, auto for the others.
	Repair string `key:"repair" oneof:"auto|approve|off"`
	// Whether others than millrace may change this store.
	ExternalWrites string `key:"external_writes" oneof:"refused|expected"`
	// Driver file: whether role ingester watches the directory (inotify), and reports changes as soon as it sees them. When it starts, it
	// reports all files that are there. It does not report what was deleted while it did not run (docs/ingest.md).
	Watch bool `key:"watch"`
	// What it may be asked for by one process.
	Limits Limits `key:"limits"`
	// What single requests of one process, of all its tasks together, may take of it.
	Requests Requests `key:"requests"`
}

// Requests bound what one process asks of one store; nothing set is no limit. A store that asks for fewer
// requests gets half of them, and more again by and by, whether a limit is set or not.
type Requests struct {
	// At a time, of each: items that are read, items that are written, and other requests.
	AtOnce int `key:"at_once"`
	// Begun in a second.
	PerSecond int `key:"per_second"`
	// Bytes read and written in a second.
	BytesPerSecond Size `key:"bytes_per_second"`
}

// Credentials are keys, or those of the machine. Without any, requests are not signed.
type Credentials struct {
	// The key's id.
	AccessKey Secret `key:"access_key"`
	// The key.
	SecretKey Secret `key:"secret_key"`
	// The session's, where keys are for a time.
	SessionToken Secret `key:"session_token"`
	// Whether they come from where AWS's own tools find them: variables, ~/.aws, the role of the machine or of the pod.
	FromEnvironment bool `key:"from_environment"`
}

// Policies says where policy documents come from.
type Policies struct {
	// A folder with duplication-accounts.json and one ACCOUNT-duplication-policy.json (or .yaml) per account; it is read
	// at the start and published. Without it those hold that were published before.
	Folder string `key:"folder"`
}

// Kafka says how to reach the brokers, and how topics are made.
type Kafka struct {
	// Addresses to start from, host:port.
	Brokers []string `key:"brokers"`
	// Goes before the name of every topic and group: letters, digits, dot, dash and underscore, a letter or digit first.
	TopicPrefix string `key:"topic_prefix"`
	// Of topics that are made; those that exist stay as they are.
	Partitions int `key:"partitions"`
	// Brokers that hold each record.
	Replication int `key:"replication"`
	// Brokers that must have a record before it counts as written.
	MinInSync int `key:"min_insync"`
	// Encryption.
	TLS TLS `key:"tls"`
	// Login.
	SASL SASL `key:"sasl"`
	// Who shares out partitions: the members of a group (classic), or the brokers (consumer, KIP-848, which is for Kafka 4.3 and newer).
	GroupProtocol string `key:"group_protocol" oneof:"classic|consumer"`
	// A name of this process among those that run the same roles, such as its pod's. With it a restart within the session's time-out moves no partitions.
	Instance string `key:"instance"`
	// How long a member may be silent before its partitions go to others: 6s to 30m; 0 means 10s, or 45s with kafka.instance. With
	// group_protocol consumer the brokers say so (group.consumer.session.timeout.ms), and this must be left out.
	SessionTimeout time.Duration `key:"session_timeout"`
}

// TLS says how a connection is encrypted.
type TLS struct {
	// Whether it is.
	Enabled bool `key:"enabled"`
	// PEM file with the authorities to trust. Without it: the system's.
	CA string `key:"ca"`
	// PEM file with the client's certificate, where the server asks for one.
	Cert string `key:"cert"`
	// PEM file with the key of cert.
	Key string `key:"key"`
	// Name that the server's certificate must have. Without it: the host of the address.
	ServerName string `key:"server_name"`
}

// SASL says how to log in to the brokers.
type SASL struct {
	// Without it there is no login.
	Mechanism string `key:"mechanism" oneof:"PLAIN|SCRAM-SHA-256|SCRAM-SHA-512"`
	User      string `key:"user"`
	Password  Secret `key:"password"`
}

// ClickHouse says how to reach ClickHouse.
type ClickHouse struct {
	// Addresses of the native protocol, host:port; the first that answers is used, and used on while it answers.
	Addresses []string `key:"addresses"`
	// The database that holds the tables; migrate makes it.
	Database string `key:"database"`
	// Who writes: sinks and migrate.
	User     string `key:"user"`
	Password Secret `key:"password"`
	// Who reads, where that is somebody else.
	Reader Reader `key:"reader"`
	// Encryption.
	TLS TLS `key:"tls"`
	// The cluster, as the servers call it, over which the tables are spread. Without it: one server. To be set before the first migrate.
	Cluster string `key:"cluster"`
	// Replicas of a shard that must have a row before it counts as written: all, auto (more than half), or a number. With fewer
	// than all, what is read after a replica was lost can be older than what was written.
	InsertQuorum string `key:"insert_quorum"`
	// Work with servers that are older than the oldest release that is tested (docs/clickhouse.md). Without it they are refused.
	AllowOlder bool `key:"allow_older"`
}

// Reader is who asks ClickHouse, and changes nothing there.
type Reader struct {
	// Without it all is done by clickhouse.user. It reads for the commands that only look, and the fresh records for the roles.
	User     string `key:"user"`
	Password Secret `key:"password"`
}

// Delay says in which steps messages can wait.
type Delay struct {
	// Shortest first. A message hops through the longest lane that does not overshoot; a wait shorter than all takes the first.
	Lanes []Lane `key:"lanes"`
}

// Lane is one topic in which every message waits equally long.
type Lane struct {
	// The topic is called delay.NAME.
	Name  string        `key:"name"`
	Delay time.Duration `key:"delay"`
}

// Duplication says how changes are carried to the other stores.
type Duplication struct {
	// Items of this size and above go a way of their own, so that they hold up no others.
	LargeThreshold Size `key:"large_threshold"`
	// How long a command waits each time for the record of a change of the source that is on its way. After the
	// last one the source is checked.
	Wait []time.Duration `key:"wait"`
}

// Fixity says how copies are checked.
type Fixity struct {
	// Every copy is read at least once in this time.
	Period time.Duration `key:"period"`
	// A copy that passed more recently than this is skipped by a sweep, but not by sweep start --all.
	MinInterval time.Duration `key:"min_interval"`
	// What differs within this time of an item's newest change is looked at again before it is called a fault.
	Settle time.Duration `key:"settle"`
	// How long to wait before each second look: of a check, and of a command whose source is missing; the first is also the
	// wait for records that a repair needs. After the last
	// one the fault stands.
	Recheck []time.Duration `key:"recheck"`
	// How long a fresh look at the records waits for the sinks to catch up.
	FreshWait time.Duration `key:"fresh_wait"`
	// Whether every copy is checked as soon as it is made.
	AfterCopy bool `key:"after_copy"`
}

// Deletes says how deletes are carried.
type Deletes struct {
	// How long a copy stays after its source was deleted.
	Delay time.Duration `key:"delay"`
}

// Roles says how the parts run.
type Roles struct {
	// Copies items.
	Copier Role `key:"copier"`
	// Checks copies.
	Checker Role `key:"checker"`
	// Deletes copies.
	Deleter Role `key:"deleter"`
	// Looks into notifications.
	Ingester Role `key:"ingester"`
	// How often a message is tried before it is a dead letter. Waiting for a store that is away does not count.
	Attempts int `key:"attempts"`
	// How many messages of class high are begun for one of class low, while both have work.
	HighWeight int `key:"high_weight"`
	// How long a task may go on without progress before it is cancelled; 1s or more.
	Stall time.Duration `key:"stall"`
	// How long tasks at work may go on when the process stops or their partition moves; then they are cancelled, and done again.
	Drain time.Duration `key:"drain"`
}

// Role says how one part runs.
type Role struct {
	// Items at a time, in one process.
	Workers int `key:"workers"`
	// Of the workers, those that are kept free of class low. Not for the deleter and the ingester, which have no such class.
	Reserved int `key:"reserved"`
	// Large items at a time, besides. Not for those two either.
	Large int `key:"large"`
	// Messages of one partition that are read and not done.
	Window int `key:"window"`
	// Bytes of messages of one class that are read and not done.
	Bytes Size `key:"bytes"`
}

// Ingest says how events come in to role ingester.
type Ingest struct {
	// Address that takes events (POST /v1/changes) and notifications of object stores (POST /v1/notifications/s3), host:port; empty: none.
	// There is no TLS: that is for a proxy in front. Without tokens it must be a loopback address.
	Listen string `key:"listen"`
	// Who may send there. Without any everybody may, for every account.
	Tokens []Token `key:"tokens"`
	// Bytes of a request's body at most.
	MaxBody Size `key:"max_body"`
	// Events of one request at most.
	MaxEvents int `key:"max_events"`
	// Requests at a time, in one process; more are told to come again.
	Concurrency int `key:"concurrency"`
	// What these requests may take of memory together, besides their bodies, in one process. Each counts with 16 times the size of its
	// body and 4KiB for each event that it may hold; one that would need all of it and more is handled alone. A request that waits for
	// it for 1s is told to come again.
	Memory Size `key:"memory"`
	// Topics to which object stores write what happened in them.
	Notifications []Notification `key:"notifications"`
}

// Token is who may send events of one account.
type Token struct {
	// Of the sender; it stands as the user of events that name none.
	Name string `key:"name"`
	// Whose stores its events are about.
	Account string `key:"account"`
	// What it sends as Authorization: Bearer TOKEN, or as a password: 16 bytes or more.
	Token Secret `key:"token"`
}

// Notification is a topic with notifications in the form of AWS, MinIO, Ceph or versitygw.
type Notification struct {
	// Its whole name; kafka.topic_prefix does not go before it.
	Topic string `key:"topic"`
	// Whose stores it may tell of. Without it: those of all accounts.
	Account string `key:"account"`
	// The one store that it tells of, where several have buckets of one name. With a store of driver file, which an S3 gateway serves,
	// buckets are spaces.
	Store string `key:"store"`
}

// Outbox says where it is kept what millrace itself stores as a client, until Kafka has it (docs/outbox.md): today what millrace
// demo does. The roles of run and standalone open none. When it is full, writes fail and nothing is done.
type Outbox struct {
	// A directory, as an absolute path; each store that is written to has an outbox of its own below it. Without it the outbox is in
	// memory: what waits in it is lost with the process.
	Dir string `key:"dir"`
	// Bytes of one outbox at most, 1MiB or more.
	Limit Size `key:"limit"`
}

// Sink says how rows are gathered; what comes first ends a batch.
type Sink struct {
	// Rows of one insert at most.
	Rows int `key:"rows"`
	// Bytes of one insert at most.
	Bytes Size `key:"bytes"`
	// How long the first row waits at most.
	Age time.Duration `key:"age"`
	// Inserts of one table in a second that are made although they could take more rows and are younger than `sink.age`: at
	// once, if no other insert of the table is under way. Of those that are as old, four times as many are made.
	PartsPerSecond int `key:"parts_per_second"`
	// What is read for the logs and not stored; for the state of copies it is a third. Before there is more, the largest
	// inserts are made though they have fewer rows and bytes than they may.
	Memory Size `key:"memory"`
}

// Trim says how topics are trimmed: records that every reader has handled are deleted, and no others.
type Trim struct {
	// Time between two looks, 1m or more; 0 turns it off. Nothing is trimmed while the sweeper, or everything, is paused.
	Every time.Duration `key:"every"`
	// How long records are kept although they are handled.
	Keep time.Duration `key:"keep"`
}

// Replaced says what becomes of bytes that millrace replaces or deletes. In buckets that have versions the bucket's own lifecycle
// rules say so.
type Replaced struct {
	// How long they stay in the store, aside; 1d or more; 0 is for ever.
	Keep time.Duration `key:"keep"`
}

// Tidy says how stores are tidied by role sweeper: uploads to S3 that nobody has completed for a week are ended, and what was kept for
// replaced.keep is removed.
type Tidy struct {
	// Time between two looks, 1m or more; 0 turns it off.
	Every time.Duration `key:"every"`
}

// Health says when the process calls itself unhealthy.
type Health struct {
	// There is work that is due and not paused, and nothing of it has been done for this long; 1s or more.
	StallAfter time.Duration `key:"stall_after"`
}

// HTTP says where the process tells how it is.
type HTTP struct {
	// Address to listen on, host:port; empty: none.
	Listen string `key:"listen"`
}

// Trace says where spans go, by OTLP over HTTP.
type Trace struct {
	// URL such as http://localhost:4318; empty: there are no spans, and trace contexts are passed on.
	Endpoint string `key:"endpoint"`
	// Of traces that begin here, the share that is recorded, in percent.
	Percent int `key:"percent"`
}

// State says where standalone keeps its state.
type State struct {
	// A directory of its own; --state wins over it.
	Dir string `key:"dir"`
}

// Log says what is logged, and how.
type Log struct {
	Level  string `key:"level" oneof:"debug|info|warn|error"`
	Format string `key:"format" oneof:"text|json"`
}

// Default returns the settings that hold where nothing is set.
func Default() Config {
	return Config{
		Kafka: Kafka{
			Brokers: []string{"localhost:9092"}, TopicPrefix: "millrace.",
			Partitions: 12, Replication: 3, MinInSync: 2, GroupProtocol: "classic",
		},
		ClickHouse: ClickHouse{Addresses: []string{"localhost:9000"}, Database: "millrace", User: "default", InsertQuorum: "all"},
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
		Trim:     Trim{Every: time.Hour, Keep: 14 * day},
		Replaced: Replaced{Keep: 30 * day},
		Tidy:     Tidy{Every: 6 * time.Hour},
		Health:   Health{StallAfter: 5 * time.Minute},
		Trace:    Trace{Percent: 100},
		Log:      Log{Level: "info", Format: "text"},
	}
}

// withDefaults fills in what a store's settings leave open.
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
	return s
}
