package reconcile

import (
	"time"

	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/record"
)

// A Row is what the manifest has of a copy.
type Row struct {
	Item string
	Live bool // otherwise a tombstone
	// Inferred: only a sweep or a check noticed the delete.
	Inferred bool
	// Time is that of the content by the clock of the store, or of the delete.
	Time time.Time
	// Size, Version, ETag and Digests are those of the newest content, Version and ETag also of a deleted one. A negative
	// size, an empty version, ETag or set is unknown.
	Size          int64
	Version, ETag string
	Digests       digest.Set
	Passed        time.Time // the start of the last check that passed, with the digests on record; zero: none
}

// An Action is what a look at a copy calls for.
type Action string

// The actions. They are the counts of a round, too.
const (
	Nothing     Action = ""
	Equal       Action = "equal"       // the records describe what is there
	Adopt       Action = "adopted"     // no record has the item, or it was made again: a Change reports it
	Resurrected Action = "resurrected" // the item was deleted according to the records: it is checked
	Update      Action = "updated"     // other programs write here, and the item is newer: a Change reports it
	Different   Action = "different"   // the records describe something else: it is checked
	Missing     Action = "missing"     // since less than an hour: nothing is done
	CheckLost   Action = "lost"        // missing in rounds that are apart: it is checked
	Deleted     Action = "deleted"     // other programs write here, missing in rounds that are apart: a Change reports it
)

// Further counts of a round.
const (
	Unsettled    Action = "unsettled"    // an unrecorded item that changes: the next round looks again
	Inconclusive Action = "inconclusive" // missing items, which are too many to conclude anything
	Excluded     Action = "excluded"     // an item that is not compared (Config.Items)
	Unknown      Action = "unknown"      // an item that the store does not show, or that no message can report
	Stale        Action = "stale"        // the store is as on record, other than the Listing
	Newer        Action = "newer"        // on record since the Listing was made: not compared
)

// A look is the complete input of a decision about a copy: what the store and the manifest have.
type look struct {
	object *storage.Object // nil: the item is absent
	row    *Row            // nil: there is no record of content or delete
	// external reports whether programs other than the clients of millrace are expected to write to the store.
	external bool
	// before reports whether the item was missing in the round before, and in one that began apart before this one.
	before bool
	// now is the time of the look. An object under a tombstone of a client is newer than that only if it is by settle.
	now    time.Time
	settle time.Duration
}

// newer reports whether the object was written after what is on record, by its date. A date that is ahead says nothing.
func (l look) newer(by time.Duration) bool {
	m := l.object.Modified.Truncate(time.Millisecond)
	return m.After(l.row.Time.Add(by)) && !record.IsAhead(*l.object, l.now)
}

// decide decides what is done about a copy. It is pure and total. What the store has is never called wrong here: a
// check collects the evidence for that.
func decide(l look) Action {
	o, row := l.object, l.row
	switch {
	case o == nil && (row == nil || !row.Live):
		return Nothing
	case o == nil && !l.before:
		return Missing
	case o == nil && l.external:
		return Deleted
	case o == nil:
		return CheckLost
	case row == nil:
		return Adopt
	case !row.Live && (row.Inferred && l.newer(0) || l.external && l.newer(l.settle) && !row.describes(o)):
		return Adopt
	case !row.Live:
		return Resurrected
	case row.describes(o) || row.passedSince(o):
		return Equal
	case l.external && l.newer(0):
		return Update
	}
	return Different
}

// describes reports whether the content on record is that of o, as far as a listing tells: by the version if it is on
// record, else by ETag, digests or size.
func (r *Row) describes(o *storage.Object) bool {
	if r.Size >= 0 && o.Size >= 0 && r.Size != o.Size {
		return false
	}
	switch {
	case r.Version != "":
		return r.Version == o.Version
	case r.ETag != "" && o.ETag != "":
		return r.ETag == o.ETag
	}
	return r.Digests.Compare(o.Digests) != digest.Disagree
}

// passedSince reports whether a check of the content on record has passed since o was written: then only what
// identifies the object has changed, as by a restore of its directory. Bytes that were replaced since, with the same
// size and an older time, are found as other rot is: by the next check.
func (r *Row) passedSince(o *storage.Object) bool {
	return r.Size == o.Size && r.Passed.After(o.Modified) && !r.Passed.Before(r.Time)
}
