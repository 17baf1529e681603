package fixity

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/storage"
)

// JudgeMetadata says what is found of the media type and properties of an item that is present, whatever is found of its
// bytes: o is what its store says, and m the manifest's record, read afresh. If they are damaged, detail says what is on
// record. Properties that the store cannot tell are as good as none if none are on record.
func JudgeMetadata(o storage.Object, m *pb.Record) (found pb.Metadata, detail string) {
	switch {
	case !o.PropertiesUnknown:
		return pb.Metadata_METADATA_INTACT, ""
	case m.GetState() == pb.RecordState_RECORD_STATE_UNSPECIFIED:
		return pb.Metadata_METADATA_UNSPECIFIED, ""
	case m.GetState() == pb.RecordState_RECORD_STATE_LIVE && (m.GetMediaType() != "" || len(m.GetProperties()) > 0):
		return pb.Metadata_METADATA_DAMAGED, onRecord(m)
	}
	return pb.Metadata_METADATA_INTACT, ""
}

// onRecord names the media type and the properties of a record, without their values.
func onRecord(m *pb.Record) string {
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
