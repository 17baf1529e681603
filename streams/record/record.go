// Package record turns what a store tells of a copy into what the wire says of it.
//
// A Change rebuilt from what is there has the id of the one that was sent when the
// content was written, so telling of a copy again is telling of it once.
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

// Content returns the Change of a copy whose content is o: op ADD, in the store's time
// in milliseconds. Digests, where o has any, count as verified; of a copy it says what it
// is a copy of. A size that is negative and properties that the store cannot tell are unknown.
// It has no id yet, and says nothing of who, why and which way.
func Content(c schemas.Copy, o storage.Object) *pb.Change {
	ch := object(c, o)
	ch.Op = pb.Op_OP_ADD
	ch.Time = Time(o.Modified)
	if ch.PropertiesUnknown = o.PropertiesUnknown; !ch.PropertiesUnknown {
		ch.MediaType = o.Properties.MediaType
		ch.Properties = maps.Clone(o.Properties.User)
	}
	return ch
}

// Delete returns the Change of a copy that is gone: op DELETE, with version, size and
// digests of what was there. It has no id yet.
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

// Original returns what o is to those that are made copies of it.
func Original(o storage.Object) storage.Original {
	return storage.Original{Modified: Time(o.Modified).AsTime(), Version: o.Version}
}

// Properties returns the media type and the properties on record that the store of a live copy has held. Those that
// were only claimed are none.
func Properties(r *pb.Record) storage.Properties {
	if r.GetState() != pb.RecordState_RECORD_STATE_LIVE || r.GetPropertiesClaimed() {
		return storage.Properties{}
	}
	return storage.Properties{MediaType: r.GetMediaType(), User: r.GetProperties()}
}

// Describes reports whether the properties in r, which was read afresh, were reported of the content of a version or
// with these digests. Incomparable: what is on record of their content does not say.
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

// Seal gives ch the id that is a function of what it says, and returns it.
func Seal(ch *pb.Change) *pb.Change {
	ch.Id = schemas.ChangeID(ch)
	return ch
}

// Time returns t as it stands in messages: UTC, in milliseconds, cut off.
func Time(t time.Time) *timestamppb.Timestamp {
	return timestamppb.New(t.Truncate(time.Millisecond).UTC())
}

// Identity returns what pins o.
func Identity(o storage.Object) *pb.Identity {
	return &pb.Identity{Version: o.Version, Etag: o.ETag, Modified: timestamppb.New(o.Modified), Size: o.Size}
}

// Is reports whether o is the object that id pins: by version where id has one, else
// by ETag, else by modification time and size. An identity that pins nothing is of no object.
func Is(o storage.Object, id *pb.Identity) bool {
	switch {
	case id.GetVersion() != "":
		return o.Version == id.GetVersion()
	case id.GetEtag() != "":
		return o.ETag == id.GetEtag()
	case id.GetModified() != nil:
		return o.Modified.Equal(id.GetModified().AsTime()) && o.Size == id.GetSize()
	}
	return false
}
