package fixity

import (
	"testing"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/storage"
)

var (
	recorded = storage.Properties{MediaType: "image/jpeg", User: map[string]string{"by": "me"}}
	foreign  = storage.Properties{MediaType: "image/png", User: map[string]string{"by": "me"}}
)

// setAltered records properties, lets the store report others, and returns a task of the records.
func (w *world) setAltered() *pb.FixityTask {
	w.record = w.now()
	w.record.Manifest.MediaType, w.record.Manifest.Properties = recorded.MediaType, recorded.User
	w.mem.Alter(at.Space, at.Item, foreign)
	t := task(schemas.WithoutProperties(w.record))
	if t.GetKnown().GetPropertiesHash() != schemas.PropertiesHash(recorded.MediaType, recorded.User) {
		w.t.Fatalf("the task carries %v", t.GetKnown())
	}
	return t
}

// Properties that differ from those on record are named after all re-checks, because a client's change may be under
// way. They never hide or delay a fault of the bytes.
func TestAlteredProperties(t *testing.T) {
	const (
		open    = pb.Metadata_METADATA_UNSPECIFIED
		intact  = pb.Metadata_METADATA_INTACT
		damaged = pb.Metadata_METADATA_DAMAGED
	)
	for name, tt := range map[string]struct {
		prepare func(*world)
		row     int32
		verdict pb.Verdict
		want    pb.Metadata
		checks  int // until the result is final
	}{
		"altered":                   {func(*world) {}, 1, pb.Verdict_VERDICT_PASS, damaged, 4},
		"the bytes are not read":    {func(w *world) { w.settings.NeverRead = true }, 1, pb.Verdict_VERDICT_PASS, damaged, 4},
		"the bytes rot":             {func(w *world) { w.corrupt() }, 2, pb.Verdict_VERDICT_FAIL, open, 1},
		"the records do not answer": {func(w *world) { w.withoutRecords() }, 1, pb.Verdict_VERDICT_PASS, open, 1},
		"a change is on record since": {func(w *world) {
			w.record.Manifest.MediaType = foreign.MediaType
		}, 1, pb.Verdict_VERDICT_PASS, intact, 1},
		"the same as on record": {func(w *world) {
			w.mem.Alter(at.Space, at.Item, recorded)
		}, 1, pb.Verdict_VERDICT_PASS, intact, 1},
		"set while the records are read": {func(w *world) {
			w.fresh = func() ([]*pb.CopyRecord, error) {
				w.mem.Alter(at.Space, at.Item, recorded)
				return []*pb.CopyRecord{w.record}, nil
			}
		}, 1, pb.Verdict_VERDICT_PASS, intact, 1},
		"altered while the records are read": {func(w *world) {
			w.record.Audit.Digests = nil // so that the records are read, whatever the task carries
			w.mem.Alter(at.Space, at.Item, recorded)
			w.fresh = func() ([]*pb.CopyRecord, error) {
				w.mem.Alter(at.Space, at.Item, foreign)
				w.record.Audit.Digests = w.record.GetManifest().GetDigests()
				return []*pb.CopyRecord{w.record}, nil
			}
		}, 1, pb.Verdict_VERDICT_PASS, intact, 1},
		"written by another program, as expected": {func(w *world) {
			w.settings.ExternalWrites = true
			w.mem.Date(at.Space, at.Item, w.object.Modified.Add(time.Hour))
		}, 1, pb.Verdict_VERDICT_PASS, open, 1},
		"deleted": {func(w *world) { w.mem.Lose(at.Space, at.Item) }, 8, pb.Verdict_VERDICT_MISSING, open, 4},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				w.config.Recheck = []time.Duration{time.Minute, time.Minute, time.Minute}
				next := w.setAltered()
				tt.prepare(w)
				var o outcome
				for n := 1; next != nil; n++ {
					o = w.handle(next)
					if o.again == nil != (n == tt.checks) {
						t.Fatalf("check %d: %v", n, o.result)
					}
					if next = o.again; next != nil {
						if r := o.result; r.GetMetadata() != open || tt.row == 1 && r.GetVerdict() != pb.Verdict_VERDICT_UNDECIDED {
							t.Errorf("not final, and yet %v", r)
						}
						time.Sleep(time.Until(o.due))
					}
				}
				w.is(o, tt.row, tt.verdict, true)
				r, hash := o.result, int64(0)
				if tt.want == damaged {
					hash = schemas.PropertiesHash(foreign.MediaType, foreign.User)
				}
				if r.GetMetadata() != tt.want || r.GetObject().GetPropertiesHash() != hash {
					t.Errorf("got %v %q, hash %x, want %v", r.GetMetadata(), r.GetMetadataDetail(),
						r.GetObject().GetPropertiesHash(), tt.want)
				}
				if want := `altered: media type "image/jpeg"`; tt.want == damaged && r.GetMetadataDetail() != want {
					t.Errorf("detail %q, want %q", r.GetMetadataDetail(), want)
				}
			})
		})
	}
}

