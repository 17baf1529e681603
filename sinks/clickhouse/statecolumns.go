package clickhouse

import (
	"fmt"
	"strings"
	"time"

	"github.com/ClickHouse/ch-go/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse/version"
)

// stateColumns are the columns of copy_state. A group that a row does not set is all zero, including its version,
// and loses against every other value.
func stateColumns() []column[stateRow] {
	type s = stateRow
	content := func(r s) *pb.Change { return r.content }
	deleted := func(r s) *pb.Change { return r.deleted }
	return []column[s]{
		lowCard("account", func(r s) string { return r.copy.Account }),
		lowCard("store", func(r s) string { return r.copy.Store }),
		text("space", func(r s) string { return r.copy.Space }),
		text("item", func(r s) string { return r.copy.Item }),
		group("content",
			ver(func(r s) bool { return r.content != nil }),
			uint64s("ns", func(r s) uint64 { return nanosTo(content(r).GetTime(), r.first) }),
			changeID(func(r s) bool { return r.content != nil }),
			int64s("size", func(r s) int64 { return schemas.SizeOf(content(r)) }),
			text("version", func(r s) string { return content(r).GetVersion() }),
			text("etag", func(r s) string { return content(r).GetEtag() }),
			text("media_type", func(r s) string { return content(r).GetMediaType() }),
			text("origin", func(r s) string { return enumName(content(r).GetOrigin()) }),
			text("user", func(r s) string { return content(r).GetUser() }),
			nullableTime("source_time", func(r s) *timestamppb.Timestamp {
				return schemas.Earlier(content(r).GetSourceTime(), r.first)
			}),
			uint64s("source_ns", func(r s) uint64 { return nanosTo(content(r).GetSourceTime(), r.first) }),
			text("source_version", func(r s) string { return content(r).GetSourceVersion() }),
		),
		group("deleted",
			ver(func(r s) bool { return r.deleted != nil }),
			uint64s("ns", func(r s) uint64 { return nanosTo(deleted(r).GetTime(), r.first) }),
			changeID(func(r s) bool { return r.deleted != nil }),
			text("version", func(r s) string { return deleted(r).GetVersion() }),
			text("origin", func(r s) string { return enumName(deleted(r).GetOrigin()) }),
			text("user", func(r s) string { return deleted(r).GetUser() }),
		),
		stateDigests(),
		group("properties",
			ver(func(r s) bool { return r.properties != nil }),
			text("media_type", func(r s) string { return r.properties.GetMediaType() }),
			stringMap("user", func(r s) map[string]string { return r.properties.GetProperties() }),
		),
		group("acl",
			ver(func(r s) bool { return r.acl != nil }),
			stringMap("rights", func(r s) map[string]string { return r.acl.GetAcl() }),
		),
		group("attempt",
			ver(func(r s) bool { return r.check != nil }),
			text("verdict", func(r s) string { return enumName(r.check.GetVerdict()) }),
			uint8s("row", func(r s) int32 { return r.check.GetRow() }),
		),
		group("pass",
			ver(func(r s) bool { return r.pass }),
			passDigests(),
		),
		group("fail",
			ver(func(r s) bool { return r.fail }),
			text("finding", func(r s) string { return valueIf(r.fail, r.check.GetFinding()) }),
			uint8s("row", func(r s) int32 { return valueIf(r.fail, r.check.GetRow()) }),
		),
		group("asserted",
			ver(func(r s) bool { return r.asserted }),
			uint8s("level", func(r s) int32 { return valueIf(r.asserted, r.check.GetEvidenceLevel()) }),
		),
		simple("position", "SimpleAggregateFunction(max, UInt64)", func() *proto.ColUInt64 { return new(proto.ColUInt64) },
			func(r s) uint64 { return r.position }),
	}
}

// nanosTo returns the nanoseconds to a reported time from the millisecond of the time that orders it.
func nanosTo(reported *timestamppb.Timestamp, first time.Time) uint64 {
	return uint64(reported.AsTime().Sub(schemas.Earlier(reported, first).AsTime().Truncate(time.Millisecond)))
}

// valueIf returns v if yes is true, otherwise the zero value.
func valueIf[T any](yes bool, v T) T {
	if !yes {
		var zero T
		return zero
	}
	return v
}

// ver is the version of a group. It is zero if the row does not set the group.
func ver(sets func(stateRow) bool) column[stateRow] {
	return simple("ver", "UInt128", func() *proto.ColUInt128 { return new(proto.ColUInt128) },
		func(r stateRow) proto.UInt128 {
			if !sets(r) {
				return proto.UInt128{}
			}
			return r.at.Wide()
		})
}

