package fixity

import (
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/storage/record"
)

// An otherCopy is what the manifest has of the item in another store.
type otherCopy struct {
	store  string
	record *pb.Record
}

// otherCopies returns the copies of the item in the other stores of its space.
func (k *check) otherCopies() (all []schemas.Copy) {
	for _, id := range k.stores.Others(k.copy.Account, k.copy.Space, k.copy.Store) {
		c := k.copy
		c.Store = id
		all = append(all, c)
	}
	return all
}

// isFirst reports whether the check is the first one of a content, whose digests it adds to the records as intended: in
// a baseline round, or to a record without digests. The records of the other copies say whether the digests are right.
func (k *check) isFirst() bool {
	return k.othersRead && (k.task.GetBaseline() || k.evidence.withoutDigests())
}

// A written content is one content in one store, by its version and its date; zero if it is not known.
type written struct {
	version string
	at      time.Time
}

func (a written) is(b written) bool {
	if a.version != "" && b.version != "" {
		return a.version == b.version
	}
	return !a.at.IsZero() && a.at.Equal(b.at)
}

// sourceOf returns the content that the copy of r was made from.
func sourceOf(r *pb.Record) written {
	if r.GetSourceTime() == nil {
		return written{}
	}
	return written{r.GetSourceVersion(), r.GetSourceTime().AsTime()}
}

// differs returns another store whose copy has verified digests on record that differ from the bytes, and that is a
// copy of the same source content as the object, or the source of one of both is the other; empty if there is none.
func (k *check) differs() string {
	o := k.object
	object := written{o.Version, record.Time(o.Modified).AsTime()}
	original := written{o.Original.Version, record.Time(o.Original.Modified).AsTime()}
	if o.Original.Modified.IsZero() {
		original.at = time.Time{}
	}
	recorded := sourceOf(k.fresh.GetManifest())
	for _, other := range k.others {
		r, source := other.record, sourceOf(other.record)
		itself := written{r.GetVersion(), schemas.Reported(r).AsTime()}
		if r.GetState() == pb.RecordState_RECORD_STATE_LIVE && r.GetProvenance() == pb.Provenance_PROVENANCE_VERIFIED &&
			k.evidence.Content.Digests.Compare(r.GetDigests()) == digest.Disagree &&
			(object.is(source) || original.is(source) || original.is(itself) || recorded.is(source) || recorded.is(itself)) {
			return other.store
		}
	}
	return ""
}
