// Package record converts the objects that a store reports into Changes and identities on the wire.
//
// A Change rebuilt from the state of a store has the same id as the Change that was published when the content was
// written, so that publishing it again is idempotent.
package record

import (
	"maps"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/storage"
)

// Content returns the Change for a copy with content o: op ADD, at the time of o (see At). The digests of o, if any,
// count as verified. If o has an original, the Change carries its time and version. A negative size, and properties
// that the store cannot report, are unknown. The caller sets the id (see Seal), user, agent, origin and cause.
func Content(c schemas.Copy, o storage.Object) *pb.Change {
	ch := object(c, o)
	ch.Op = pb.Op_OP_ADD
	At(ch, o, o.Modified)
	if ch.PropertiesUnknown = o.PropertiesUnknown; !ch.PropertiesUnknown {
		ch.MediaType = o.Properties.MediaType
		ch.Properties = maps.Clone(o.Properties.User)
	}
	return ch
}

// At dates the Change c of content o: t is when the content came, and the date that o has is kept beside it if it is
// another.
func At(c *pb.Change, o storage.Object, t time.Time) {
	c.Time, c.Modified = Time(t), nil
	m := timestamppb.New(o.Modified.Truncate(time.Millisecond).UTC())
	if !o.Modified.IsZero() && m.IsValid() && !m.AsTime().Equal(c.GetTime().AsTime()) {
		c.Modified = m
	}
}

// Slack is how far ahead of the clock of a process that of a store may be.
const Slack = time.Minute

// IsAhead reports whether the date of o says nothing about when it was written, since it is ahead of now.
func IsAhead(o storage.Object, now time.Time) bool { return o.Modified.After(now.Add(Slack)) }

// Dated returns when content o was written as far as its date says: now if that is ahead, since no content is from the
// future.
func Dated(o storage.Object, now time.Time) time.Time {
	if IsAhead(o, now) {
		return now
	}
	return o.Modified
}

// IsOf reports whether a live record is about object o: by the version if it has one, else by size and time. Equal
// digests are ignored, since a client may have written the same bytes again.
func IsOf(r *pb.Record, o storage.Object) bool {
	switch {
	case r.GetState() != pb.RecordState_RECORD_STATE_LIVE:
		return false
	case r.GetVersion() != "":
		return r.GetVersion() == o.Version
	}
	return o.Size >= 0 && schemas.SizeOf(r) == o.Size && schemas.Reported(r).AsTime().Equal(Time(o.Modified).AsTime())
}

// Complete makes c, with digests that were computed from an object, a completion of the Change that the object's record
// r is made from: whatever else identifies the content is of r. The caller seals it.
func Complete(c *pb.Change, r *pb.Record) {
	c.Time, c.Version, c.Etag = schemas.Reported(r), r.GetVersion(), r.GetEtag()
	c.Size, c.SizeUnknown, c.Modified = r.GetSize(), r.GetSizeUnknown(), nil
	c.SourceTime, c.SourceVersion = nil, ""
	if c.Evidence == nil {
		c.Evidence = map[string]string{}
	}
	c.Evidence[schemas.Completes] = r.GetChangeId()
}

// Delete returns the Change for a deleted copy: op DELETE, with version, size and digests of the deleted content. The
// caller sets the id.
func Delete(c schemas.Copy, d storage.Deleted) *pb.Change {
	ch := object(c, d.Object)
	ch.Op = pb.Op_OP_DELETE
	ch.Time = Time(d.Time)
	return ch
}

func object(c schemas.Copy, o storage.Object) *pb.Change {
	ch := &pb.Change{
		Account: c.Account, Store: c.Store, Space: c.Space, Item: c.Item,
		Version: o.Version, Etag: o.ETag, Size: max(o.Size, 0), SizeUnknown: o.Size < 0,
	}
	if len(o.Digests) > 0 {
		ch.Digests = maps.Clone(map[string]string(o.Digests))
		ch.Provenance = pb.Provenance_PROVENANCE_VERIFIED
	}
	if o.Original != (storage.Original{}) {
		ch.SourceTime, ch.SourceVersion = Time(o.Original.Modified), o.Original.Version
	}
	return ch
}

// Original returns the reference to o that is stored with copies of o.
func Original(o storage.Object) storage.Original {
	return storage.Original{Modified: Time(o.Modified).AsTime(), Version: o.Version}
}

// Properties returns the media type and properties of a live copy according to r. It returns none if they were only
// claimed.
func Properties(r *pb.Record) storage.Properties {
	if r.GetState() != pb.RecordState_RECORD_STATE_LIVE || r.GetPropertiesClaimed() {
		return storage.Properties{}
	}
	return storage.Properties{MediaType: r.GetMediaType(), User: r.GetProperties()}
}

// PropertiesOn returns the properties to set on o again: those in r, with the media type of o if r has none.
func PropertiesOn(o storage.Object, r *pb.Record) storage.Properties {
	p := Properties(r)
	if p.MediaType == "" {
		p.MediaType = o.Properties.MediaType
	}
	return p
}

// Alters reports whether p are other properties than those in r. A missing media type in r does not count. If r has
// none at all, they are not altered.
func Alters(p storage.Properties, r *pb.Record, foldCase bool) bool {
	was := Properties(r)
	if was.MediaType == "" {
		p.MediaType = ""
	}
	return !was.IsEmpty() && !was.Equal(p, foldCase)
}

// Describes reports whether the properties in r belong to the content with the given version or digests. It returns
// Incomparable if r does not identify their content. The caller must have just read r.
func Describes(r *pb.Record, version string, digests digest.Set) digest.Agreement {
	name, of := r.GetVersion(), r.GetDigests()
	if other := r.GetPropertiesOf(); other != nil {
		name, of = other.GetVersion(), other.GetDigests()
	}
	if name != "" && name == version {
		return digest.Agree
	}
	return digest.Set(of).Compare(digests)
}

// IsNewer reports whether o was written after the content of r. An object that is dated ahead, and still has the time
// on record, was not.
func IsNewer(o storage.Object, r *pb.Record) bool {
	at := Time(o.Modified).AsTime()
	return at.After(r.GetTime().AsTime()) && !at.Equal(Time(schemas.Reported(r).AsTime()).AsTime())
}

// Seal sets the id of ch to its ChangeID, and returns ch.
func Seal(ch *pb.Change) *pb.Change {
	ch.Id = schemas.ChangeID(ch)
	return ch
}

// Time returns t for a message: in UTC, truncated to milliseconds, and in the years that messages carry.
func Time(t time.Time) *timestamppb.Timestamp {
	return timestamppb.New(schemas.ClampTime(t).Truncate(time.Millisecond).UTC())
}

// Identity returns the identity of o. Its time is in the years that messages carry.
func Identity(o storage.Object) *pb.Identity {
	return &pb.Identity{Version: o.Version, Etag: o.ETag, Modified: timestamppb.New(schemas.ClampTime(o.Modified)),
		Size: o.Size}
}

// Is reports whether id identifies o: by version if id has one, else by ETag, else by modification time and size. An
// empty identity identifies no object.
func Is(o storage.Object, id *pb.Identity) bool {
	switch {
	case id.GetVersion() != "":
		return o.Version == id.GetVersion()
	case id.GetEtag() != "":
		return o.ETag == id.GetEtag()
	case id.GetModified() != nil:
		return schemas.ClampTime(o.Modified).Equal(id.GetModified().AsTime()) && o.Size == id.GetSize()
	}
	return false
}
