// Package hint turns hints that something happened to a copy into Changes: the notifications of object stores, and
// what a watch of a directory tells. Such feeds come unordered, twice, late or never, and with sizes that are not so:
// a hint only ever says where to look, and what is told is what the store shows then.
//
// A Change that is told because of a hint has the id of any other that tells of the same content, so telling twice
// is telling once. Absence is told only after a hint of a removal, and only where the store's marker was read behind
// it. A store that does not answer is an error, and the hint is looked into again later.
package hint

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/record"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// A Kind is what a hint says has happened.
type Kind uint8

// The kinds.
const (
	Other   Kind = iota // something that this version does not know
	Created             // there is content, new or again
	Removed             // it went, or hides behind a delete marker
	Aside               // something that no Change tells of: tags, tiers, reads
)

// A Hint is one hint.
type Hint struct {
	Kind Kind
	// Vendor is whose form it has: aws, eventbridge, minio, ceph, versitygw, or watch.
	Vendor string
	// Event is what the vendor calls what happened.
	Event string
	// Bucket and Key are where, decoded. A watch has none: it knows the copy.
	Bucket, Key string
	// Time is when, by the store's clock; zero: not told.
	Time time.Time
	// Version and ETag are of the content that it is about; Sequence is the provider's sequencer; User asked for it.
	Version, ETag, Sequence, User string

	raw []byte // the record, as it can be parsed by itself
}

// A Sight is what the store showed after a hint. What could not be seen is no Sight, but an error.
type Sight struct {
	Present bool
	Object  storage.Object // where Present
	// Resolution is that of the store's times.
	Resolution time.Duration
	// Received is when the hint came, the same however often it is delivered; Now is when it was looked at.
	Received, Now time.Time
}

// A Row is a row of Decide's table.
type Row string

// The rows. Which one holds depends on the kind of the hint and on what is seen:
//
//	aside                               nothing, and nobody looks
//	created, present, that content      ADD, with sequencer and user
//	created, present, another content   ADD, of what is there: nobody knows who wrote it
//	other, present                      ADD, the same
//	removed, present                    ADD, the same: it came back, or an older version went
//	removed, absent                     DELETE, at the time of the hint, with sequencer and user
//	created or other, absent            nothing: its removal is another hint
//	a key that is no item's             nothing, and nobody looks
const (
	rowAside    Row = "aside"
	rowTold     Row = "told"
	rowMovedOn  Row = "moved on"
	rowOther    Row = "other"
	rowReturned Row = "returned"
	rowGone     Row = "gone"
	rowNever    Row = "never seen"
	rowNoItem   Row = "no item"
)

// Rows are all rows.
func Rows() []Row {
	return []Row{rowAside, rowTold, rowMovedOn, rowOther, rowReturned, rowGone, rowNever, rowNoItem}
}

// A Decision is what is told of a hint: the Change is nil where that is nothing.
type Decision struct {
	Row    Row
	Change *pb.Change
}

// maxFuture is how far in the future a store's clock may be. A Change beyond it would be refused by whoever reads it.
const maxFuture = 5 * time.Minute

// Decide decides what is told of a copy after a hint. It is pure. Its error is permanent: the time is no time.
func Decide(c schemas.Copy, h Hint, s Sight) (Decision, error) {
	d := Decision{Row: rowOf(h, s)}
	switch d.Row {
	case rowAside, rowNever:
		return d, nil
	case rowGone:
		d.Change = record.Delete(c, storage.Deleted{Object: storage.Object{Size: storage.UnknownSize}, Time: removal(h, s)})
	default:
		d.Change = record.Content(c, s.Object)
	}
	ch := d.Change
	if at := ch.GetTime().AsTime(); at.Sub(s.Now) > maxFuture {
		return d, retry.Permanent(fmt.Errorf("hint %s of %s: time is %s, more than %v in the future", h.Event, c, at.Format(time.RFC3339Nano), maxFuture))
	}
	ch.Origin, ch.Agent = pb.Origin_ORIGIN_NOTIFICATION, "notification/"+h.Vendor
	if d.Row == rowTold || d.Row == rowGone {
		ch.Sequence, ch.User = h.Sequence, h.User
	}
	ch.Evidence = evidence(h)
	record.Seal(ch)
	return d, nil
}

func rowOf(h Hint, s Sight) Row {
	switch {
	case h.Kind == Aside:
		return rowAside
	case !s.Present && h.Kind == Removed:
		return rowGone
	case !s.Present:
		return rowNever
	case h.Kind == Removed:
		return rowReturned
	case h.Kind == Other:
		return rowOther
	case !h.of(s.Object):
		return rowMovedOn
	}
	return rowTold
}

// of says whether a hint is about the content of o, as far as the two can be compared.
func (h Hint) of(o storage.Object) bool {
	if h.Version != "" && h.Version == o.Version {
		return true
	}
	mine, its := bare(h.ETag), bare(o.ETag)
	return mine == "" || its == "" || mine == its
}

func bare(etag string) string { return strings.Trim(etag, `"`) }

// removal is when a removal happened, such that it can be compared with the times that the store gives to content:
// it must not lie before the content that went, nor behind content that came later.
func removal(h Hint, s Sight) time.Time {
	at := h.Time
	switch {
	case at.IsZero():
		at = s.Received
	case s.Resolution >= time.Second: // content of the same moment has that time too; the order in Kafka decides
		return at.Truncate(s.Resolution)
	case at.Nanosecond() == 0: // told in whole seconds, of a store that counts less: the last moment of it
		return at.Add(time.Second - time.Millisecond)
	}
	return at
}

// evidence keeps what the hint said by itself.
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
