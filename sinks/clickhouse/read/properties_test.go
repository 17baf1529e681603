package read_test

import (
	"maps"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/clickhousetest"
	"github.com/millrace/millrace/sinks/clickhouse/read"
)

// A propertiesCase is a history of one copy, and the record of its properties afterwards.
type propertiesCase struct {
	history []*pb.Change
	want    *pb.Record // media type, properties, and the fields about them
}

// propertiesCases returns the cases by the name of the item.
func propertiesCases() map[string]propertiesCase {
	user := map[string]string{"by": "me"}
	cases := map[string]propertiesCase{}
	add := func(name string, of func(write func(d time.Duration, f func(*pb.Change)) *pb.Change) propertiesCase) {
		cases[name] = of(func(d time.Duration, f func(*pb.Change)) *pb.Change {
			c := clickhousetest.Change(name, d)
			f(c)
			c.Id = schemas.ChangeID(c)
			return c
		})
	}
	type writer = func(d time.Duration, f func(*pb.Change)) *pb.Change
	with := func(c *pb.Change) { c.Properties = user }
	lost := func(c *pb.Change) { c.MediaType, c.PropertiesUnknown = "", true }
	bare := func(c *pb.Change) { lost(c); c.Digests, c.Provenance = nil, 0 }
	claimed := func(c *pb.Change) { c.Provenance, c.Origin = pb.Provenance_PROVENANCE_CLAIMED, pb.Origin_ORIGIN_IMPORT }
	checked := func(c *pb.Change) { lost(c); c.Origin = pb.Origin_ORIGIN_FIXITY }
	gone := func(c *pb.Change) { c.Op, c.Digests, c.Provenance = pb.Op_OP_DELETE, nil, 0 }
	set := func(value string) func(*pb.Change) {
		return func(c *pb.Change) {
			c.Op, c.Digests, c.Provenance, c.MediaType = pb.Op_OP_SET_PROPERTIES, nil, 0, "image/png"
			c.Properties = map[string]string{"by": value}
		}
	}
	of := func(c *pb.Change) *pb.Content { return &pb.Content{Version: c.GetVersion(), Digests: c.GetDigests()} }
	deleted := &pb.Record{PropertiesOf: &pb.Content{}}
	jpeg := func() *pb.Record { return &pb.Record{MediaType: "image/jpeg", Properties: user} }

	add("of the content", func(w writer) propertiesCase {
		return propertiesCase{[]*pb.Change{w(0, with)}, jpeg()}
	})
	add("of the content, which is reported again without", func(w writer) propertiesCase {
		return propertiesCase{[]*pb.Change{w(0, with), w(0, bare), w(0, checked)}, jpeg()}
	})
	add("of a deleted content", func(w writer) propertiesCase {
		return propertiesCase{[]*pb.Change{w(0, with), w(time.Hour, gone), w(2*time.Hour, lost)}, deleted}
	})
	add("of a deleted content, all of one time", func(w writer) propertiesCase {
		again := w(0, func(c *pb.Change) { lost(c); c.Version = "again" })
		return propertiesCase{[]*pb.Change{w(0, with), w(0, gone), again}, deleted}
	})
	add("set before the delete", func(w writer) propertiesCase {
		return propertiesCase{[]*pb.Change{w(0, with), w(time.Hour, set("you")), w(2*time.Hour, gone), w(3*time.Hour, lost)},
			deleted}
	})
	add("of a deleted content, and the new one is claimed to have a media type", func(w writer) propertiesCase {
		return propertiesCase{[]*pb.Change{w(0, with), w(time.Hour, gone), w(2*time.Hour, claimed)},
			&pb.Record{MediaType: "image/jpeg", PropertiesClaimed: true, PropertiesOf: &pb.Content{}}}
	})
	add("of a deleted content that is put back", func(w writer) propertiesCase {
		return propertiesCase{[]*pb.Change{w(0, with), w(time.Hour, gone), w(2*time.Hour, with)}, jpeg()}
	})
	add("set since the delete", func(w writer) propertiesCase {
		return propertiesCase{[]*pb.Change{w(0, with), w(time.Hour, gone), w(2*time.Hour, lost), w(3*time.Hour, set("you"))},
			&pb.Record{MediaType: "image/png", Properties: map[string]string{"by": "you"}}}
	})
	add("of a content that was replaced", func(w writer) propertiesCase {
		first, want := w(0, with), jpeg()
		want.PropertiesOf = of(first)
		return propertiesCase{[]*pb.Change{first, w(time.Hour, lost)}, want}
	})
	add("a media type alone, of a content that was replaced", func(w writer) propertiesCase {
		first := w(0, func(*pb.Change) {})
		return propertiesCase{[]*pb.Change{first, w(time.Hour, bare)},
			&pb.Record{MediaType: "image/jpeg", PropertiesOf: of(first)}}
	})
	add("set on a content that was replaced, and not on the first", func(w writer) propertiesCase {
		second := w(time.Hour, lost)
		return propertiesCase{[]*pb.Change{w(0, with), second, w(2*time.Hour, set("you")), w(3*time.Hour, bare)},
			&pb.Record{MediaType: "image/png", Properties: map[string]string{"by": "you"}, PropertiesOf: of(second)}}
	})
	add("set on a content on no record", func(w writer) propertiesCase {
		return propertiesCase{[]*pb.Change{w(0, set("you")), w(time.Hour, bare)},
			&pb.Record{MediaType: "image/png", Properties: map[string]string{"by": "you"}, PropertiesOf: &pb.Content{}}}
	})
	add("of a content that a check completed, and that was replaced", func(w writer) propertiesCase {
		first, want := w(0, func(c *pb.Change) { c.Digests, c.Provenance, c.MediaType = nil, 0, "" }), jpeg()
		read := w(0, func(c *pb.Change) { c.Properties, c.Origin = user, pb.Origin_ORIGIN_FIXITY })
		want.PropertiesOf = of(read)
		return propertiesCase{[]*pb.Change{first, read, w(time.Hour, bare)}, want}
	})
	add("none", func(w writer) propertiesCase {
		return propertiesCase{[]*pb.Change{w(0, func(c *pb.Change) { c.MediaType = "" })}, &pb.Record{}}
	})
	add("claimed media type", func(w writer) propertiesCase {
		return propertiesCase{[]*pb.Change{w(0, claimed)}, &pb.Record{MediaType: "image/jpeg", PropertiesClaimed: true}}
	})
	add("claimed media type, and the bytes were checked", func(w writer) propertiesCase {
		return propertiesCase{[]*pb.Change{w(0, claimed), w(0, checked)},
			&pb.Record{MediaType: "image/jpeg", PropertiesClaimed: true}}
	})
	add("claimed media type of what was stored without", func(w writer) propertiesCase {
		return propertiesCase{[]*pb.Change{w(0, func(c *pb.Change) { c.MediaType = "" }), w(0, claimed)},
			&pb.Record{MediaType: "image/jpeg", PropertiesClaimed: true}}
	})
	add("claimed properties", func(w writer) propertiesCase {
		want := jpeg()
		want.PropertiesClaimed = true
		return propertiesCase{[]*pb.Change{w(0, func(c *pb.Change) { with(c); claimed(c) })}, want}
	})
	add("claimed properties, and the bytes were checked", func(w writer) propertiesCase {
		want := jpeg()
		want.PropertiesClaimed = true
		return propertiesCase{[]*pb.Change{w(0, func(c *pb.Change) { with(c); claimed(c) }), w(0, checked)}, want}
	})
	add("claimed properties of a content that was replaced", func(w writer) propertiesCase {
		first, want := w(0, func(c *pb.Change) { with(c); claimed(c) }), jpeg()
		want.PropertiesClaimed = true
		return propertiesCase{[]*pb.Change{first, w(time.Hour, bare)}, want}
	})
	add("claimed, and then set", func(w writer) propertiesCase {
		return propertiesCase{[]*pb.Change{w(0, func(c *pb.Change) { with(c); claimed(c) }), w(time.Hour, set("you"))},
			&pb.Record{MediaType: "image/png", Properties: map[string]string{"by": "you"}}}
	})
	add("set without a media type", func(w writer) propertiesCase {
		return propertiesCase{[]*pb.Change{w(0, with), w(time.Hour, func(c *pb.Change) { set("you")(c); c.MediaType = "" })},
			&pb.Record{Properties: map[string]string{"by": "you"}}}
	})
	add("put again without a media type", func(w writer) propertiesCase {
		return propertiesCase{[]*pb.Change{w(0, with), w(time.Hour, func(c *pb.Change) { with(c); c.MediaType = "" })},
			&pb.Record{Properties: user}}
	})
	return cases
}

