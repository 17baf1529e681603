// Package access knows which Kafka rights each role needs, and asks the brokers whether the login has them.
//
// The rights follow from the catalogue of topics and from the requests of the roles. Those of a login are the files in
// deploy/access/kafka. A right that the brokers do not report, or could not be asked about, never counts as missing.
package access

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka/client"
)

// Logins besides those of the roles.
const (
	Migrate  schemas.Role = "migrate"  // millrace migrate
	Operator schemas.Role = "operator" // every other command
	Viewer   schemas.Role = "viewer"   // commands that only read
	Writer   schemas.Role = "writer"   // programs that publish changes, such as those that store through emit
)

// Operations, as kafka-acls.sh names them.
const (
	Read            = "Read"
	Write           = "Write"
	Create          = "Create"
	Delete          = "Delete"
	Describe        = "Describe"
	DescribeConfigs = "DescribeConfigs"
)

// A Resource is what a Right is about. The value is the option of kafka-acls.sh.
type Resource string

// The resources.
const (
	Topic Resource = "topic"
	Group Resource = "group"
)

// A Right is one operation on a resource, or on all resources whose names begin with Name.
type Right struct {
	Resource  Resource
	Name      string // with the configured prefix
	Prefixed  bool
	Operation string
	Why       string
}

// String returns the right as messages name it, such as "Write on topic millrace.changes".
func (r Right) String() string {
	if r.Prefixed {
		return fmt.Sprintf("%s on all %ss that begin with %q", r.Operation, r.Resource, r.Name)
	}
	return fmt.Sprintf("%s on %s %s", r.Operation, r.Resource, r.Name)
}

// arguments returns the right as options of kafka-acls.sh.
func (r Right) arguments() string {
	pattern := ""
	if r.Prefixed {
		pattern = " --resource-pattern-type prefixed"
	}
	return fmt.Sprintf("--operation %s%s --%s %s", r.Operation, pattern, r.Resource, r.Name)
}

// Rights returns the rights that one login needs for all of these, sorted: roles of a process, or another login.
func Rights(cfg client.Config, logins ...schemas.Role) []Right {
	l := list{cfg: cfg, entries: schemas.Catalogue(cfg.LaneNames()...)}
	for _, login := range logins {
		switch login {
		case Migrate:
			l.migrate()
		case Operator:
			l.operator()
		case Viewer:
			l.viewer()
		case Writer:
			l.topic(schemas.Changes, "publishes", Write)
		default:
			l.role(login)
		}
	}
	return l.sorted()
}

// MigrateCheck returns the rights of Migrate without Create, for which Create on the cluster is enough: if it is
// refused, the error names it.
func MigrateCheck(cfg client.Config) []Right {
	return slices.DeleteFunc(Rights(cfg, Migrate), func(r Right) bool { return r.Operation == Create })
}

// PolicyFolder returns the right that a process with a policy folder needs.
func PolicyFolder(cfg client.Config) Right {
	return Right{Topic, cfg.Topic(schemas.Policies), false, Write, "policies.folder is set"}
}

// A list collects rights.
type list struct {
	cfg     client.Config
	entries []schemas.Entry
	rights  []Right
}

// group adds an operation on the group in which a role reads topics of a class.
func (l *list) group(role schemas.Role, class schemas.Class, why, operation string) {
	l.rights = append(l.rights, Right{Group, l.cfg.Group(role, class), false, operation, why})
}

// topic adds operations on a topic. All delay lanes are one right, because their names are configured.
func (l *list) topic(t schemas.Topic, why string, operations ...string) {
	lanes := schemas.Delay("")
	prefixed := strings.HasPrefix(string(t), string(lanes))
	if prefixed {
		t = lanes
	}
	for _, o := range operations {
		l.rights = append(l.rights, Right{Topic, l.cfg.Topic(t), prefixed, o, why})
	}
}

// all adds operations on all topics, or groups, of the installation.
func (l *list) all(resource Resource, why string, operations ...string) {
	for _, o := range operations {
		l.rights = append(l.rights, Right{resource, l.cfg.Prefix, true, o, why})
	}
}

