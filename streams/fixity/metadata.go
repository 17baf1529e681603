package fixity

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/record"
)

// JudgeMetadata judges the media type and properties of an item that is present, independently of its bytes: o is the
// store's object, digests are those of its bytes, and m is the manifest's record, read afresh. If the store cannot
// report properties that m has of these bytes, they are damaged, and detail names them. If m has none, or has them of
// other bytes, they are intact. If m does not show which bytes they belong to, the result is unspecified.
func JudgeMetadata(o storage.Object, digests digest.Set, m *pb.Record) (found pb.Metadata, detail string) {
	switch p := record.Properties(m); {
	case !o.PropertiesUnknown:
		return pb.Metadata_METADATA_INTACT, ""
	case m.GetState() == pb.RecordState_RECORD_STATE_UNSPECIFIED:
		return pb.Metadata_METADATA_UNSPECIFIED, ""
	case p.MediaType == "" && len(p.User) == 0:
		return pb.Metadata_METADATA_INTACT, ""
	}
	switch record.Describes(m, o.Version, digests) {
	case digest.Agree:
		return pb.Metadata_METADATA_DAMAGED, describeMetadata(m)
	case digest.Disagree:
		return pb.Metadata_METADATA_INTACT, ""
	}
	return pb.Metadata_METADATA_UNSPECIFIED, ""
}

// describeMetadata names the media type and the properties of a record, without the values of properties.
func describeMetadata(m *pb.Record) string {
	const most = 20
	var parts []string
	if m.GetMediaType() != "" {
		parts = append(parts, fmt.Sprintf("media type %.100q", m.GetMediaType()))
	}
	if n := len(m.GetProperties()); n > 0 {
		names := slices.Sorted(maps.Keys(m.GetProperties()))
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
