// Package hint converts hints into Changes. A hint says that something may have happened to a copy. It comes from a
// notification of an object store or from a watched directory. Hints can be out of order, duplicated, late or lost, and
// their sizes can be wrong. So a hint only names a copy to observe: the Change describes the state that the store
// shows.
//
// A Change for a hint has the same id as any other Change that reports the same content, so that publishing it twice is
// idempotent. A delete is published only after a hint of a removal, and only if the store's marker was read after the
// copy was found absent. If the store does not answer, that is an error, and the hint is handled again later.
package hint

import (
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/record"
)

// A Kind is the kind of event that a hint reports.
type Kind uint8

// The kinds.
const (
	Other      Kind = iota // an event that this version does not know
	Created                // content was written or restored
	Removed                // the object was deleted or has a delete marker
	Irrelevant             // an event that never leads to a Change: tags, tiers, reads
)

// A Hint is one hint.
type Hint struct {
	Kind Kind
	// Vendor is the format of the hint: aws, eventbridge, minio, ceph, versitygw, or watch.
	Vendor string
	// Event is the vendor's name of the event.
	Event string
	// Bucket and Key name the object, decoded. They are empty for a watch, which knows the copy.
	Bucket, Key string
	// Time is the time of the event by the clock of the store; zero if unknown.
	Time time.Time
	// OfVersion: what was removed is the named Version, which may be an older one or a delete marker: that is no fact
	// about the item.
	OfVersion bool
	// Version and ETag are those of the content, Sequence is the provider's sequencer, and User caused the event.
	Version, ETag, Sequence, User string

	raw []byte // the record in a form that can be parsed alone
}

// An Observation is the state of a copy that a store showed after a hint.
type Observation struct {
	Present bool
	Object  storage.Object // set if Present
	// Resolution is the resolution of the store's times. Settle is how much older than the event that reports it content
	// may be and still have its own date.
	Resolution, Settle time.Duration
	// Received is the time at which the hint was received first; it stays the same on redelivery. Now is the time at
	// which the store was queried.
	Received, Now time.Time
	// Earlier is the time of the last Change of another content, or delete, that the sender of the hint has published of
	// the copy; zero if it knows none. What came since is newer.
	Earlier time.Time
	// The records that a hint OfVersion needs, if the version is not the one that is shown. Deleted: the item is on record
	// as deleted. Undone is the time of the record if what was removed is what is on record, else zero.
	Deleted bool
	Undone  time.Time
}

// A Row is a row of the decision table of Decide.
type Row string

// The rows. They depend on the kind of the hint and on the observed state of the copy; their names are label values of
// the metric millrace_ingest_hints_total.
const (
	// An irrelevant hint: no Change; the store is not queried.
	rowIrrelevant Row = "irrelevant"
	// Created, and the content is present: ADD, with sequencer and user.
	rowCurrent Row = "current"
	// Created, and another content is present: ADD of that content, with an unknown writer.
	rowReplaced Row = "replaced"
	// Other, and present: ADD of the current content.
	rowOther Row = "other"
	// Removed, and present: ADD of the current content. It was written again, or an older version was deleted.
	rowStillPresent Row = "still_present"
	// Removed, and absent: DELETE, at the time of the hint, with sequencer and user.
	rowRemoved Row = "removed"
	// Removed, a named version, and present: what is on record was removed, so that an older version is current again. ADD
	// of that content, at the time of the hint, with sequencer and user.
	rowUndone Row = "undone"
	// Removed, a named version, and absent: a guess, as of a sweep. DELETE, at the time of the hint, with sequencer and
	// user.
	rowVersionRemoved Row = "version_removed"
	// Created or other, and absent, or a named version is removed of an item that is on record as deleted: no Change. The
	// removal has a hint of its own.
	rowAbsent Row = "absent"
	// The key is not that of an item: no Change; the store is not queried.
	rowNoItem Row = "no_item"
)

// Rows returns all rows.
func Rows() []Row {
	return []Row{rowIrrelevant, rowCurrent, rowReplaced, rowOther, rowStillPresent, rowRemoved, rowUndone,
		rowVersionRemoved, rowAbsent, rowNoItem, rowKnown, rowDifferent}
}