// The Change of a client that was under way arrives between the checks, or somebody sets the properties back.
func TestAlteredPropertiesAreExplained(t *testing.T) {
	for name, explain := range map[string]func(*world){
		"by a change": func(w *world) { w.record.Manifest.MediaType = foreign.MediaType },
		"set back":    func(w *world) { w.mem.Alter(at.Space, at.Item, recorded) },
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				first := w.handle(w.setAltered())
				w.is(first, 1, pb.Verdict_VERDICT_UNDECIDED, false)
				explain(w)
				time.Sleep(time.Until(first.due))
				o := w.handle(first.again)
				w.is(o, 1, pb.Verdict_VERDICT_PASS, true)
				if o.result.GetMetadata() != pb.Metadata_METADATA_INTACT {
					t.Errorf("got %v", o.result)
				}
			})
		})
	}
}

// A correction of the digests on record does not put altered properties on record.
func TestCorrectionsKeepTheProperties(t *testing.T) {
	for name, prepare := range map[string]func(*world, *pb.FixityTask){
		"row 5": func(w *world, _ *pb.FixityTask) { w.record.Manifest.Digests = sums(rot) },
		"row 6": func(w *world, _ *pb.FixityTask) { w.record.Audit.Digests = sums(rot) },
		"row 7": func(w *world, _ *pb.FixityTask) { w.record.Audit = nothing().GetAudit() },
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				next := w.setAltered()
				prepare(w, next)
				next.Known = nil
				first := w.handle(next)
				if first.change != nil {
					t.Errorf("the first check corrects: %v", first.change) // a change of a client may be under way
				}
				time.Sleep(time.Until(first.due))
				o := w.last(first.again)
				if o.change.GetMediaType() != recorded.MediaType || o.change.GetProperties()["by"] != "me" {
					t.Errorf("row %d: the correction is %v", o.result.GetRow(), o.change)
				}
			})
		})
	}
}

// Properties that were compared with nothing are not intact.
func TestUncomparedPropertiesAreNotIntact(t *testing.T) {
	for name, prepare := range map[string]func(*world, *pb.FixityTask){
		"no records, which do not answer": func(w *world, next *pb.FixityTask) { next.Known = nil; w.withoutRecords() },
		"of which nothing is known": func(_ *world, next *pb.FixityTask) {
			next.Known.PropertiesHash = schemas.UnknownProperties
		},
		"of a content that was put again": func(w *world, next *pb.FixityTask) {
			w.record.Manifest.PropertiesOf = &pb.Content{Version: "0", Digests: w.record.GetManifest().GetDigests()}
			next.Known = schemas.WithoutProperties(w.record)
		},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				next := w.setAltered()
				prepare(w, next)
				if r := w.handle(next).result; r.GetMetadata() != pb.Metadata_METADATA_UNSPECIFIED {
					t.Errorf("got %v", r)
				}
			})
		})
	}
}
