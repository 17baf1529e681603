package fixity

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"io"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/record"
	"github.com/millrace/millrace/streams/storage/storagetest"
)

// A client writes the copy under test once, at a point of a check or of its re-checks, and its Change is on record from
// a later point on, an hour later at the latest. Points are before each call of the store and each read of a body,
// before and after the records are read, and after each check.
type client struct {
	*world
	points, write, report int
	act                   func(*client)
	wrote, reported       time.Time         // zero: not yet
	change                *pb.CopyRecord    // the Change; nil: on record, or not written
	initial               string            // the version before; empty: none
	contents              map[string]string // of all versions
}

// point is called at each point. The clock never stands still.
func (c *client) point() {
	time.Sleep(time.Millisecond)
	c.points++
	if c.points == c.write {
		c.wrote = time.Now()
		c.act(c)
	}
	if c.change != nil && (c.points >= c.report || time.Since(c.wrote) > time.Hour) {
		c.merge(c.change)
		c.change, c.reported = nil, time.Now()
	}
}

// merge puts an event of a client on record: what the manifest, or the audit log, has of a later time stays.
func (c *client) merge(event *pb.CopyRecord) {
	next := proto.CloneOf(c.record)
	if m := event.GetManifest(); !next.GetManifest().GetTime().AsTime().After(m.GetTime().AsTime()) {
		next.Manifest = m
	}
	if a := event.GetAudit(); a != nil && !next.GetAudit().GetTime().AsTime().After(a.GetTime().AsTime()) {
		next.Audit = a
	}
	c.record = next
}

// correct puts a correction on record. In the manifest it loses ties. A completion joins the content that it completes.
func (c *client) correct(change *pb.Change) {
	if schemas.IsCompletion(change) {
		next := proto.CloneOf(c.record)
		for _, r := range []*pb.Record{next.GetManifest(), next.GetAudit()} {
			if r.GetChangeId() == change.GetId() && r.GetProvenance() != pb.Provenance_PROVENANCE_VERIFIED {
				r.Digests, r.Provenance = change.GetDigests(), change.GetProvenance()
			}
		}
		c.record = next
		return
	}
	r := &pb.Record{State: pb.RecordState_RECORD_STATE_LIVE, Digests: change.GetDigests(), Size: change.GetSize(),
		Provenance: change.GetProvenance(), Version: change.GetVersion(), Time: change.GetTime(), ChangeId: change.GetId()}
	next, at := proto.CloneOf(c.record), change.GetTime().AsTime()
	if at.After(next.GetManifest().GetTime().AsTime()) {
		next.Manifest = r
	}
	if !next.GetAudit().GetTime().AsTime().After(at) {
		next.Audit = proto.CloneOf(r)
	}
	c.record = next
}

func (c *client) writes(content string) {
	c.put(content)
	c.contents[c.object.Version] = content
	c.change = c.now()
}

// clientActs are what clients do to a copy that is present.
func clientActs() map[string]func(*client) {
	return map[string]func(*client){
		"new bytes":      func(c *client) { c.writes("mine") },
		"the same bytes": func(c *client) { c.writes(good) },
		"new properties": func(c *client) {
			p := storage.Properties{MediaType: "image/gif"}
			if _, err := c.mem.SetProperties(c.t.Context(), at.Space, at.Item, p, storage.Condition{}); err != nil {
				c.t.Fatal(err)
			}
			m := proto.CloneOf(c.record.GetManifest())
			m.MediaType, m.Properties, m.Time = p.MediaType, nil, record.Time(time.Now())
			c.change = &pb.CopyRecord{Manifest: m}
		},
		"a delete": func(c *client) {
			d, err := c.mem.Delete(c.t.Context(), at.Space, at.Item, storage.DeleteOptions{})
			must(c.t, err)
			r := &pb.Record{State: pb.RecordState_RECORD_STATE_TOMBSTONE, Time: record.Time(d.Time)}
			c.change = &pb.CopyRecord{Manifest: r, Audit: proto.CloneOf(r)}
		},
	}
}

// A pointsCase is the state of a copy before a check, and the rows that a check concludes before and after what a
// client does. An act without a row is not tried.
type pointsCase struct {
	prepare func(*world)
	row     int32
	after   map[string]int32
	damaged bool // the properties are
}

