package duplicate

import (
	"fmt"
	"strconv"
	"time"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/held"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// DeleteEffect returns the id of a delete of a copy, of the object that is there, because its source was deleted at a
// time. For a space, whose copy has no item, there is no object.
func DeleteEffect(at schemas.Copy, deleted time.Time, there storage.Object) string {
	return effect(at, "deleted "+strconv.FormatInt(deleted.UnixMilli(), 10), there)
}

// effect returns the id of the rewrite of the copy by what the source shows, or of the repair of the copy on record,
// which a check may have seen since it was recorded.
func (s Observation) effect(row Row) string {
	c := s.Command
	at := schemas.Copy{Account: c.GetAccount(), Store: c.GetDestinationStore(), Space: c.GetSpace(), Item: c.GetItem()}
	because := "content " + identity(s.Source.Object)
	if row == RowRepair || row == RowDestinationNotAsRecorded {
		r := s.Destination.Record
		because = "repair of " + r.GetManifest().GetChangeId()
		if passed := r.GetLastPass(); passed != nil {
			because += " passed " + strconv.FormatInt(passed.AsTime().UnixMilli(), 10)
		}
	}
	return effect(at, because, s.Destination.Object)
}

// holdInterval is after what time the command of an approved effect looks again whether a hold has ended.
const holdInterval = time.Hour

// AwaitHold returns the error with which the command of an approved effect waits for the end of a hold: if it ended,
// the approval would be used up.
func AwaitHold(h *policy.Hold) error {
	until := time.Now().Add(holdInterval)
	if h.Until.After(time.Now()) && h.Until.Before(until) {
		until = h.Until
	}
	return retry.Wait(fmt.Errorf("what was approved waits for the end of the hold of prefix %q: %s", h.Prefix, h.Reason),
		until)
}

func effect(at schemas.Copy, because string, there storage.Object) string {
	return held.EffectID(schemas.ID("effect", at.Account, at.Store, at.Space, at.Item, because), identity(there))
}

// identity returns what tells an object from others that its store had at that place.
func identity(o storage.Object) string {
	if o.Version != "" { // which some stores derive from the bytes
		return "version " + o.Version + " " + strconv.FormatInt(o.Modified.UnixMilli(), 10)
	}
	return o.ETag + " " + strconv.FormatInt(o.Size, 10) + " " + strconv.FormatInt(o.Modified.UnixMilli(), 10)
}