// A Decision is the result of Decide. Change is nil if there is nothing to publish.
type Decision struct {
	Row    Row
	Change *pb.Change
}

// Decide returns the Change to publish for a hint about copy c with the observed state s. It is a pure function.
func Decide(c schemas.Copy, h Hint, s Observation) Decision {
	d := Decision{Row: rowOf(h, s)}
	switch d.Row {
	case rowIrrelevant, rowAbsent:
		return d
	case rowRemoved, rowVersionRemoved:
		d.Change = record.Delete(c, storage.Deleted{Object: storage.Object{Size: storage.UnknownSize},
			Time: removalTime(h, s)})
	default:
		d.Change = record.Content(c, s.Object)
		record.At(d.Change, s.Object, dated(d.Row, h, s))
	}
	ch := d.Change
	ch.Origin, ch.Agent = pb.Origin_ORIGIN_NOTIFICATION, "notification/"+h.Vendor
	switch d.Row {
	case rowVersionRemoved:
		ch.Origin = pb.Origin_ORIGIN_SWEEP
		fallthrough
	case rowCurrent, rowRemoved, rowUndone:
		ch.Sequence, ch.User = h.Sequence, h.User
	}
	ch.Evidence = evidence(h)
	record.Seal(ch)
	return d
}

func rowOf(h Hint, s Observation) Row {
	switch {
	case h.Kind == Irrelevant:
		return rowIrrelevant
	case !s.Present && h.OfVersion && !s.Deleted:
		return rowVersionRemoved
	case !s.Present && h.Kind == Removed && !h.OfVersion:
		return rowRemoved
	case !s.Present:
		return rowAbsent
	case h.Kind == Removed && !s.Undone.IsZero():
		return rowUndone
	case h.Kind == Removed:
		return rowStillPresent
	case h.Kind == Other:
		return rowOther
	case !h.matches(s.Object):
		return rowReplaced
	}
	return rowCurrent
}

// matches reports whether a hint can be about the content of o. It compares versions and ETags if both have them.
func (h Hint) matches(o storage.Object) bool {
	if h.Version != "" && h.Version == o.Version {
		return true
	}
	mine, its := trimETag(h.ETag), trimETag(o.ETag)
	return mine == "" || its == "" || mine == its
}

func trimETag(etag string) string { return strings.Trim(etag, `"`) }

// dated returns the time of content. A program can set the date of a file: what an event saw arrive is newer than what
// was there, whatever date it has, and nothing is from the future.
func dated(row Row, h Hint, s Observation) time.Time {
	m, at := s.Object.Modified, h.Time
	if at.IsZero() {
		at = s.Received
	}
	switch {
	case row == rowUndone && at.After(s.Undone):
		return at
	case row == rowUndone:
		return s.Undone.Add(time.Millisecond)
	case row != rowCurrent:
		return record.Dated(s.Object, s.Now)
	}
	if m.Before(at.Add(-s.Settle)) || !record.Time(m).AsTime().After(s.Earlier) || m.After(s.Now.Add(record.Slack)) {
		return at
	}
	return m
}

// removalTime returns the time of a removal such that it is comparable with the store's times of contents: not before
// the removed content, and not after content that was written later.
func removalTime(h Hint, s Observation) time.Time {
	at := h.Time
	switch {
	case at.IsZero():
		at = s.Received
	case s.Resolution >= time.Second: // content written in the same interval has this time too; the order in Kafka decides
		return at.Truncate(s.Resolution)
	case at.Nanosecond() == 0: // whole seconds from a store with a finer resolution: use the end of the second
		return at.Add(time.Second - time.Millisecond)
	}
	return at
}

// evidence returns the event, time and version that the hint itself reports, for the Change.
func evidence(h Hint) map[string]string {
	e := map[string]string{}
	if h.Event != "" {
		e["event"] = h.Event
	}
	if !h.Time.IsZero() {
		e["event_time"] = timestamppb.New(h.Time).AsTime().Format(time.RFC3339Nano)
	}
	if h.Version != "" {
		e["event_version"] = h.Version
	}
	return e
}