func pointsCases() map[string]pointsCase {
	with := func(properties int32) map[string]int32 {
		return map[string]int32{"new bytes": 1, "the same bytes": 1, "new properties": properties, "a delete": 11}
	}
	gone := map[string]int32{"new bytes": 1, "the same bytes": 1}
	written := map[string]int32{"new bytes": 1, "the same bytes": 1, "a delete": 11}
	return map[string]pointsCase{
		"pass":               {func(*world) {}, 1, with(1), false},
		"claimed digests":    {func(w *world) { w.claim() }, 1, with(1), false},
		"no quorum":          {func(w *world) { w.claim(); w.put(rot) }, 14, with(14), false},
		"algorithm":          {func(w *world) { w.recordSHA1() }, 1, with(1), false},
		"corrupt":            {func(w *world) { w.corrupt() }, 2, with(2), false},
		"manifest wrong":     {func(w *world) { w.record.Manifest.Digests = sums(rot) }, 5, written, false},
		"audit mismatch":     {func(w *world) { w.record.Audit.Digests = sums(rot) }, 6, written, false},
		"audit missing":      {func(w *world) { w.record.Audit = nothing().GetAudit() }, 7, written, false},
		"missing":            {func(w *world) { w.mem.Lose(at.Space, at.Item) }, 8, gone, false},
		"not captured":       {func(w *world) { w.record = nothing() }, 9, written, false},
		"update":             {func(w *world) { w.update() }, 10, written, false},
		"replaced":           {func(w *world) { w.put(rot) }, 13, with(13), false},
		"resurrected":        {func(w *world) { w.bury() }, 16, written, false},
		"altered properties": {func(w *world) { w.setAltered() }, 1, with(1), true},
	}
}

// claim makes the digests on record claimed ones.
func (w *world) claim() {
	for _, r := range []*pb.Record{w.record.Manifest, w.record.Audit} {
		r.Provenance = pb.Provenance_PROVENANCE_CLAIMED
	}
}

// update lets another program replace the item, as expected.
func (w *world) update() {
	w.settings.ExternalWrites, w.settings.CorrectUpdates = true, true
	w.put(rot)
}

// recordSHA1 puts an algorithm on record that only a second reading computes.
func (w *world) recordSHA1() {
	sum := sha1.Sum([]byte(good))
	for _, r := range []*pb.Record{w.record.Manifest, w.record.Audit} {
		r.Digests = map[string]string{digest.SHA1: hex.EncodeToString(sum[:])}
	}
}

// newClient returns a client of a copy in the state of the case, three days old.
func newClient(w *world, tt pointsCase, act func(*client)) *client {
	c := &client{world: w, act: act, contents: map[string]string{w.object.Version: good}}
	tt.prepare(w)
	time.Sleep(72 * time.Hour)
	r, o, err := w.mem.Open(w.t.Context(), at.Space, at.Item, "")
	if err == nil {
		var b []byte
		b, err = io.ReadAll(r)
		c.initial, c.contents[o.Version] = o.Version, string(b)
	}
	if err != nil && !errors.Is(err, storage.ErrNotFound) {
		w.t.Fatal(err)
	}
	w.store = storagetest.NewFaulty(pointed{w.mem, c.point})
	w.store.Before(func(context.Context, storagetest.Call) error { c.point(); return nil })
	w.fresh = func() ([]*pb.CopyRecord, error) {
		c.point()
		answer := proto.CloneOf(w.record)
		c.point()
		return []*pb.CopyRecord{answer}, nil
	}
	return c
}

// run runs a check and its re-checks, and returns the final outcome.
func (c *client) run(next *pb.FixityTask) outcome {
	c.t.Helper()
	for range 10 {
		o := c.handle(next)
		c.point()
		if o.change != nil {
			c.correct(o.change)
		}
		if o.again == nil {
			return o
		}
		time.Sleep(time.Until(o.due))
		next = o.again
	}
	c.t.Fatal("the re-checks do not end")
	return outcome{}
}

// A pointed is a store that calls point before each read of a body, of which there are several.
type pointed struct {
	storage.Store
	point func()
}

func (p pointed) Open(ctx context.Context, space, item, version string) (io.ReadCloser, storage.Object, error) {
	r, o, err := p.Store.Open(ctx, space, item, version)
	if err != nil {
		return nil, storage.Object{}, err
	}
	return pointedBody{r, p.point}, o, nil
}

type pointedBody struct {
	io.ReadCloser
	point func()
}

