package app

import (
	"crypto/md5" //nolint:gosec // a digest, not a secret
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/cmd/precondition"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/held"
	"github.com/millrace/millrace/streams/incident"
	"github.com/millrace/millrace/streams/restore"
	"github.com/millrace/millrace/streams/storage/record"
)

// Nothing is ordered if the source takes nothing, or keeps other content than its copy would get. The error names the
// stores, and the command that writes the content to a directory.
func TestRefusedRestores(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		edit func(s *config.Store, root string)
		why  string
	}{
		"a plain tree": {func(s *config.Store, root string) {
			s.Layout, s.Expect, s.Repair, s.Root = "plain", "photos", "off", root
		}, "store 1: it is only read (layout: plain)"},
		"repair off": {func(s *config.Store, _ string) { s.Repair = "off" }, "store 1: it has repair: off"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			tt.edit(&s.cfg.Accounts[0].Stores[0], t.TempDir())
			x := s.archive(schemas.RoleSink)
			before := time.Now().Add(-time.Hour).Truncate(time.Millisecond)
			x.report("gone", "gone", pb.Op_OP_ADD, before)
			x.report("gone", "gone", pb.Op_OP_DELETE, time.Now())
			x.put("gone", "gone", nil, "2")
			x.report("replaced", "plain", pb.Op_OP_ADD, before)
			x.write("replaced", "encrypted")
			x.put("replaced", "plain", func(c *pb.Change) { c.Time = timestamppb.New(before) }, "2")
			x.put("replaced", "encrypted", nil, "2")
			x.write("good", "good")
			x.put("good", "damaged", nil, "2")

			at := func(r *RestoreRequest) { r.At = before }
			now := func(r *RestoreRequest) { r.At = time.Now() }
			prefix := func(r *RestoreRequest) { r.Prefix = true }
			copyOnly := func(r *RestoreRequest) { r.Store = "2" }
			const keeps = "store 2: its source, store 1, keeps other content"
			for name, c := range map[string]struct {
				request RestoreRequest
				refused string // by which store, or empty
				copies  map[restore.Verdict]int64
			}{
				"a deleted item": {x.request("gone"), tt.why,
					map[restore.Verdict]int64{restore.Refused: 1, restore.Already: 1}},
				"a replaced item": {x.request("replaced", at), tt.why + `: "replaced"; ` + keeps + `: "replaced": `,
					map[restore.Verdict]int64{restore.Refused: 2}},
				"the space": {x.request("", prefix, at), tt.why,
					map[restore.Verdict]int64{restore.Refused: 3, restore.Already: 1, restore.NotThen: 2}},
				"a replaced copy": {x.request("replaced", at, copyOnly), keeps,
					map[restore.Verdict]int64{restore.Refused: 1}},
				"a damaged copy, of a source that has it": {x.request("good", now), "",
					map[restore.Verdict]int64{restore.Ordered: 1, restore.Already: 1}},
			} {
				c.request.DryRun = true
				report, err := x.app.Restore(t.Context(), c.request)
				if !reflect.DeepEqual(report.Copies, c.copies) || (err != nil) != (c.refused != "") {
					t.Errorf("%s, dry run: got %v, %v, want %v", name, report.Copies, err, c.copies)
				}
				if c.refused == "" {
					continue
				}
				export := fmt.Sprintf("'millrace object export %q DIR --at ", "acme/photos/"+c.request.Item)
				for _, c.request.DryRun = range []bool{true, false} {
					report, err = x.app.Restore(t.Context(), c.request)
					if !errors.Is(err, precondition.Err) || !strings.Contains(err.Error(), c.refused) ||
						!strings.Contains(err.Error(), export) {
						t.Errorf("%s: got %v, want a failed precondition with %q and %q", name, err, c.refused, export)
					}
				}
				if len(report.Copies) > 0 {
					t.Errorf("%s: got %v, want nothing chosen", name, report.Copies)
				}
			}
			x.refuseUnwritable(tt.why)
		})
	}
}

// refuseUnwritable refuses a list of deletes whose source takes nothing.
func (x *archive) refuseUnwritable(why string) {
	x.t.Helper()
	x.publish(schemas.Message{Topic: schemas.DuplicationResults, Body: &pb.DuplicationResult{Id: schemas.NewID(),
		Command: schemas.NewID(), Account: "acme", Space: "photos", Item: "gone", SourceStore: "1", DestinationStore: "2",
		Reason: pb.DuplicationReason_DUPLICATION_REASON_CHANGE, Decision: "C7", Result: "awaiting-approval",
		List: "brake-1", Outcome: pb.Outcome_OUTCOME_HANDED_ON, Finished: timestamppb.Now()}})
	list := ListOfKey(schemas.Key("acme", "2", "photos", "", incident.DeletesHeld, "brake-1"))
	x.untilTrue("put it on the list", func() bool { return x.progress(list).Items == 1 })
	_, _, err := x.app.DecideList(x.t.Context(), list, Actor{Who: "ann"}, held.ActionRefuse)
	const export = `'millrace object export "acme/photos" DIR --at `
	if !errors.Is(err, precondition.Err) || !strings.Contains(err.Error(), why) || !strings.Contains(err.Error(), export) {
		x.t.Errorf("refuse: got %v, want a failed precondition with %q and %q", err, why, export)
	}
}

// report publishes a Change of a content in store 1.
func (x *archive) report(item, text string, op pb.Op, at time.Time) {
	x.t.Helper()
	x.publish(schemas.Message{Topic: schemas.Changes, Body: record.Seal(&pb.Change{Op: op, Account: "acme", Store: "1",
		Space: "photos", Item: item, Version: "reported", Size: int64(len(text)), Digests: md5Of(text),
		Provenance: pb.Provenance_PROVENANCE_VERIFIED, Time: timestamppb.New(at), Origin: pb.Origin_ORIGIN_CLIENT})})
}

// write writes an item into the directory of store 1, and publishes its Change.
func (x *archive) write(item, text string) {
	x.t.Helper()
	x.must(os.WriteFile(x.path(0, item), []byte(text), 0o600))
	o, err := x.store("1").Stat(x.t.Context(), "photos", item)
	x.must(err)
	c := record.Content(schemas.Copy{Account: "acme", Store: "1", Space: "photos", Item: item}, o)
	c.Digests, c.Provenance, c.Origin = md5Of(text), pb.Provenance_PROVENANCE_VERIFIED, pb.Origin_ORIGIN_CLIENT
	x.publish(schemas.Message{Topic: schemas.Changes, Body: record.Seal(c)})
}

func md5Of(text string) map[string]string {
	sum := md5.Sum([]byte(text)) //nolint:gosec // a digest, not a secret
	return map[string]string{"md5": hex.EncodeToString(sum[:])}
}
