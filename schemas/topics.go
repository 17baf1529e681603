package schemas

import (
	"slices"
	"strings"
	"time"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// A Topic names an entry of the catalogue, without the configured prefix.
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
	Controls           Topic = "control"
	Checkpoints        Topic = "checkpoints"
	Admin              Topic = "admin"
)

// foreign goes before the names of topics of others; no topic of ours can begin with it.
const foreign = "foreign:"

// Foreign is how a topic of others is called here: name is its whole name in Kafka, without the configured
// prefix. What comes to the ingester by another way than a topic has such a name too, so that it can wait
// in the delay lanes, or be a dead letter, as if it had: one with a slash, as no topic has.
func Foreign(name string) Topic { return foreign + Topic(name) }

// Foreign returns the name of a topic of others; not ok: t is of the catalogue.
func (t Topic) Foreign() (name string, ok bool) { return strings.CutPrefix(string(t), foreign) }

// A Role is a part of millrace that runs on its own.
type Role string

// The roles. RoleState is the half of the sink that feeds the state tables: its group
// is its own, so that its commits say how far the state has come.
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

// Again is the topic through which messages that waited come back to role.
func Again(role Role) Topic { return "again." + Topic(role) }

// AgainOf is the topic through which a message that was first sent to origin comes back to role: what is
// large has one of its own, as it would hold up what is small.
func AgainOf(role Role, origin Topic) Topic {
	if e, ok := Lookup(origin); ok && e.Class == Large && e.Readers[0] == role {
		return againLarge(role)
	}
	return Again(role)
}

func againLarge(role Role) Topic { return Again(role) + "." + Topic(Large) }

// Backlog is the topic in which the backlog of an account waits that would keep the messages of others in a class of role
// from being read. Class large has none: its backlogs are short, and its tasks long.
func Backlog(role Role, class Class) Topic {
	t := "backlog." + Topic(role)
	if class != High {
		t += "." + Topic(class)
	}
	return t
}

// Delay is the topic of the delay lane called name.
func Delay(name string) Topic { return "delay." + Topic(name) }

// A Class says how urgent a topic's messages are for the role that handles them. Each class of a
// role is read by a consumer group of its own, so that no class waits behind another.
type Class string

// The classes.
const (
	High  Class = "high" // also of topics that have but one
	Low   Class = "low"
	Large Class = "large" // few and long: they have workers of their own
)

// A Cleanup says how records leave a topic.
type Cleanup string

// The ways of cleaning up.
const (
	Keep    Cleanup = "keep"    // never, unless configured
	Trim    Cleanup = "trim"    // by the trimming job, below every reader's commit
	Compact Cleanup = "compact" // the newest of each key stays
)

// An Entry is one row of the catalogue.
type Entry struct {
	Topic   Topic
	Cleanup Cleanup
	// Class is that of its messages, for the first of its readers.
	Class Class
	// Readers are the groups that must have read a record before it may be trimmed.
	// The first one is the handler of the messages: what waited comes back to it.
	Readers []Role
	Writers []Role
	// Raw topics hold other topics' records, byte for byte; they have no message of their own.
	Raw bool
	// New returns an empty message of the topic's type; nil for raw topics.
	New func() Body
	// Key returns the partition key of a message; nil for raw topics.
	Key func(Body) string
	// KeyDoc says what the key is made of.
	KeyDoc string
	// LogAppendTime has the broker stamp records.
	LogAppendTime bool
	// FixedPartitions must never be added to.
	FixedPartitions bool
}

// MaxBytes bounds an encoded message; raw topics accept twice that, and dead all that can be read.
const MaxBytes = 256 << 10

// waitingRoles are those whose messages can wait and come back.
var waitingRoles = []Role{RoleIngester, RolePlanner, RoleCopier, RoleDeleter, RoleChecker, RoleSteward}

