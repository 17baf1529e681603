package emit

import (
	"testing"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/outbox"
	"github.com/millrace/millrace/streams/storage/record"
)

func TestJudge(t *testing.T) {
	const md5a, md5b = "0cc175b9c0f1b6a831c399e269772661", "92eb5ffee6ae2fec3ad71c777531578f"
	item := func(version, md5, media string) *pb.Change {
		return &pb.Change{Item: "i", Version: version, Size: 1, Digests: map[string]string{"md5": md5}, MediaType: media}
	}
	space := func(v string) *pb.Change { return &pb.Change{Properties: map[string]string{"k": v}} }
	upper := &pb.Change{Item: "i", Version: "1", Properties: map[string]string{"K": "v"}}
	one, two, bare := item("1", md5a, ""), item("2", md5b, ""), &pb.Change{Item: "i", Version: "2", Size: 1}
	bytesA := &outbox.Content{Digests: digest.Set{"md5": md5a}, Size: 1}
	bytesB := &outbox.Content{Digests: digest.Set{"md5": md5b}, Size: 1}
	longer := &outbox.Content{Digests: digest.Set{"md5": md5b}, Size: 2}
	// With ETags as versions: one, and the same bytes at another time, with other properties, without a time.
	at := func(c *pb.Change, sec int64) *pb.Change {
		c.Time = record.Time(time.Unix(sec, 0))
		return c
	}
	oneAt, anew, other := at(item("1", md5a, ""), 5), at(item("1", md5a, ""), 6), at(item("1", md5a, "b"), 5)
	// in a condition
	named := record.Content(schemas.Copy{Item: "i"},
		storage.Object{Item: "i", Version: "1", Size: -1, PropertiesUnknown: true})
	// with unknown properties
	lost := func(c *pb.Change) *pb.Change {
		c = c.CloneVT()
		c.MediaType, c.Properties, c.PropertiesUnknown = "", nil, true
		return c
	}
	const put, del, set = pb.Op_OP_UPDATE, pb.Op_OP_DELETE, pb.Op_OP_SET_PROPERTIES
	const create, gone, acl = pb.Op_OP_CREATE_SPACE, pb.Op_OP_DELETE_SPACE, pb.Op_OP_SET_ACL
	tests := map[string]struct {
		op               pb.Op
		draft            *pb.Change
		before, observed *pb.Change
		streamed         *outbox.Content
		concurrent       bool
		etags            bool // versions are not unique
		want             verdict
	}{
		"put, absent":                 {op: put, want: notDone},
		"put, absent, concurrent":     {op: put, concurrent: true, want: undecided},
		"put, streamed bytes present": {op: put, streamed: bytesA, observed: one, want: done},
		"put, streamed bytes present, concurrent": {op: put, streamed: bytesA, observed: one, concurrent: true,
			want: done},
		"put, streamed bytes replaced the old": {op: put, before: one, streamed: bytesB, observed: two, want: done},
		"put, old version present":             {op: put, before: one, streamed: bytesB, observed: one, want: notDone},
		"put, old version present, same bytes": {op: put, before: one, streamed: bytesA, observed: one, want: notDone},
		"put, old version present, concurrent": {op: put, before: one, streamed: bytesB, observed: one,
			concurrent: true, want: notDone},
		"put, other bytes present": {op: put, before: one, streamed: bytesA, observed: two,
			want: undecided},
		"put, other length": {op: put, before: one, streamed: longer, observed: two,
			want: undecided},
		"put, stream not recorded": {op: put, before: one, observed: two, want: undecided},
		"put, nothing to compare": {op: put, before: one, streamed: bytesB, observed: bare,
			want: undecided},
		"put, old version absent": {op: put, before: one, streamed: bytesB, want: undecided},
		"ETags: put, unchanged": {etags: true, op: put, before: oneAt, streamed: bytesA,
			observed: oneAt, want: notDone},
		"ETags: put, unchanged, other bytes streamed": {etags: true, op: put, before: oneAt, streamed: bytesB,
			observed: oneAt, want: notDone},
		"ETags: put, unchanged, nothing streamed": {etags: true, op: put, before: oneAt, observed: oneAt, want: notDone},
		"ETags: put, unchanged, concurrent": {etags: true, op: put, before: oneAt, streamed: bytesB,
			observed: oneAt, concurrent: true, want: undecided},
		"ETags: put, later": {etags: true, op: put, before: oneAt, streamed: bytesA, observed: anew,
			want: done},
		"ETags: put, later, concurrent": {etags: true, op: put, before: oneAt, streamed: bytesA, observed: anew,
			concurrent: true, want: done},
		"ETags: put, later, other bytes streamed": {etags: true, op: put, before: oneAt, streamed: bytesB, observed: anew,
			want: undecided},
		"ETags: put, later, stream not recorded": {etags: true, op: put, before: oneAt, observed: anew, want: undecided},
		"ETags: put, other properties": {etags: true, op: put, before: oneAt, streamed: bytesA,
			observed: other, want: done},
		"ETags: put, properties were lost": {etags: true, op: put, before: other, streamed: bytesA,
			observed: lost(other), want: undecided},
		"ETags: put, no time before": {etags: true, op: put, before: named, streamed: bytesA, observed: anew,
			want: undecided},
		"ETags: put, no time at all": {etags: true, op: put, before: one, streamed: bytesA, observed: one,
			want: undecided},
		"ETags: put, no time, other bytes streamed": {etags: true, op: put, before: named, streamed: bytesB, observed: anew,
			want: notDone},
		"ETags: put, no time, stream not recorded": {etags: true, op: put, before: named, observed: anew, want: undecided},
		"ETags: put, no time, concurrent": {etags: true, op: put, before: named, streamed: bytesB, observed: anew,
			concurrent: true, want: undecided},
		"ETags: put, other bytes": {etags: true, op: put, before: named, streamed: bytesB,
			observed: at(item("2", md5b, ""), 6), want: done},
		"ETags: put of an absent item": {etags: true, op: put, streamed: bytesA, observed: anew, want: done},
		"ETags: delete, present":       {etags: true, op: del, before: oneAt, observed: oneAt, want: notDone},
		"ETags: delete, present, concurrent": {etags: true, op: del, before: oneAt, observed: oneAt,
			concurrent: true, want: undecided},
		"ETags: delete, put again": {etags: true, op: del, before: oneAt, observed: anew, want: undecided},
		"ETags: delete, no time":   {etags: true, op: del, before: one, observed: one, want: undecided},
		"ETags: delete, absent":    {etags: true, op: del, before: oneAt, want: done},
		"ETags: properties, written again": {etags: true, op: set, draft: item("", "", "b"), before: oneAt,
			observed: at(item("1", md5a, "b"), 6), want: done},
		"ETags: properties, the same written again": {etags: true, op: set, draft: item("", "", ""), before: oneAt,
			observed: anew, want: done},
		"ETags: properties, not set": {etags: true, op: set, draft: item("", "", "b"), before: oneAt,
			observed: oneAt, want: notDone},
		"ETags: properties, unchanged": {etags: true, op: set, draft: item("", "", "b"), before: other,
			observed: other, want: undecided},
		"ETags: properties, no time": {etags: true, op: set, draft: item("", "", "b"),
			before: item("1", md5a, "b"), observed: item("1", md5a, "b"), want: undecided},
		"delete, absent":                  {op: del, before: one, want: done},
		"delete, absent, concurrent":      {op: del, before: one, concurrent: true, want: undecided},
		"delete, present":                 {op: del, before: one, observed: one, want: notDone},
		"delete, present, concurrent":     {op: del, before: one, observed: one, concurrent: true, want: notDone},
		"delete, other version present":   {op: del, before: one, observed: two, want: undecided},
		"delete of nothing":               {op: del, want: notDone},
		"delete of nothing, item present": {op: del, observed: one, want: notDone},
		"delete of nothing, concurrent":   {op: del, concurrent: true, want: undecided},
		"properties, set": {op: set, draft: item("", "", "b"), before: one,
			observed: item("1", md5a, "b"), want: done},
		"properties, set, concurrent": {op: set, draft: item("", "", "b"), before: one,
			observed: item("1", md5a, "b"), concurrent: true, want: undecided},
		"properties, set by another version": {op: set, draft: item("", "", "b"), before: one,
			observed: item("2", md5a, "b"), want: done},
		"properties, not set": {op: set, draft: item("", "", "b"), before: one, observed: one,
			want: notDone},
		"properties, unchanged": {op: set, draft: item("", "", "b"), before: item("1", md5a, "b"),
			observed: item("1", md5a, "b"), want: undecided},
		"properties, others": {op: set, draft: item("", "", "b"), before: one,
			observed: item("1", md5a, "c"), want: undecided},
		"properties, other bytes": {op: set, draft: item("", "", "b"), before: one,
			observed: item("2", md5b, "b"), want: undecided},
		"properties, absent":    {op: set, draft: item("", "", "b"), before: one, want: undecided},
		"properties of nothing": {op: set, draft: item("", "", "b"), want: notDone},
		"properties, case-insensitive names": {op: set, draft: upper, before: &pb.Change{Item: "i", Version: "1"},
			observed: &pb.Change{Item: "i", Version: "1", Properties: map[string]string{"k": "v"}}, want: done},
		"properties, lost before, set": {op: set, draft: item("", "", "b"), before: lost(one),
			observed: item("1", md5a, "b"), want: done},
		"properties, lost before, set to none": {op: set, draft: item("", "", ""), before: lost(one), observed: one,
			want: done},
		"properties, lost before and now": {op: set, draft: item("", "", "b"), before: lost(one),
			observed: lost(one), want: notDone},
		"properties to none, lost before and now": {op: set, draft: item("", "", ""), before: lost(one),
			observed: lost(one), want: notDone},
		"properties, lost before, others now": {op: set, draft: item("", "", "b"), before: lost(one), observed: one,
			want: undecided},
		"properties to none, lost since": {op: set, draft: item("", "", ""), before: item("1", md5a, "b"),
			observed: lost(one), want: undecided},
		"space created": {op: create, draft: space("1"), observed: space("1"), want: done},
		"space created, concurrent": {op: create, draft: space("1"), observed: space("1"), concurrent: true,
			want: undecided},
		"space not created": {op: create, draft: space("1"), want: notDone},
		"space was present": {op: create, draft: space("1"), before: space("1"),
			observed: space("1"), want: notDone},
		"space created otherwise":   {op: create, draft: space("1"), observed: space("2"), want: undecided},
		"space deleted":             {op: gone, before: space("1"), want: done},
		"space deleted, concurrent": {op: gone, before: space("1"), concurrent: true, want: undecided},
		"space not deleted":         {op: gone, before: space("1"), observed: space("1"), want: notDone},
		"space was not present":     {op: gone, want: notDone},
		"space set": {op: acl, draft: space("2"), before: space("1"), observed: space("2"),
			want: done},
		"space not set": {op: acl, draft: space("2"), before: space("1"), observed: space("1"),
			want: notDone},
		"space unchanged": {op: acl, draft: space("1"), before: space("1"), observed: space("1"),
			want: undecided},
		"space set otherwise": {op: acl, draft: space("2"), before: space("1"), observed: space("3"),
			want: undecided},
		"space absent":   {op: acl, draft: space("2"), before: space("1"), want: undecided},
		"something else": {op: pb.Op_OP_READ, want: undecided},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			draft := &pb.Change{}
			if tt.draft != nil {
				draft = tt.draft.CloneVT()
			}
			draft.Op = tt.op
			can := storage.Capabilities{UniqueVersions: !tt.etags, FoldsPropertyCase: tt.draft == upper}
			in := outbox.Mutation{Draft: draft, Before: tt.before, Concurrent: tt.concurrent, Streamed: tt.streamed}
			got := judge(in, tt.observed, can)
			if got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}
