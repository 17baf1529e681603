package config

import (
	"fmt"
	"time"
)

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
	// Refused: tables on a ClickHouse cluster were never tested (docs/clickhouse.md, Replicas).
	Cluster string `key:"cluster"`
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

func validateKafka(k *Kafka, fault report) {
	addresses("kafka.brokers", k.Brokers, fault)
	if !prefixForm.MatchString(k.TopicPrefix) {
		fault("kafka.topic_prefix", k.TopicPrefix,
			"want at most 100 letters, digits, dots, dashes and underscores, a letter or digit first")
	}
	between("kafka.partitions", k.Partitions, 10_000, fault)
	between("kafka.replication", k.Replication, 100, fault)
	between("kafka.min_insync", k.MinInSync, 100, fault)
	if k.MinInSync > k.Replication && k.Replication > 0 {
		fault("kafka.min_insync", k.MinInSync,
			fmt.Sprintf("is more than kafka.replication, which is %d: nothing could be written", k.Replication))
	}
	if k.Instance != "" && !idForm.MatchString(k.Instance) {
		fault("kafka.instance", k.Instance, "want letters, digits, dots, dashes and underscores, a letter or digit first")
	}
	validateSession(k, fault)
	validateTLS("kafka.tls", k.TLS, fault)
	switch s := k.SASL; {
	case s.Mechanism == "":
		if s.User != "" || !s.Password.IsZero() {
			fault("kafka.sasl.mechanism", nil, "is missing, but a user or password is set")
		}
	case s.User == "":
		fault("kafka.sasl.user", nil, "is missing")
	case s.Password.IsZero():
		fault("kafka.sasl.password", nil, "is missing")
	}
}

// validateSession checks the session timeout. The range has the brokers' default limits, and room
// for three heartbeats.
func validateSession(k *Kafka, fault report) {
	const at = "kafka.session_timeout"
	switch d := k.SessionTimeout; {
	case d == 0:
	case d < 6*time.Second || d > 30*time.Minute:
		fault(at, formatDuration(d), "want 6s to 30m: brokers refuse other values")
	case k.GroupProtocol == "consumer":
		fault(at, formatDuration(d), "has no effect with kafka.group_protocol consumer: "+
			"leave it out, and set group.consumer.session.timeout.ms of the brokers")
	}
}

func validateClickHouse(c *ClickHouse, fault report) {
	addresses("clickhouse.addresses", c.Addresses, fault)
	if !databaseForm.MatchString(c.Database) {
		fault("clickhouse.database", c.Database, "want letters, digits and underscores, no digit first")
	}
	if c.User == "" {
		fault("clickhouse.user", nil, "is missing")
	}
	if c.Reader.User == "" && !c.Reader.Password.IsZero() {
		fault("clickhouse.reader.password", nil, "is set, but clickhouse.reader.user is missing")
	}
	if c.Cluster != "" {
		fault("clickhouse.cluster", c.Cluster, "millrace makes no tables on a cluster, because no test ever ran them on "+
			"one: leave it out, and see docs/clickhouse.md, Replicas")
	}
	validateTLS("clickhouse.tls", c.TLS, fault)
}

func validateTLS(at string, t TLS, fault report) {
	if !t.Enabled && t != (TLS{}) {
		fault(at+".enabled", false, "the other settings of "+at+" have no effect without it")
	}
	if (t.Cert == "") != (t.Key == "") {
		fault(at, nil, "cert and key go together")
	}
}

func validateLanes(lanes []Lane, fault report) {
	if len(lanes) == 0 {
		fault("delay.lanes", nil, "is empty: messages that wait need at least one lane")
	}
	seen := map[string]string{}
	for i, l := range lanes {
		at := fmt.Sprintf("delay.lanes[%d]", i)
		switch other, taken := seen[l.Name]; {
		case !laneForm.MatchString(l.Name):
			fault(at+".name", l.Name, "want 1 to 20 lower-case letters and digits")
		case taken:
			fault(at+".name", l.Name, "is taken by "+other)
		default:
			seen[l.Name] = at + ".name"
		}
		positive(at+".delay", l.Delay, fault)
		if i > 0 && l.Delay > 0 && l.Delay <= lanes[i-1].Delay {
			fault(at+".delay", formatDuration(l.Delay), "want more than the lane before: lanes are sorted from the shortest")
		}
	}
}