// observers are the roles that open and close incidents: the steward those of copies, each one those without an item.
func observers() []Role {
	return []Role{RoleIngester, RolePlanner, RoleCopier, RoleDeleter, RoleChecker, RoleSteward, RoleSweeper, RoleDelayer,
		RoleSink, RoleState, RoleAPI}
}

//nolint:revive // its arguments are the columns of the table below
func entry[B Body](topic Topic, cleanup Cleanup, newBody func() B, keyDoc string, key func(B) string, writers, readers []Role) Entry {
	return Entry{
		Topic: topic, Cleanup: cleanup, Class: High, Readers: readers, Writers: writers,
		New: func() Body { return newBody() }, KeyDoc: keyDoc,
		Key: func(b Body) string { return key(b.(B)) },
	}
}

func raw(topic Topic, cleanup Cleanup, writers, readers []Role) Entry {
	return Entry{Topic: topic, Cleanup: cleanup, Class: High, Raw: true, KeyDoc: "as the original", Writers: writers, Readers: readers}
}

type itemBody interface {
	Body
	GetAccount() string
	GetSpace() string
	GetItem() string
}

func itemKey[B itemBody](b B) string { return ItemKey(b.GetAccount(), b.GetSpace(), b.GetItem()) }

// Catalogue returns every topic, with the delay lanes of the given names.
func Catalogue(lanes ...string) []Entry {
	roles := func(r ...Role) []Role { return r }
	change := func() *pb.Change { return new(pb.Change) }
	command := func() *pb.DuplicationCommand { return new(pb.DuplicationCommand) }
	task := func() *pb.FixityTask { return new(pb.FixityTask) }
	const item = "account/space/item"
	fixed := func(e Entry) Entry { e.FixedPartitions = true; return e }
	dated := func(e Entry) Entry { e.LogAppendTime = true; return e }
	of := func(c Class, e Entry) Entry { e.Class = c; return e }
	entries := []Entry{
		entry(Changes, Keep, change, item, itemKey[*pb.Change],
			roles(RoleIngester, RoleCopier, RoleDeleter, RoleChecker, RoleSweeper, RoleAPI), roles(RolePlanner, RoleSink, RoleState)),
		entry(DuplicationHigh, Trim, command, item, itemKey[*pb.DuplicationCommand],
			roles(RolePlanner, RoleSteward, RoleDeleter, RoleAPI), roles(RoleCopier)),
		of(Low, entry(DuplicationLow, Trim, command, item, itemKey[*pb.DuplicationCommand],
			roles(RolePlanner, RoleDeleter, RoleSweeper), roles(RoleCopier))),
		of(Large, entry(DuplicationLarge, Trim, command, item, itemKey[*pb.DuplicationCommand],
			roles(RolePlanner, RoleSteward, RoleDeleter, RoleSweeper), roles(RoleCopier))),
		entry(Deletions, Trim, func() *pb.DeletionCommand { return new(pb.DeletionCommand) }, "account/destination",
			func(c *pb.DeletionCommand) string { return Key(c.GetAccount(), c.GetDestinationStore()) },
			roles(RoleCopier), roles(RoleDeleter)),
		entry(DuplicationResults, Trim, func() *pb.DuplicationResult { return new(pb.DuplicationResult) }, item,
			itemKey[*pb.DuplicationResult], roles(RoleCopier, RoleDeleter), roles(RoleSteward, RoleSink)),
		entry(FixityHigh, Trim, task, item, itemKey[*pb.FixityTask],
			roles(RoleCopier, RoleChecker, RoleSteward, RoleAPI), roles(RoleChecker)),
		of(Low, entry(FixityLow, Trim, task, item, itemKey[*pb.FixityTask], roles(RoleSweeper, RoleCopier), roles(RoleChecker))),
		of(Large, entry(FixityLarge, Trim, task, item, itemKey[*pb.FixityTask], roles(RoleSweeper, RoleCopier), roles(RoleChecker))),
		entry(FixityResults, Trim, func() *pb.FixityResult { return new(pb.FixityResult) }, item,
			itemKey[*pb.FixityResult], roles(RoleChecker), roles(RoleSteward, RoleSink, RoleState)),
		fixed(entry(Incidents, Compact, func() *pb.Incident { return new(pb.Incident) }, "account/store/space/item/kind[/subject]",
			IncidentKey, observers(), roles(RoleSink))),
		entry(Reports, Trim, func() *pb.Report { return new(pb.Report) }, "account/store/space",
			func(r *pb.Report) string { return Key(r.GetAccount(), r.GetStore(), r.GetSpace()) },
			roles(RoleSweeper), roles(RoleSink)),
		entry(Jobs, Trim, func() *pb.Job { return new(pb.Job) }, "job", (*pb.Job).GetName, roles(RoleSweeper), roles(RoleSink)),
		// A revision is in force from its record's time on, so that is not the writer's to say.
		dated(fixed(entry(Policies, Keep, func() *pb.Policy { return new(pb.Policy) }, "account", (*pb.Policy).GetAccount,
			roles(RoleAPI), roles(RoleSink)))),
		fixed(entry(Controls, Compact, func() *pb.Control { return new(pb.Control) }, "role/store/account/sweep",
			func(c *pb.Control) string { return Key(c.GetRole(), c.GetStore(), c.GetAccount(), c.GetSweep()) },
			roles(RoleAPI), nil)),
		fixed(entry(Checkpoints, Compact, func() *pb.Checkpoint { return new(pb.Checkpoint) }, "sweep/morsel",
			func(c *pb.Checkpoint) string { return Key(c.GetSweep(), c.GetMorsel()) },
			roles(RoleSweeper, RoleDeleter), nil)),
		// A space is gone from its record's time on, so that is not the writer's to say.
		dated(entry(Admin, Keep, func() *pb.AdminAction { return new(pb.AdminAction) }, item, itemKey[*pb.AdminAction],
			roles(RoleAPI, RoleSink), roles(RoleSteward, RoleSink))),
		raw(Dead, Keep, waitingRoles, roles(RoleSink)),
	}
	entries = append(entries, backlogs()...)
	for _, role := range waitingRoles {
		again := raw(Again(role), Trim, roles(RoleDelayer, RoleAPI), roles(role))
		if role != RoleCopier && role != RoleChecker {
			entries = append(entries, again)
			continue
		}
		large := raw(againLarge(role), Trim, roles(RoleDelayer, RoleAPI), roles(role))
		// What comes back must not wait in front of what is urgent.
		entries = append(entries, of(Low, again), of(Large, large))
	}
	for _, lane := range lanes {
		entries = append(entries, dated(raw(Delay(lane), Trim, waitingRoles, roles(RoleDelayer))))
	}
	return entries
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

// Lookup returns the catalogue's entry of a topic that is no delay lane.
func Lookup(t Topic) (Entry, bool) {
	e, ok := byTopic[t]
	return e, ok
}

// CompactionLag is for how long a compacted topic that a group reads keeps every record [14 days]: records of one key that
// the group has not read by then may be compacted to the newest. It is 0 for other topics. Topics that only tables read
// need none, as tables keep the newest record of each key.
func (e Entry) CompactionLag() time.Duration {
	if e.Cleanup != Compact || len(e.Readers) == 0 {
		return 0
	}
	return 14 * 24 * time.Hour
}

// Reads reports whether role is one of the topic's readers.
func (e Entry) Reads(role Role) bool { return slices.Contains(e.Readers, role) }

// IncidentKey is the key of the one open incident of a copy and kind or, without an item, of a kind and subject.
func IncidentKey(i *pb.Incident) string {
	parts := []string{i.GetAccount(), i.GetStore(), i.GetSpace(), i.GetItem(), i.GetKind()}
	if i.GetSubject() != "" {
		parts = append(parts, i.GetSubject())
	}
	return Key(parts...)
}
