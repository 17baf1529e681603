package read

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
)

// A Span is a range of time: From is included, To is not. The zero time is no bound.
type Span struct{ From, To time.Time }

// milliParam is SQL for the time of a parameter in milliseconds.
const milliParam = "fromUnixTimestamp64Milli(?, 'UTC')"

// millis returns the first and the last millisecond of a span.
func (s Span) millis() (first, last int64) {
	first, last = clickhouse.MinMillis, clickhouse.MaxMillis
	if !s.From.IsZero() {
		first = clampMillis(ceilMillis(s.From))
	}
	if !s.To.IsZero() {
		last = clampMillis(ceilMillis(s.To) - 1)
	}
	return first, last
}

// ceilMillis returns t in milliseconds, rounded up.
func ceilMillis(t time.Time) int64 {
	ms := t.UnixMilli()
	if t.Nanosecond()%1e6 != 0 {
		ms++
	}
	return ms
}

// clampMillis limits a time to the range of the tables.
func clampMillis(ms int64) int64 { return min(max(ms, clickhouse.MinMillis), clickhouse.MaxMillis) }

const changeFields = `id, ts, ns, op, account, store, space, item, source_space, source_item,
  version, etag, size, digests, provenance,
  media_type, properties, properties_unknown, acl, sequence, user, agent, origin, cause, source_time, source_ns,
  modified, source_version, approved, evidence`

type changeRow struct {
	ID    string    `ch:"id"`
	Time  time.Time `ch:"ts"`
	Nanos uint32    `ch:"ns"`
	Op    string    `ch:"op"`
	copyKey
	SourceSpace   string            `ch:"source_space"`
	SourceItem    string            `ch:"source_item"`
	Version       string            `ch:"version"`
	ETag          string            `ch:"etag"`
	Size          *int64            `ch:"size"`
	Digests       map[string]string `ch:"digests"`
	Provenance    string            `ch:"provenance"`
	MediaType     string            `ch:"media_type"`
	Properties    map[string]string `ch:"properties"`
	PropsUnknown  bool              `ch:"properties_unknown"`
	ACL           map[string]string `ch:"acl"`
	Sequence      string            `ch:"sequence"`
	User          string            `ch:"user"`
	Agent         string            `ch:"agent"`
	Origin        string            `ch:"origin"`
	Cause         string            `ch:"cause"`
	SourceTime    *time.Time        `ch:"source_time"`
	SourceNanos   uint32            `ch:"source_ns"`
	Modified      string            `ch:"modified"`
	SourceVersion string            `ch:"source_version"`
	Approved      string            `ch:"approved"`
	Evidence      map[string]string `ch:"evidence"`
}

// dateOf returns the date of a file; nil if there is none.
func dateOf(text string) *timestamppb.Timestamp {
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return nil
	}
	return timestamppb.New(t)
}

// change returns the row as a message.
func (r *changeRow) change() *pb.Change {
	size, unknown := reported(r.Size)
	return &pb.Change{
		Id: r.ID, Op: pb.Op(enumValue(pb.Op_value, "OP_", r.Op)),
		Account: r.Account, Store: r.Store, Space: r.Space, Item: r.Item,
		SourceSpace: r.SourceSpace, SourceItem: r.SourceItem,
		Version: r.Version, Etag: r.ETag, Size: size, SizeUnknown: unknown, Digests: r.Digests,
		Provenance: pb.Provenance(enumValue(pb.Provenance_value, "PROVENANCE_", r.Provenance)),
		MediaType:  r.MediaType, Properties: r.Properties, PropertiesUnknown: r.PropsUnknown, Acl: r.ACL,
		Time: nullTime(&r.Time, r.Nanos), Sequence: r.Sequence,
		User: r.User, Agent: r.Agent, Origin: originOf(r.Origin), Cause: r.Cause,
		SourceTime:    nullTime(r.SourceTime, r.SourceNanos),
		Modified:      dateOf(r.Modified),
		SourceVersion: r.SourceVersion, Approved: r.Approved, Evidence: r.Evidence,
	}
}