// role adds the rights of a process that runs one role.
func (l *list) role(role schemas.Role) {
	l.all(Topic, "checks the topics at the start and watches them", Describe, DescribeConfigs)
	for _, t := range []schemas.Topic{schemas.Controls, schemas.Incidents, schemas.Policies, schemas.Accounts} {
		l.topic(t, "keeps the topic in memory", Read)
	}
	l.topic(schemas.Checkpoints, "restores offsets that the brokers have expired", Read)
	l.member(role)
	l.writer(role)
	if role == schemas.RoleSink {
		l.member(schemas.RoleState)
		l.writer(schemas.RoleState)
	}
	switch role {
	case schemas.RoleIngester, schemas.RoleCopier, schemas.RoleDeleter, schemas.RoleChecker, schemas.RoleSteward,
		schemas.RoleSweeper:
		l.topic(schemas.Admin, "knows what operators have decided, such as the spaces that are gone", Read)
		l.freshReads()
	}
	switch role {
	case schemas.RoleSweeper:
		l.sweeper()
	case schemas.RoleIngester:
		for _, name := range l.cfg.Foreign {
			l.topic(schemas.Foreign(name), "handles notifications", Read)
		}
		if len(l.cfg.Foreign) > 0 {
			l.group(role, schemas.High, "its consumer group", Read)
		}
	}
}

// member adds the rights to read the topics of a role in its groups.
func (l *list) member(role schemas.Role) {
	for _, e := range l.entries {
		if e.Reads(role) {
			l.topic(e.Topic, "handles its messages", Read)
			l.group(role, client.ClassOf(e, role), "its consumer group", Read)
		}
	}
}

// writer adds the topics that a role writes.
func (l *list) writer(role schemas.Role) {
	for _, e := range l.entries {
		if slices.Contains(e.Writers, role) {
			l.topic(e.Topic, "publishes", Write)
		}
	}
}

// freshReads adds what a reader of ClickHouse needs to know how far the tables are.
func (l *list) freshReads() {
	for _, role := range []schemas.Role{schemas.RoleSink, schemas.RoleState} {
		l.group(role, schemas.High, "compares the tables with what is committed", Describe)
	}
}

func (l *list) sweeper() {
	l.group(schemas.RoleSweeper, schemas.High, "owns the splits of sweeps", Read)
	for _, e := range l.entries {
		for _, role := range e.Readers {
			l.group(role, client.ClassOf(e, role), "records and compares offsets", Describe)
		}
		if l.cfg.NoTrim || e.Cleanup != schemas.Trim || len(e.Readers) == 0 {
			continue
		}
		l.topic(e.Topic, "trims", Delete)
	}
	if len(l.cfg.Foreign) > 0 {
		l.group(schemas.RoleIngester, schemas.High, "records offsets", Describe)
		for _, name := range l.cfg.Foreign {
			l.topic(schemas.Foreign(name), "records offsets", Describe)
		}
	}
}

func (l *list) migrate() {
	l.all(Topic, "creates and checks topics", Describe, DescribeConfigs, Create)
	l.topic(schemas.Admin, "records that the tables have positions", Read, Write)
	l.freshReads()
}

func (l *list) viewer() {
	l.all(Topic, "reads and verifies", Read)
	l.all(Group, "knows how far the roles are", Describe)
	for _, name := range l.cfg.Foreign {
		l.topic(schemas.Foreign(name), "knows how far the ingester is", Describe)
	}
}

// operator may publish whatever a command publishes: actions, pauses, imports, the tasks of a sweep. A redrive
// publishes to the topics from which roles read messages again. A dead letter of the sink, or with another value, goes
// to its original topic.
func (l *list) operator() {
	l.viewer()
	l.writer(schemas.RoleAPI)
	l.writer(schemas.RoleSweeper)
	for _, e := range l.entries {
		if len(e.Readers) > 0 && !e.Raw {
			l.topic(e.Topic, "redrives dead letters", Write)
		}
	}
}

// sorted returns the rights without duplicates and without those that others imply. Brokers imply Describe in Read,
// Write, Delete and Alter.
func (l *list) sorted() []Right {
	slices.SortStableFunc(l.rights, func(a, b Right) int {
		return cmp.Or(-cmp.Compare(a.Resource, b.Resource), compareBool(b.Prefixed, a.Prefixed),
			cmp.Compare(a.Name, b.Name), cmp.Compare(a.Operation, b.Operation))
	})
	all := slices.CompactFunc(l.rights, func(a, b Right) bool { a.Why = b.Why; return a == b })
	return slices.DeleteFunc(slices.Clone(all), func(r Right) bool {
		return slices.ContainsFunc(all, func(o Right) bool { return o != r && o.implies(r) })
	})
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// implies reports whether a login with r has o too.
func (r Right) implies(o Right) bool {
	covers := r.Resource == o.Resource && (r.Name == o.Name && r.Prefixed == o.Prefixed ||
		r.Prefixed && !o.Prefixed && strings.HasPrefix(o.Name, r.Name))
	if !covers {
		return false
	}
	switch r.Operation {
	case o.Operation:
		return true
	case Read, Write, Delete:
		return o.Operation == Describe
	}
	return false
}
