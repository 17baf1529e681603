package duplicate

import (
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/storage"
)

// resurrected decides C4r: the source is present although its row is a tombstone that is not older. The item is taken
// to be restored from an old disk or backup, also if a client once reported the content: the row includes that Change.
func (s Observation) resurrected() (Decision, bool) {
	row, ok := s.sourceRow()
	switch {
	case !ok && reportedByClient(s.Command) && !s.mustRead():
		return Decision{}, false
	case !ok:
		return s.needRecords(RowUnknown), true
	case isTombstone(row) && !row.GetTime().AsTime().Before(s.shown(row)):
		return Decision{Row: RowSourceResurrected, Result: "resurrected", CheckSource: true}, true
	}
	return Decision{}, false
}

// mustRead reports whether only the records show that the source has the newest content: the Change that caused the
// command is not recent, or the content that would be overwritten is not known to be a copy of older content.
func (s Observation) mustRead() bool {
	o, over := s.original(), s.Destination.Presence == Present
	return s.old || over && (o == (storage.Original{}) || o.Modified.After(s.Source.modified()))
}

// wasWrittenSince reports whether the destination was written since the Change that caused the command. Then it may be
// a copy of newer content than the source shows, also if that has the same or an older date.
func (s Observation) wasWrittenSince() bool {
	changed := schemas.ChangedAt(s.Command).AsTime().Truncate(time.Second) // as the store may report times
	return !s.Destination.modified().Before(changed) || s.original().Modified.Equal(s.Source.modified())
}

// shown returns the time that orders the content that the source shows. row is the source's.
func (s Observation) shown(row *pb.Record) time.Time {
	switch v := s.reported(); {
	case isLive(row) && contentOf(row).matches(s.Source):
		return row.GetTime().AsTime()
	case !v.empty() && v.time.Equal(s.Source.modified()): // it may be dated ahead
		return schemas.ChangedAt(s.Command).AsTime()
	case isTombstone(row) && !s.Source.modified().After(schemas.Reported(row).AsTime()): // by the store's clock
		return row.GetTime().AsTime()
	}
	return s.Source.modified()
}

// older decides C4o: the source shows older content than its record has, as after the restore of a snapshot, or than a
// client or a restore order has written to the destination. The command waits, since the Change of the content shown
// may be on its way.
func (s Observation) older(k expectation) (Decision, bool) {
	from, okFrom := s.sourceRow()
	to, okTo := s.destinationRow()
	over := s.Destination.Presence == Present
	d := Decision{Row: RowSourceOlder, action: actWait, Result: resultDiffers, Newer: k.newer}
	switch {
	case s.isApproved(RowContentDiffers):
		return Decision{}, false
	case okFrom && isLive(from) && contentOf(from).compare(s.Source) == digest.Disagree:
		d.CheckSource = true
		return d, true
	case (!okFrom || over && !okTo) && (s.mustRead() || over && s.wasWrittenSince()):
		return s.needRecords(RowUnknown), true
	}
	// What only a sweep or a check says of the source does not make its object newer than the one that was copied.
	found := over && reportedByClient(s.Command) && isLive(from) && unreported(from) &&
		s.original().Modified.After(s.Source.modified())
	return d, found || s.written(to) && okFrom && (isTombstone(from) || to.GetTime().AsTime().After(s.shown(from)))
}

// written reports whether a client or a restore order has written what the destination holds. to is its row.
func (s Observation) written(to *pb.Record) bool {
	return s.Destination.Presence == Present && isLive(to) && contentOf(to).matches(s.Destination) && !isCopy(to) &&
		!unreported(to)
}

// isCopy reports whether a live row is that of a copy.
func isCopy(r *pb.Record) bool {
	return r.GetSourceTime() != nil || r.GetOrigin() == pb.Origin_ORIGIN_DUPLICATION
}
