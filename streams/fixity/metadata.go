package fixity

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/record"
)

// A metadataEvidence is all that a check knows of the media type and properties of an item that is present.
type metadataEvidence struct {
	object   storage.Object
	digests  digest.Set // of its bytes
	record   *pb.Record // of the manifest, read afresh; nil if it was not read, or did not answer
	carried  int64      // CopyRecord.properties_hash of the task
	foldCase bool       // the store ignores the case of names
	external bool       // other programs were expected to write the object
}

// inDoubt reports whether fresh records are needed, or were needed, to judge.
func (e metadataEvidence) inDoubt() bool {
	switch {
	case e.object.PropertiesUnknown:
		return true
	case e.record.GetState() == pb.RecordState_RECORD_STATE_UNSPECIFIED:
		p := e.object.Properties
		return e.carriesHash() && e.carried != schemas.PropertiesHash(p.MediaType, p.User) &&
			e.carried != schemas.PropertiesHash("", p.User) && // no media type is on record
			e.carried != schemas.PropertiesHash("", nil)
	}
	return record.Alters(e.object.Properties, e.record, e.foldCase)
}

// carriesHash reports whether the task says which properties are on record of the content.
func (e metadataEvidence) carriesHash() bool { return e.carried > schemas.UnknownProperties }

// judgeMetadata judges media type and properties independently of the bytes. It is pure. They are damaged if the
// records have some of these bytes, and the store cannot report them, or reports others; detail names them. If the
// records have none, or have them of other bytes, they are intact. If the records do not show which bytes they belong
// to, or another program may have set what the store reports, the result is unspecified.
func judgeMetadata(e metadataEvidence) (found pb.Metadata, detail string) {
	m := e.record
	unread := m.GetState() == pb.RecordState_RECORD_STATE_UNSPECIFIED
	switch {
	case unread && !e.carriesHash(): // nothing to compare with
		return pb.Metadata_METADATA_UNSPECIFIED, ""
	case !e.inDoubt():
		return pb.Metadata_METADATA_INTACT, ""
	case unread:
		return pb.Metadata_METADATA_UNSPECIFIED, ""
	case record.Properties(m).IsEmpty():
		return pb.Metadata_METADATA_INTACT, ""
	}
	switch record.Describes(m, e.object.Version, e.digests) {
	case digest.Disagree:
		return pb.Metadata_METADATA_INTACT, ""
	case digest.Incomparable:
		return pb.Metadata_METADATA_UNSPECIFIED, ""
	}
	switch {
	case e.object.PropertiesUnknown:
		return pb.Metadata_METADATA_DAMAGED, describeMetadata(m.GetMediaType(), m.GetProperties())
	case m.GetPropertiesOf() != nil: // the content was reported without properties, and may have been put with others
		return pb.Metadata_METADATA_UNSPECIFIED, ""
	case e.external && record.IsNewer(e.object, m):
		return pb.Metadata_METADATA_UNSPECIFIED, ""
	}
	return pb.Metadata_METADATA_DAMAGED, e.describeDifference()
}

// describeDifference names what the store reports otherwise than the records, without the values of properties.
func (e metadataEvidence) describeDifference() string {
	p, o := record.Properties(e.record), e.object.Properties
	differ := map[string]string{}
	for name, v := range p.User {
		if !hasProperty(o.User, name, v, e.foldCase) {
			differ[name] = ""
		}
	}
	for name, v := range o.User {
		if !hasProperty(p.User, name, v, e.foldCase) {
			differ[name] = ""
		}
	}
	mediaType := ""
	if p.MediaType != "" && p.MediaType != o.MediaType {
		mediaType = p.MediaType
	}
	return "altered: " + describeMetadata(mediaType, differ)
}

func hasProperty(m map[string]string, name, value string, foldCase bool) bool {
	if got, ok := m[name]; ok || !foldCase {
		return ok && got == value
	}
	for other, v := range m {
		if strings.EqualFold(other, name) {
			return v == value
		}
	}
	return false
}

// describeMetadata names a media type and properties, without the values of properties.
func describeMetadata(mediaType string, properties map[string]string) string {
	const most = 20
	var parts []string
	if mediaType != "" {
		parts = append(parts, fmt.Sprintf("media type %.100q", mediaType))
	}
	if n := len(properties); n > 0 {
		names := slices.Sorted(maps.Keys(properties))
		for i, name := range names {
			names[i] = fmt.Sprintf("%.40q", name)
		}
		if n > most {
			names = append(names[:most], "...")
		}
		parts = append(parts, fmt.Sprintf("%d properties: %s", n, strings.Join(names, ", ")))
	}
	return strings.Join(parts, "; ")
}
