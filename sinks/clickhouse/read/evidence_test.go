package read_test

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse/clickhousetest"
	"github.com/millrace/millrace/sinks/clickhouse/read"
)

// A fresh read agrees with all columns of the audit log, also for copies with changes of the same time, or with
// different reports of one change.
func TestFreshEvidenceOfAllColumns(t *testing.T) {
	t.Parallel()
	with := func(c *pb.Change, f func(*pb.Change)) *pb.Change {
		c = proto.CloneOf(c)
		f(c)
		return c
	}
	of := func(version, md5 string) func(*pb.Change) {
		return func(c *pb.Change) {
			c.Version, c.Digests = version, map[string]string{"md5": schemas.ID(md5)}
			c.Id = schemas.ChangeID(c)
		}
	}
	gone := func(c *pb.Change) {
		c.Op, c.Digests, c.Size, c.Version = pb.Op_OP_DELETE, nil, 0, ""
		c.Id = schemas.ChangeID(c)
	}
	claims := func(md5 string) func(*pb.Change) { // a report of the same change, so with the same id
		return func(c *pb.Change) { c.Digests = map[string]string{"md5": schemas.ID(md5)} }
	}
	found := func(c *pb.Change) { c.Origin = pb.Origin_ORIGIN_SWEEP }
	tests := map[string]func(a, later *pb.Change) []*pb.Change{
		"one write": func(a, _ *pb.Change) []*pb.Change { return []*pb.Change{a} },
		"two writes": func(a, b *pb.Change) []*pb.Change {
			return []*pb.Change{with(b, of("v2", "2")), a}
		},
		"a delete": func(_, b *pb.Change) []*pb.Change {
			return []*pb.Change{with(b, gone)}
		},
		"a write, then a delete": func(a, b *pb.Change) []*pb.Change {
			return []*pb.Change{with(b, gone), a}
		},
		"a delete, then a write": func(a, b *pb.Change) []*pb.Change {
			return []*pb.Change{b, with(a, gone)}
		},
		"two writes of one time": func(a, _ *pb.Change) []*pb.Change {
			return []*pb.Change{with(a, of("v2", "2")), a}
		},
		"two writes of one time, the last seen": func(a, _ *pb.Change) []*pb.Change {
			return []*pb.Change{a, with(with(a, of("v2", "2")), found)}
		},
		"two writes of one time, later deleted": func(a, b *pb.Change) []*pb.Change {
			return []*pb.Change{with(b, gone), a, with(a, of("v2", "2"))}
		},
		"a write and a delete of one time": func(a, _ *pb.Change) []*pb.Change {
			return []*pb.Change{a, with(a, gone)}
		},
		"a delete and a write of one time": func(a, _ *pb.Change) []*pb.Change {
			return []*pb.Change{with(a, gone), a}
		},
		"reports as rich that differ": func(a, _ *pb.Change) []*pb.Change {
			return []*pb.Change{with(a, claims("1")), with(a, claims("2"))}
		},
		"reports as rich, the first is found": func(a, _ *pb.Change) []*pb.Change {
			return []*pb.Change{with(with(a, claims("1")), found), with(a, claims("2"))}
		},
		"poor reports that differ": func(a, _ *pb.Change) []*pb.Change {
			return []*pb.Change{with(a, claims("1")), a, with(a, claims("2"))}
		},
		"properties alone": func(a, _ *pb.Change) []*pb.Change {
			return []*pb.Change{with(a, func(c *pb.Change) {
				c.Op, c.Digests = pb.Op_OP_SET_PROPERTIES, nil
				c.Id = schemas.ChangeID(c)
			})}
		},
	}
	db := clickhousetest.Open(t)
	var bodies []schemas.Body
	var copies []schemas.Copy
	var names []string
	for name, of := range tests {
		for _, c := range of(clickhousetest.Change(name, 0), clickhousetest.Change(name, time.Minute)) {
			bodies = append(bodies, c)
		}
		names, copies = append(names, name), append(copies, schemas.CopyOf(clickhousetest.Change(name, 0)))
	}
	clickhousetest.StoreBoth(t, db, schemas.Changes, 0, bodies...)
	known, err := read.Records(t.Context(), db, copies)
	must(t, err)
	got, err := clickhousetest.Reader(t, db, clickhousetest.Reached,
		read.ReaderConfig{}.WithBatch(0, time.Millisecond)).Fresh(t.Context(), copies)
	must(t, err)
	for i, name := range names {
		clickhousetest.Compare(t, name, got[i].GetAudit(), clickhousetest.EvidenceOf(known[i].GetAudit()))
		if none := known[i].GetAudit().GetState() == pb.RecordState_RECORD_STATE_NONE; none != (name == "properties alone") {
			t.Errorf("%s: the audit log says %v", name, known[i].GetAudit())
		}
	}
}