func changeID(sets func(stateRow) bool) column[stateRow] {
	return simple("change", "FixedString(16)", func() *proto.ColFixedStr16 { return new(proto.ColFixedStr16) },
		func(r stateRow) [16]byte { return valueIf(sets(r), r.change) })
}

// stateDigests holds the digests of a change of the content, each with its version. Claimed ones have keys of their
// own: claimed and verified digests do not replace each other.
func stateDigests() column[stateRow] {
	return column[stateRow]{"digests", "SimpleAggregateFunction(maxMap, Map(String, String))", func() appender[stateRow] {
		c := newStringMap()
		values := new(proto.ColStr)
		c.Values = values
		var b []byte
		return appender[stateRow]{c, func(r stateRow) error {
			set, mark := r.digests.GetDigests(), version.ClaimMark
			c.keys = sortedKeys(c.keys, set)
			verified := r.digests.GetProvenance() == pb.Provenance_PROVENANCE_VERIFIED
			if verified {
				mark = ""
			}
			completion, at := schemas.IsCompletion(r.digests), r.at
			if completion { // the first one stays
				at.Offset = uint64(r.Offset)
			}
			for _, k := range c.keys {
				var err error
				if b, err = appendHex(at.Digest(b[:0], verified, completion, r.change), set[k]); err != nil {
					return fmt.Errorf("%s: %w", k, err)
				}
				c.Keys.Append(k + mark)
				values.AppendBytes(b)
			}
			c.Offsets.Append(uint64(c.Keys.Rows()))
			return nil
		}}
	}}
}

// passDigests holds the digests of the bytes that passed a check.
func passDigests() column[stateRow] {
	return column[stateRow]{"digests", "Map(String, String)", func() appender[stateRow] {
		c := newStringMap()
		values := new(proto.ColStr)
		c.Values = values
		return appender[stateRow]{c, func(r stateRow) error {
			var set map[string]string
			if r.pass {
				set = r.check.GetContent().GetDigests()
			}
			c.keys = sortedKeys(c.keys, set)
			for _, k := range c.keys {
				b, err := appendHex(nil, set[k])
				if err != nil {
					return fmt.Errorf("%s: %w", k, err)
				}
				c.Keys.Append(k)
				values.AppendBytes(b)
			}
			c.Offsets.Append(uint64(c.Keys.Rows()))
			return nil
		}}
	}}
}

// group is a tuple of columns. The merge keeps the tuple with the greatest version, which is its first column.
func group(name string, parts ...column[stateRow]) column[stateRow] {
	types := make([]string, len(parts))
	for i, p := range parts {
		types[i] = p.name + " " + p.typ
	}
	tuple := "Tuple(" + strings.Join(types, ", ") + ")"
	return column[stateRow]{name, "SimpleAggregateFunction(max, " + tuple + ")", func() appender[stateRow] {
		t := &tupleColumn{typ: proto.ColumnType(tuple)}
		appenders := make([]appender[stateRow], len(parts))
		for i, p := range parts {
			appenders[i] = p.make()
			t.parts = append(t.parts, appenders[i].data)
		}
		return appender[stateRow]{t, func(r stateRow) error {
			for i, a := range appenders {
				if err := a.append(r); err != nil {
					return fmt.Errorf("%s: %w", parts[i].name, err)
				}
			}
			return nil
		}}
	}}
}

// A tupleColumn is a Tuple of columns without a state of their own (no LowCardinality).
type tupleColumn struct {
	typ   proto.ColumnType
	parts []proto.ColInput
}

// Type returns the ClickHouse type of the column.
func (t *tupleColumn) Type() proto.ColumnType { return t.typ }

// Reset empties the parts.
func (t *tupleColumn) Reset() {
	for _, p := range t.parts {
		p.(proto.Resettable).Reset()
	}
}

// Rows returns the number of values.
func (t *tupleColumn) Rows() int { return t.parts[0].Rows() }

// EncodeColumn writes one part after the other.
func (t *tupleColumn) EncodeColumn(b *proto.Buffer) {
	for _, p := range t.parts {
		p.EncodeColumn(b)
	}
}

// WriteColumn writes one part after the other.
func (t *tupleColumn) WriteColumn(w *proto.Writer) {
	for _, p := range t.parts {
		p.WriteColumn(w)
	}
}
