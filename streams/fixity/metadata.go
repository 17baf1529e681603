package fixity

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/record"
	"github.com/millrace/millrace/streams/storage"
)

// JudgeMetadata says what is found of the media type and properties of an item that is present, whatever is found of
// its bytes: o is what its store says, digests are those of its bytes, and m is the manifest's record, read afresh. If
// they are damaged, detail says what is on record. Properties that the store cannot tell are as good as none if its
// store is on record to have held none, or held them with other bytes. If it cannot be seen with which, nothing is
// found.
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

// onRecord names the media type and the properties of a record, without their values.
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
