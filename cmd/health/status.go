package health

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/storage/limit"
)

const maxReasons = 20 // the largest number of policies, and of records, that a status names

// The engines, as named in reports.
const (
	engineKafka      = "kafka"
	engineClickHouse = "clickhouse"
)

// A roleHealth is the state of one role in this process.
type roleHealth struct {
	Role schemas.Role `json:"role"`
	// Member reports whether the role has joined all its groups, with or without partitions. The sweeper has none,
	// and is a member when it has read the checkpoints.
	Member     bool `json:"member"`
	Partitions int  `json:"partitions"`
	// Due is the number of messages of the partitions that could be handled now, without those that
	// are paused or in a delay lane. Of the sweeper it is 1 while it looks for due rounds and runs them.
	Due int64 `json:"due"`
	// Able reports whether some of them can be handled: not all messages in flight are paused, outputs are
	// acknowledged, and the engine that the role needs is available.
	Able     bool  `json:"able"`
	InFlight int64 `json:"in_flight"`
	Busy     int64 `json:"working"`
	Stuck    int64 `json:"stuck"` // tasks that did not end after they were cancelled
	// DueSince is the time since which the role has had due messages that it could handle; zero: it
	// has none.
	DueSince time.Time `json:"due_since,omitzero"`
	Active   time.Time `json:"active,omitzero"` // of the last progress
	// UnacknowledgedSince is the time since which outputs are not acknowledged, because the brokers refuse them
	// or cannot be reached; zero: they are.
	UnacknowledgedSince time.Time `json:"unacknowledged_since,omitzero"`
}

// A snapshot is the state of the process at one time: all inputs of evaluate.
type snapshot struct {
	now       time.Time
	collected time.Time     // when the engines were queried; zero: not yet
	maxAge    time.Duration // of collected
	stall     time.Duration
	faults    map[string]error // by engine, of those that the roles use; nil: no error
	roles     []roleHealth     // Due is as of collected, the rest as of now
	stores    []Store          // of the stores that the roles use
	// policies are the refused policies that the roles apply, each with its reason.
	policies []string
	// unreadable are the records of tables that cannot be read, and the stopped partitions, with the action to
	// take.
	unreadable []string
	ending     bool // the process is stopping
}

// A status is the health of the process, and the reasons for each false value.
type status struct {
	Live    bool     `json:"live"`    // false: restart the process
	Ready   bool     `json:"ready"`   // false: some of its work cannot be done now
	Started bool     `json:"started"` // false: it is still starting
	Reasons []string `json:"reasons"`
}

// no sets what, a field of v, to false and adds the reason.
func (v *status) no(what *bool, format string, args ...any) {
	*what = false
	v.Reasons = append(v.Reasons, fmt.Sprintf(format, args...))
}

// evaluate returns the status for a snapshot. A condition that a new process would find too, such
// as an unavailable engine, does not make this one not live.
func evaluate(s snapshot) status {
	v := status{Live: true, Ready: true, Reasons: []string{}}
	no := v.no
	known := !s.collected.IsZero() && s.now.Sub(s.collected) < s.maxAge
	if !known {
		no(&v.Ready, "the state of the engines is not known")
	}
	if s.ending {
		no(&v.Ready, "the process is stopping")
	}
	for _, engine := range []string{engineKafka, engineClickHouse} {
		if err := s.faults[engine]; known && err != nil {
			no(&v.Ready, "%s %s: %v", engine, describeEngineError(err), err)
		}
	}
	if names := unavailableStores(s.stores); len(names) > 0 && len(names) == len(s.stores) {
		no(&v.Ready, "every store is unavailable: %s", strings.Join(names, ", "))
	}
	for i, refused := range s.policies {
		if i == maxReasons {
			no(&v.Ready, "%d more policies are refused", len(s.policies)-i)
			break
		}
		no(&v.Ready, "policy refused: %s", refused)
	}
	for i, record := range s.unreadable {
		if i == maxReasons {
			no(&v.Ready, "%d more records cannot be read", len(s.unreadable)-i)
			break
		}
		no(&v.Ready, "record cannot be read: %s", record)
	}
	joined := evaluateRoles(s, known, &v)
	v.Ready, v.Started = v.Ready && v.Live, known && joined
	return v
}

// evaluateRoles adds to v what the roles of a snapshot say. It reports whether all have joined their groups, or read
// the checkpoints. known: the state of the engines is known.
func evaluateRoles(s snapshot, known bool, v *status) bool {
	no, joined := v.no, true
	for _, d := range s.roles {
		if d.Stuck > 0 {
			no(&v.Live, "role %s: %d tasks have not ended after they were cancelled", d.Role, d.Stuck)
		}
		if !d.UnacknowledgedSince.IsZero() {
			no(&v.Ready, "role %s: the brokers have not acknowledged its outputs for %v; publishing is retried",
				d.Role, s.now.Sub(d.UnacknowledgedSince).Round(time.Second))
		}
		if !d.Member {
			joined = false
			missing := "is not in its group"
			if !readsTopics(d.Role) {
				missing = "has not read the checkpoints"
			}
			no(&v.Ready, "role %s %s", d.Role, missing)
		}
		if d.DueSince.IsZero() || !d.Able || !known {
			continue
		}
		since := d.DueSince
		if d.Active.After(since) {
			since = d.Active
		}
		switch idle := s.now.Sub(since).Round(time.Second); {
		case s.now.Sub(since) < s.stall:
		case readsTopics(d.Role):
			no(&v.Live, "role %s: %d messages are due, and nothing was done for %v", d.Role, d.Due, idle)
		default:
			no(&v.Live, "role %s: its sweep has made no progress for %v", d.Role, idle)
		}
	}
	return joined
}

// describeEngineError returns the kind of an engine's error as text.
func describeEngineError(err error) string {
	switch {
	case errors.Is(err, client.ErrOffsetsNotReady):
		return "is starting"
	case errors.Is(err, errNoOffsets):
		return "cannot keep offsets"
	case errors.Is(err, client.ErrLoginRejected), errors.Is(err, clickhouse.ErrAccess):
		return "refuses access"
	}
	return "is unavailable"
}

// unavailableStores returns the names of the unavailable stores: their breakers are not closed.
func unavailableStores(stores []Store) (names []string) {
	for _, b := range stores {
		if b.State != limit.Closed {
			names = append(names, b.Account+"/"+b.Store)
		}
	}
	return names
}