func (b pointedBody) Read(buf []byte) (int, error) {
	b.point()
	return b.ReadCloser.Read(buf[:min(len(buf), 10)])
}

// isOf reports whether digests are those of the bytes of a version.
func (c *client) isOf(version string, digests digest.Set) bool {
	content, ok := c.contents[version]
	return ok && digests.Compare(sums(content)) == digest.Agree
}

// follows checks that a final result, and its correction, are of the history: of the state before the client wrote (for
// faults of the records, before that was reported) if the check began before that, or of the state after it.
func (c *client) follows(o outcome, tt pointsCase, after int32) {
	c.t.Helper()
	r, row := o.result, o.result.GetRow()
	ends, ofRecords := c.wrote, row >= 5 && row <= 7
	if ofRecords {
		ends = c.reported
	}
	early := ends.IsZero() || !r.GetStarted().AsTime().After(ends)
	late := !c.wrote.IsZero() && !r.GetFinished().AsTime().Before(c.wrote)
	if !(early && row == tt.row || late && row == after) {
		c.t.Errorf("row %d (%s): the copy was so: %t, and is so: %t", row, r.GetDetail(), early, late)
	}
	version := r.GetObject().GetVersion()
	if row != 1 && row != 11 && !ofRecords && version != c.initial {
		c.t.Errorf("fault of version %q: %v", version, r)
	}
	if r.GetMetadata() == pb.Metadata_METADATA_DAMAGED && !(tt.damaged && early) {
		c.t.Errorf("properties: %s", r.GetMetadataDetail())
	}
	if r.GetContent().GetState() == stDigests && !c.isOf(version, r.GetContent().GetDigests()) {
		c.t.Errorf("version %q is %q, and found is %v", version, c.contents[version], r)
	}
	if ch := o.change; ch != nil && !c.isOf(ch.GetVersion(), ch.GetDigests()) {
		c.t.Errorf("version %q is %q, and recorded is %v", ch.GetVersion(), c.contents[ch.GetVersion()], ch)
	}
}

// clientWrites runs a check with a client that writes at one point and whose Change is on record from another one on,
// and then a check of what it left. It returns the number of points of the first one.
func (c *client) clientWrites(first *pb.FixityTask, tt pointsCase, after int32) int {
	c.t.Helper()
	c.follows(c.run(first), tt, after)
	n := c.points
	if c.write == 0 {
		return n
	}
	c.points, c.report = max(c.points, c.write-1), 0
	c.point()
	time.Sleep(72 * time.Hour)
	o := c.run(task(nil))
	if r := o.result; r.GetRow() != after || r.GetMetadata() == pb.Metadata_METADATA_DAMAGED {
		c.t.Errorf("in the end %v", r)
	}
	c.follows(o, tt, after)
	return n
}

// A client writes at every point of a check, and its Change is on record from every later one on; in "make test" from
// some. No final result names a fault that the copy never had, or other bytes than those of the version.
// Once all is on record, a check finds what the client left. That holds without re-checks too, if Changes are on record
// at once.
func TestClientWritesAtEveryPoint(t *testing.T) {
	for name, tt := range pointsCases() {
		for act, do := range clientActs() {
			after, tried := tt.after[act]
			if !tried {
				continue
			}
			for mode, hasty := range map[string]bool{"": false, "the task carries the records": false,
				"nothing is re-checked": true} {
				everyPoint(t, hasty, func(t *testing.T, write, report int) (points int) {
					in(t, func(t *testing.T, w *world) {
						c := newClient(w, tt, do)
						c.write, c.report = write, report
						first := task(nil)
						if hasty {
							w.config.Recheck, w.config.Settle = nil, 0
						} else if mode != "" {
							first = task(proto.CloneOf(w.record))
						}
						if points = c.clientWrites(first, tt, after); t.Failed() {
							t.Logf("%s, %s at point %d, on record from point %d; %s", name, act, write, report, mode)
						}
					})
					return points
				})
			}
		}
	}
}

// everyPoint calls f without a write, and then with a write at every point and a report at the same one and, unless
// atOnce is set, at later ones, until one fails.
func everyPoint(t *testing.T, atOnce bool, f func(t *testing.T, write, report int) (points int)) {
	last := f(t, 0, 0)
	for write := 1; write <= last; write++ {
		for report := write; !t.Failed(); report = min(report+need.Amount(29, 1, 1), last+1) {
			last = max(last, f(t, write, report))
			if atOnce || report > last {
				break
			}
		}
	}
}
