package schemas

import (
	"slices"
	"strings"
	"time"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// A Topic is the name of a topic of the catalogue, without the configured prefix, or that of a foreign topic.
type Topic string

// The topics.
const (
	Changes            Topic = "changes"
	DuplicationHigh    Topic = "duplication.high"
	DuplicationLow     Topic = "duplication.low"
	DuplicationLarge   Topic = "duplication.large"
	Deletions          Topic = "deletions"
	DuplicationResults Topic = "duplication.results"
	FixityHigh         Topic = "fixity.high"
	FixityLow          Topic = "fixity.low"
	FixityLarge        Topic = "fixity.large"
	FixityResults      Topic = "fixity.results"
	Incidents          Topic = "incidents"
	Reports            Topic = "reports"
	Jobs               Topic = "jobs"
	Dead               Topic = "dead"
	Policies           Topic = "policies"
	Accounts           Topic = "accounts"
	Controls           Topic = "control"
	Checkpoints        Topic = "checkpoints"
	Admin              Topic = "admin"
)

// foreign is the prefix of foreign topics. No topic of the catalogue can begin with it.
const foreign = "foreign:"

// Foreign returns the Topic for a topic that other software writes; name is its full name in Kafka. Sources of the
// ingester that are not topics have such a name too, so that their records can wait in the delay lanes and become dead
// letters. These names contain a slash, which no topic name can contain.
func Foreign(name string) Topic { return foreign + Topic(name) }

// Foreign returns the name that was given to the function Foreign; ok is false if t is a topic of the catalogue.
func (t Topic) Foreign() (name string, ok bool) { return strings.CutPrefix(string(t), foreign) }

// A Role is a part of millrace that runs on its own.
type Role string

// The roles. RoleState is the part of the sink that writes the state tables. It has a consumer group of its own, so
// that its commits show the progress of the state tables alone.
const (
	RoleIngester Role = "ingester"
	RolePlanner  Role = "planner"
	RoleCopier   Role = "copier"
	RoleDeleter  Role = "deleter"
	RoleChecker  Role = "checker"
	RoleSteward  Role = "steward"
	RoleSweeper  Role = "sweeper"
	RoleDelayer  Role = "delayer"
	RoleSink     Role = "sink"
	RoleState    Role = "state"
	RoleAPI      Role = "api"
)

// Again returns the topic from which role reads messages that have waited in a delay lane.
func Again(role Role) Topic { return "again." + Topic(role) }

// AgainOf returns the again topic for a message that was first published to origin. Large work has an again topic of
// its own, because it would delay small work.
func AgainOf(role Role, origin Topic) Topic {
	if e, ok := Lookup(origin); ok && e.Class == Large && e.Readers[0] == role {
		return againLarge(role)
	}
	return Again(role)
}

func againLarge(role Role) Topic { return Again(role) + "." + Topic(Large) }

// Backlog returns the topic that takes over the backlog of an account if that backlog would delay the messages of other
// accounts in one class of role. Class large has no such topic: its backlogs are short, and its tasks are long.
func Backlog(role Role, class Class) Topic {
	t := "backlog." + Topic(role)
	if class != High {
		t += "." + Topic(class)
	}
	return t
}

// Delay returns the topic of the delay lane with the given name.
func Delay(name string) Topic { return "delay." + Topic(name) }

// A Class is the urgency of the messages of a topic for the role that handles them. Each class of a role has a consumer
// group of its own, so that no class waits for another.
type Class string

// The classes.
const (
	High  Class = "high" // also the class of messages that have no other
	Low   Class = "low"
	Large Class = "large" // few and long tasks, which have workers of their own
)

// A Cleanup is the cleanup policy of a topic.
type Cleanup string

// The cleanup policies.
const (
	Keep    Cleanup = "keep"    // records are kept for ever, unless configured otherwise
	Trim    Cleanup = "trim"    // the trimming job deletes records that all readers have committed
	Compact Cleanup = "compact" // log compaction keeps the newest record of each key
)

// An Entry is one row of the catalogue.
type Entry struct {
	Topic   Topic
	Cleanup Cleanup
	// Class is the class of the messages for the first reader.
	Class Class
	// Readers are the roles whose groups must have read a record before it may be trimmed. The first one handles the
	// messages, and receives them again after a wait.
	Readers []Role
	Writers []Role
	// Raw reports that the topic holds records of other topics, byte for byte, and has no message type.
	Raw bool
	// New returns an empty message of the topic's type; nil for raw topics.
	New func() Body
	// Key returns the partition key of a message; nil for raw topics.
	Key func(Body) string
	// KeyDoc names the parts of the key.
	KeyDoc string
	// FixedPartitions reports that partitions must never be added.
	FixedPartitions bool
}

// MaxBytes is the largest size of an encoded message, with its key and headers. Raw topics accept twice that size;
// Dead accepts every record that can be read.
const MaxBytes = 256 << 10

// WaitingRoles returns the roles that can delay messages and read them again.
func WaitingRoles() []Role {
	return []Role{RoleIngester, RolePlanner, RoleCopier, RoleDeleter, RoleChecker, RoleSteward}
}

// observers returns the roles that open and close incidents. The steward handles the incidents of copies; every role
// handles its own incidents without an item.
func observers() []Role {
	return []Role{RoleIngester, RolePlanner, RoleCopier, RoleDeleter, RoleChecker, RoleSteward, RoleSweeper, RoleDelayer,
		RoleSink, RoleState, RoleAPI}
}

//nolint:revive // the arguments are the columns of the table in Catalogue
func entry[B Body](
	topic Topic, cleanup Cleanup, newBody func() B, keyDoc string, key func(B) string, writers, readers []Role,
) Entry {
	return Entry{
		Topic: topic, Cleanup: cleanup, Class: High, Readers: readers, Writers: writers,
		New: func() Body { return newBody() }, KeyDoc: keyDoc,
		Key: func(b Body) string { return key(b.(B)) },
	}
}

func raw(topic Topic, cleanup Cleanup, writers, readers []Role) Entry {
	return Entry{
		Topic: topic, Cleanup: cleanup, Class: High, Raw: true, KeyDoc: "as the original",
		Writers: writers, Readers: readers,
	}
}

type itemBody interface {
	Body
	GetAccount() string
	GetSpace() string
	GetItem() string
}

func itemKey[B itemBody](b B) string { return ItemKey(b.GetAccount(), b.GetSpace(), b.GetItem()) }

// Catalogue returns the entries of all topics, including delay lanes with the given names. The brokers date the records
// of all of them: the time of a record is never a producer's.
func Catalogue(lanes ...string) []Entry {
	roles := func(r ...Role) []Role { return r }
	change := func() *pb.Change { return new(pb.Change) }
	command := func() *pb.DuplicationCommand { return new(pb.DuplicationCommand) }
	task := func() *pb.FixityTask { return new(pb.FixityTask) }
	const item = "account/space/item"
	fixed := func(e Entry) Entry { e.FixedPartitions = true; return e }
	class := func(c Class, e Entry) Entry { e.Class = c; return e }
	entries := []Entry{
		entry(Changes, Keep, change, item, itemKey[*pb.Change],
			roles(RoleIngester, RoleCopier, RoleDeleter, RoleChecker, RoleSweeper, RoleAPI),
			roles(RolePlanner, RoleSink, RoleState)),
		entry(DuplicationHigh, Trim, command, item, itemKey[*pb.DuplicationCommand],
			roles(RolePlanner, RoleSteward, RoleDeleter, RoleCopier, RoleAPI), roles(RoleCopier)),
		class(Low, entry(DuplicationLow, Trim, command, item, itemKey[*pb.DuplicationCommand],
			roles(RolePlanner, RoleDeleter, RoleCopier, RoleSweeper), roles(RoleCopier))),
		class(Large, entry(DuplicationLarge, Trim, command, item, itemKey[*pb.DuplicationCommand],
			roles(RolePlanner, RoleSteward, RoleDeleter, RoleCopier, RoleSweeper), roles(RoleCopier))),
		entry(Deletions, Trim, func() *pb.DeletionCommand { return new(pb.DeletionCommand) }, "account/destination",
			func(c *pb.DeletionCommand) string { return Key(c.GetAccount(), c.GetDestinationStore()) },
			roles(RoleCopier, RoleSteward, RoleDeleter, RoleAPI), roles(RoleDeleter)),
		entry(DuplicationResults, Trim, func() *pb.DuplicationResult { return new(pb.DuplicationResult) }, item,
			itemKey[*pb.DuplicationResult], roles(RoleCopier, RoleDeleter), roles(RoleSteward, RoleSink)),
		entry(FixityHigh, Trim, task, item, itemKey[*pb.FixityTask],
			roles(RoleCopier, RoleChecker, RoleSteward, RoleAPI), roles(RoleChecker)),
		class(Low, entry(FixityLow, Trim, task, item, itemKey[*pb.FixityTask],
			roles(RoleSweeper, RoleCopier), roles(RoleChecker))),
		class(Large, entry(FixityLarge, Trim, task, item, itemKey[*pb.FixityTask],
			roles(RoleSweeper, RoleCopier, RoleChecker, RoleSteward), roles(RoleChecker))),
		entry(FixityResults, Trim, func() *pb.FixityResult { return new(pb.FixityResult) }, item,
			itemKey[*pb.FixityResult], roles(RoleChecker, RoleAPI), roles(RoleSteward, RoleSink, RoleState)),
		fixed(entry(Incidents, Compact, func() *pb.Incident { return new(pb.Incident) },
			"account/store/space/item/kind[/subject]", IncidentKey, observers(), roles(RoleSink))),
		entry(Reports, Trim, func() *pb.Report { return new(pb.Report) }, "account/store/space",
			func(r *pb.Report) string { return Key(r.GetAccount(), r.GetStore(), r.GetSpace()) },
			roles(RoleSweeper), roles(RoleSink)),
		entry(Jobs, Trim, func() *pb.Job { return new(pb.Job) }, "job", (*pb.Job).GetName,
			roles(RoleSweeper), roles(RoleSink)),
		fixed(entry(Policies, Keep, func() *pb.Policy { return new(pb.Policy) }, "account",
			(*pb.Policy).GetAccount, roles(RoleAPI), roles(RoleSink))),
		fixed(entry(Accounts, Keep, func() *pb.Account { return new(pb.Account) }, "account",
			(*pb.Account).GetAccount, roles(RoleAPI), roles(RoleSink))),
		fixed(entry(Controls, Compact, func() *pb.Control { return new(pb.Control) }, "role/store/account/sweep",
			func(c *pb.Control) string { return Key(c.GetRole(), c.GetStore(), c.GetAccount(), c.GetSweep()) },
			roles(RoleAPI), nil)),
		fixed(entry(Checkpoints, Compact, func() *pb.Checkpoint { return new(pb.Checkpoint) }, "sweep/split",
			func(c *pb.Checkpoint) string { return Key(c.GetSweep(), c.GetSplit()) },
			roles(RoleSweeper, RoleCopier, RoleDeleter, RoleIngester), nil)),
		entry(Admin, Keep, func() *pb.AdminAction { return new(pb.AdminAction) }, item, itemKey[*pb.AdminAction],
			roles(RoleAPI, RoleSink), roles(RoleSteward, RoleSink)),
		raw(Dead, Keep, append(WaitingRoles(), RoleDelayer, RoleSink, RoleState), roles(RoleSink)),
	}
	entries = append(entries, backlogs()...)
	for _, role := range WaitingRoles() {
		entries = append(entries, returning(role)...)
	}
	for _, lane := range lanes {
		entries = append(entries, raw(Delay(lane), Trim, append(WaitingRoles(), RoleDelayer), roles(RoleDelayer)))
	}
	return entries
}

// returning returns the topics of messages that return from a delay lane to a role.
func returning(role Role) []Entry {
	again := raw(Again(role), Trim, []Role{RoleDelayer, RoleAPI}, []Role{role})
	if role == RoleIngester { // webhooks
		again.Writers = append(again.Writers, role)
	}
	if role != RoleCopier && role != RoleChecker {
		return []Entry{again}
	}
	large := raw(againLarge(role), Trim, []Role{RoleDelayer, RoleAPI}, []Role{role})
	again.Class, large.Class = Low, Large // they must not delay urgent messages
	return []Entry{again, large}
}

func backlogs() (entries []Entry) {
	for _, role := range []Role{RoleCopier, RoleChecker, RoleDeleter} {
		only := []Role{role}
		entries = append(entries, raw(Backlog(role, High), Trim, only, only))
		if role != RoleDeleter {
			low := raw(Backlog(role, Low), Trim, only, only)
			low.Class = Low
			entries = append(entries, low)
		}
	}
	return entries
}

var byTopic = func() map[Topic]Entry {
	m := map[Topic]Entry{}
	for _, e := range Catalogue() {
		m[e.Topic] = e
	}
	return m
}()

// Lookup returns the entry of a topic of the catalogue. Delay lanes are not found.
func Lookup(t Topic) (Entry, bool) {
	e, ok := byTopic[t]
	return e, ok
}

// CompactionLag returns how long a compacted topic keeps every record: 14 days if a consumer group reads the topic, so
// that the group can read each record before compaction; otherwise 0. Processes that read a topic without a group need
// only the newest record of each key.
func (e Entry) CompactionLag() time.Duration {
	if e.Cleanup != Compact || len(e.Readers) == 0 {
		return 0
	}
	return 14 * 24 * time.Hour
}

// Reads reports whether role is one of e.Readers.
func (e Entry) Reads(role Role) bool { return slices.Contains(e.Readers, role) }

// IncidentKey returns the key of an incident: account, store, space, item, kind and, if set, subject. At most one
// incident is open for a key.
func IncidentKey(i *pb.Incident) string {
	parts := []string{i.GetAccount(), i.GetStore(), i.GetSpace(), i.GetItem(), i.GetKind()}
	if i.GetSubject() != "" {
		parts = append(parts, i.GetSubject())
	}
	return Key(parts...)
}
