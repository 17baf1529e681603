package kafka

import (
	"time"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka/internal/core"
	"github.com/millrace/millrace/streams/kafka/schedule"
)

// A task is one record in a Pool.
type task struct {
	schedule.Task
	core.Record
	part     *assignment
	slot     uint64 // in the assignment's tracker
	delivery *schemas.Delivery
	err      error // of decoding, then of the last call
	began    time.Time
	// successor is the message of the last task that was queued for the key when this one started, or nil, and
	// successorPart the assignment of that task.
	successor     schemas.Body
	successorPart *assignment
	tries         int // calls of the handler in this delivery so far
	decoded       bool
	unmovable     bool // the brokers rejected its move to the backlog topic
}

// taskOf returns the task of a Pool that embeds t.
func taskOf(t *schedule.Task) *task { return t.Owner.(*task) }

func (t *task) bytes() int64 { return core.RecordBytes(t.Raw) }

// started reports whether t is running, has run, or is postponed. Only callbacks of the scheduler may call it.
func (t *task) started() bool { return t.Busy() || t.tries > 0 }

// setSuccessor is called by the scheduler before head starts. The message of last is not the successor in two cases:
// one from a delay lane is older than its position says and has fewer deliveries left, and a task of another fetcher
// can be revoked while head is not.
func setSuccessor(head, last *schedule.Task) {
	t := taskOf(head)
	t.successor, t.successorPart = nil, nil
	if last == head {
		return
	}
	l := taskOf(last)
	if l.delivery != nil && l.part.fetcher == t.part.fetcher &&
		(l.RetryHeaders == nil || l.part.backlog && l.RetryHeaders.Attempts+l.RetryHeaders.Waits == 0) {
		t.successor, t.successorPart = l.delivery.Body, l.part
	}
}

// lastQueued returns the message of the last task that was queued behind t, or nil if there is none or its
// partition is about to be revoked.
func (t *task) lastQueued() schemas.Body {
	if t.successorPart == nil || t.successorPart.gate.Closed() {
		return nil
	}
	return t.successor
}