// The recorded properties belong to the current content, or the record has the content that they belong to, and
// whether they were only claimed. Properties of a deleted content do not belong to the next one.
func TestPropertiesOnRecord(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	cases := propertiesCases()
	names := slices.Sorted(maps.Keys(cases))
	var bodies []schemas.Body
	var copies []schemas.Copy
	for _, name := range names {
		for _, c := range cases[name].history {
			bodies = append(bodies, c)
		}
		copies = append(copies, schemas.CopyOf(cases[name].history[0]))
	}
	clickhousetest.StoreBoth(t, db, schemas.Changes, 0, bodies...)
	for _, when := range []string{"as they came", "after a merge"} {
		fresh := clickhousetest.Reader(t, db, clickhousetest.Reached, read.ReaderConfig{}.WithBatch(0, time.Millisecond))
		got, err := fresh.Fresh(t.Context(), copies)
		must(t, err)
		for i, name := range names {
			m := got[i].GetManifest()
			r := &pb.Record{MediaType: m.GetMediaType(), Properties: m.GetProperties(),
				PropertiesClaimed: m.GetPropertiesClaimed(), PropertiesOf: m.GetPropertiesOf()}
			if want := cases[name].want; !proto.Equal(r, want) {
				t.Errorf("%s, %s:\n got %v\nwant %v", name, when, r, want)
			}
		}
		view, err := clickhousetest.Strings(t.Context(), db,
			"SELECT item || ': ' || media_type || ' ' || properties['by'] FROM {db}.manifest ORDER BY item")
		must(t, err)
		for i, name := range names {
			want := cases[name].want
			if line := name + ": " + want.GetMediaType() + " " + want.GetProperties()["by"]; i >= len(view) || view[i] != line {
				t.Errorf("the manifest, %s, says %q, want %q", when, view[min(i, len(view)-1)], line)
			}
		}
		for _, table := range []string{"audit_log", "copy_state"} {
			must(t, db.Exec(t.Context(), "OPTIMIZE TABLE {db}."+table+" FINAL"))
		}
	}
}

// For a content that was reported once, the state alone shows that its properties are verified: the audit log, which
// is empty here, is not read.
func TestPropertiesOfTheState(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	c, claimed := clickhousetest.Change("held", 0), clickhousetest.Change("claimed", 0)
	checked := clickhousetest.Change("checked", 0)
	for _, c := range []*pb.Change{c, claimed, checked} {
		c.Properties = map[string]string{"by": "me"}
	}
	claimed.Provenance, checked.Origin = pb.Provenance_PROVENANCE_CLAIMED, pb.Origin_ORIGIN_FIXITY
	reported := clickhousetest.Deliver(schemas.Changes, 1<<40, c, claimed, checked)
	must(t, clickhouse.NewState(db).Store(t.Context(), reported))
	for c, want := range map[*pb.Change]bool{c: false, claimed: true, checked: false} {
		known, err := read.FreshRecords(t.Context(), db, []schemas.Copy{schemas.CopyOf(c)})
		must(t, err)
		m := known[0].Record.GetManifest()
		if m.GetPropertiesClaimed() != want || m.GetPropertiesOf() != nil || len(m.GetProperties()) != 1 {
			t.Errorf("%s: on record is %v", c.GetItem(), m)
		}
	}
}
