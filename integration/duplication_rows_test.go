package integration

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/integration/harness"
	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/internal/rowdoc"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/record"
	"github.com/millrace/millrace/streams/storage/storagetest"
)

// A rowCase is a state of two real stores and of the records, in which two commands about an item arrive in both
// orders, each twice: one of its create, and one of a delete.
type rowCase struct {
	// prepare makes the state and returns both commands.
	prepare func(w *copyWorld) (created, deleted *pb.DuplicationCommand)
	// files is set if the source must be a directory, in which other programs write.
	files bool
	// createFirst and deleteFirst are the rows and results of the four executions. Those of a delete, which the deleter
	// executes twice, follow that of the command that ordered it.
	createFirst, deleteFirst string
	// effects are the calls that change stores, with those that are refused, and changes the Changes, each id once; those
	// at a destination of the driver s3 if they are others.
	effects, changes     string
	s3Effects, s3Changes string
	content              string // of the destination at the end, in both orders
}

const (
	repairReason = pb.DuplicationReason_DUPLICATION_REASON_REPAIR
	sweepReason  = pb.DuplicationReason_DUPLICATION_REASON_SWEEP
	manualReason = pb.DuplicationReason_DUPLICATION_REASON_MANUAL
)

// rowsWithoutStores are the rows that no command ends in, or that real stores cannot show, with the reason. Cases of
// streams/duplicate have them.
func rowsWithoutStores() map[string]string {
	return map[string]string{
		"C1":  "no command ends in it; the case C2 of a source and a copy of other programs reads the bytes of both",
		"C0d": "the deleter decides it; TestOperatorDecidesAboutCopies in cmd/app has it over files",
		"C0a": "the deleter decides it; TestRemove in cmd/app has it over files",
		"C0p": "it has one store, and S3 loses no properties; TestLostPropertiesOfFiles in cmd/app has it over files",
	}
}

// rowCases returns a case for each row, named after it.
func rowCases() map[string]rowCase {
	cases := map[string]rowCase{}
	for _, part := range []map[string]rowCase{copyRows(), policyRows(), suspectRows(), deleteRows()} {
		maps.Copy(cases, part)
	}
	return cases
}

func copyRows() map[string]rowCase {
	return map[string]rowCase{
		"C5: a new item": {prepare: func(w *copyWorld) (_, _ *pb.DuplicationCommand) {
			return w.put("new"), w.earlierDelete()
		}, changes: "2 ADD", createFirst: "C5 copied, C2 in-sync ×3", deleteFirst: "C5 copied, C2 in-sync ×3",
			effects: "2 Put", content: "new"},
		"C2: copied before": {prepare: func(w *copyWorld) (_, _ *pb.DuplicationCommand) {
			c := w.put("new")
			w.run(c)
			return c, w.earlierDelete()
		}, createFirst: "C2 in-sync ×4", deleteFirst: "C2 in-sync ×4", content: "new"},
		"C2: source and copy of other programs": {files: true, prepare: func(w *copyWorld) (_, _ *pb.DuplicationCommand) {
			w.overwriteFile("1", "same")
			if w.roots["2"] != "" {
				w.overwriteFile("2", "same")
			} else {
				w.write("2", "same", storage.PutOptions{})
			}
			return w.other(manualReason), w.earlierDelete()
		}, changes: "1 ADD, 2 ADD", createFirst: "C2 in-sync ×4", deleteFirst: "C2 in-sync ×4", content: "same"},
		"C3: other properties": {prepare: func(w *copyWorld) (_, _ *pb.DuplicationCommand) {
			w.run(w.put("new"))
			return w.setProperties(), w.earlierDelete()
		}, changes: "2 ADD, 2 SET_PROPERTIES", s3Changes: "2 UPDATE", createFirst: "C3 properties-set, C2 in-sync ×3",
			deleteFirst: "C3 properties-set, C2 in-sync ×3",
			effects:     "2 SetProperties", s3Effects: "2 Put", content: "new"},
		"C2u: properties are lost": {files: true, prepare: func(w *copyWorld) (_, _ *pb.DuplicationCommand) {
			w.run(w.put("new"))
			w.overwriteFile("1", "new")
			return w.other(manualReason), w.earlierDelete()
		}, createFirst: "C2u properties-unknown ×4", deleteFirst: "C2u properties-unknown ×4", content: "new"},
		"C4: other content": {prepare: func(w *copyWorld) (_, _ *pb.DuplicationCommand) {
			w.run(w.put("old"))
			return w.put("newer"), w.earlierDelete()
		}, changes: "2 UPDATE", createFirst: "C4 copied, C2 in-sync ×3", deleteFirst: "C4 copied, C2 in-sync ×3",
			effects: "2 Put",
			content: "newer"},
		"C4n: on no record": {prepare: func(w *copyWorld) (_, _ *pb.DuplicationCommand) {
			w.write("1", "found", named)
			w.write("2", "other", named)
			c := w.other(pb.DuplicationReason_DUPLICATION_REASON_CHANGE) // of a client's Change without digests
			c.CauseOp, c.ChangeTime = pb.Op_OP_ADD, timestamppb.Now()
			return c, w.earlierDelete()
		}, changes: "2 UPDATE, 1 ADD", createFirst: "C4n copied, C2 in-sync ×3",
			deleteFirst: "C4 wait ×2, C4n copied, C2 in-sync", effects: "2 Put",
			content: "found"},
		"C4: on no record, and of no Change": {prepare: func(w *copyWorld) (_, _ *pb.DuplicationCommand) {
			w.write("1", "found", named)
			w.write("2", "other", named)
			return w.other(manualReason), w.earlierDelete()
		}, createFirst: "C4 wait ×4", deleteFirst: "C4 wait ×4", content: "other"},
		"superseded: a later command waits": {prepare: func(w *copyWorld) (_, _ *pb.DuplicationCommand) {
			c := w.put("new")
			last := proto.CloneOf(c)
			last.Id = schemas.ID("last")
			w.next = last
			return c, w.earlierDelete()
		}, createFirst: "superseded superseded ×4", deleteFirst: "superseded superseded ×4"},
	}
}

func policyRows() map[string]rowCase {
	return map[string]rowCase{
		"C12: not in the policy": {prepare: func(w *copyWorld) (_, _ *pb.DuplicationCommand) {
			w.rules.Pairs = []policy.Pair{{Source: "1", Destination: "3"}}
			return w.put("new"), w.earlierDelete()
		}, createFirst: "C12 not-in-policy ×4", deleteFirst: "C12 not-in-policy ×4"},
		"C10: too large": {prepare: func(w *copyWorld) (_, _ *pb.DuplicationCommand) {
			w.rules.MaxSize = 2
			return w.put("new"), w.earlierDelete()
		}, createFirst: "C10 excluded ×4", deleteFirst: "C10 excluded ×4"},
		"C9: no marker": {prepare: func(w *copyWorld) (_, _ *pb.DuplicationCommand) {
			w.stores["2"], w.roots["2"] = w.makers["2"](w.t, false)
			w.faulty["2"] = storagetest.NewFaulty(w.stores["2"])
			return w.put("new"), w.earlierDelete()
		}, createFirst: "C9 unavailable ×4", deleteFirst: "C9 unavailable ×4"},
		"C9: an unmounted source": {prepare: func(w *copyWorld) (_, _ *pb.DuplicationCommand) {
			c := w.put("new")
			w.run(c)
			w.stores["1"], w.roots["1"] = w.makers["1"](w.t, false)
			w.faulty["1"] = storagetest.NewFaulty(w.stores["1"])
			return c, w.earlierDelete()
		}, createFirst: "C9 unavailable ×4", deleteFirst: "C9 unavailable ×4", content: "new"},
		"C0: a corrupt copy": {prepare: func(w *copyWorld) (_, _ *pb.DuplicationCommand) {
			w.run(w.put("new"))
			failed := w.write("2", "rot", named)
			c := w.other(repairReason)
			c.Repair = &pb.RepairOrder{Incident: "i", Check: "c", Number: 1, Digests: w.records[w.at("2")].GetDigests(),
				Failed: record.Identity(failed)}
			return c, w.earlierDelete()
		}, changes: "2 UPDATE", createFirst: "C0 repaired, C0 repair-moot, C2 in-sync ×2",
			deleteFirst: "C4 copied, C2 in-sync, C0 repair-moot ×2", effects: "2 Put", content: "new"},
		"C0r: a deleted copy": {prepare: func(w *copyWorld) (_, _ *pb.DuplicationCommand) {
			w.run(w.put("new"))
			deleted := record.Delete(w.at("2"), w.remove("2"))
			w.record(record.Seal(deleted))
			c := w.other(pb.DuplicationReason_DUPLICATION_REASON_RESTORE)
			c.Restore = &pb.RestoreOrder{Digests: w.records[w.at("1")].GetDigests(), Size: 3,
				Sources: []*pb.RestoreSource{{Store: "1"}}, Deleted: deleted.GetTime()}
			return c, w.earlierDelete()
		}, changes: "2 ADD", createFirst: "C0r restored, C0r already-restored, C2 in-sync ×2",
			deleteFirst: "C5 copied, C2 in-sync, C0r already-restored ×2", effects: "2 Put", content: "new"},
	}
}

func suspectRows() map[string]rowCase {
	return map[string]rowCase{
		"C4s: a rotten source": {prepare: func(w *copyWorld) (_, _ *pb.DuplicationCommand) {
			o := w.write("1", "rot", named)
			c := record.Content(w.at("1"), o)
			sum := sha256.Sum256([]byte("new"))
			c.Digests = digest.Set{digest.SHA256: hex.EncodeToString(sum[:])}
			return w.reported(c), w.earlierDelete()
		}, createFirst: "C4s source-suspect ×4", deleteFirst: "C4s source-suspect ×4"},
		"C4s: rot below a directory": {files: true, prepare: func(w *copyWorld) (_, _ *pb.DuplicationCommand) {
			c := w.put("new")
			w.rot("1", "rot")
			return c, w.earlierDelete()
		}, effects: "2 Put ×8", createFirst: "C4s source-suspect ×4", deleteFirst: "C4s source-suspect ×4"},
		"C4r: a restored disk": {prepare: func(w *copyWorld) (_, _ *pb.DuplicationCommand) {
			w.write("1", "old", named)
			d := record.Delete(w.at("1"), storage.Deleted{Time: time.Now().Add(time.Hour)})
			d.Origin = pb.Origin_ORIGIN_CLIENT
			w.record(record.Seal(d))
			return w.other(sweepReason), w.planned(d)
		}, createFirst: "C4r resurrected ×4", deleteFirst: "C4r resurrected ×4"},
		"C4o: a disk from a snapshot": {prepare: func(w *copyWorld) (_, _ *pb.DuplicationCommand) {
			w.waited = true
			c, later := w.put("old"), time.Now().Add(time.Hour)
			o := w.write("2", "newer", storage.PutOptions{Properties: named.Properties,
				Original: storage.Original{Modified: later, Version: "v"}})
			o.Version, o.Modified = "v", later
			w.reported(record.Content(w.at("1"), o)) // the source had it, and does not have it any more
			return c, w.earlierDelete()
		}, createFirst: "C4o copy-differs ×2, C4w source-newer ×2",
			deleteFirst: "C4w source-newer ×2, C4o copy-differs ×2", content: "newer"},
		"C4w: written a moment ago": {prepare: func(w *copyWorld) (_, _ *pb.DuplicationCommand) {
			w.waited = true
			c := w.put("old")
			w.write("1", "newer", named)
			return c, w.earlierDelete()
		}, createFirst: "C4w source-newer ×4", deleteFirst: "C4w source-newer ×4"},
		"C4d: a lost copy": {prepare: func(w *copyWorld) (_, _ *pb.DuplicationCommand) {
			w.run(w.put("new"))
			w.remove("2")
			return w.other(sweepReason), w.earlierDelete()
		}, changes: "2 ADD", createFirst: "C4d was-lost, C2 in-sync ×3", deleteFirst: "C5 copied, C2 in-sync ×3",
			effects: "2 Put", content: "new"},
		"C4d: a foreign copy": {prepare: func(w *copyWorld) (_, _ *pb.DuplicationCommand) {
			w.run(w.put("new"))
			w.write("2", "other", named)
			return w.other(sweepReason), w.earlierDelete()
		}, changes: "2 UPDATE", createFirst: "C4d destination-suspect ×2, C4 copied, C2 in-sync",
			deleteFirst: "C4 copied, C2 in-sync ×3",
			effects:     "2 Put", content: "new"},
	}
}

func deleteRows() map[string]rowCase {
	// Each command orders the delete again, and so does each execution of it: they are one item of the list.
	const await = "C7b deletion-ordered, C7b awaiting-approval ×2"
	const awaits = await + ", " + await + ", " + await + ", " + await
	return map[string]rowCase{
		"C6: a lost source": {prepare: func(w *copyWorld) (_, _ *pb.DuplicationCommand) {
			w.waited = true
			c := w.put("new")
			w.run(c)
			w.remove("1")
			return c, w.earlierDelete()
		}, createFirst: "C6 source-missing ×4", deleteFirst: "C6 source-missing ×4", content: "new"},
		"C8x: both copies lost": {prepare: func(w *copyWorld) (_, _ *pb.DuplicationCommand) {
			w.waited = true
			c := w.put("new")
			w.run(c)
			w.remove("1")
			w.remove("2")
			return c, w.earlierDelete()
		}, createFirst: "C8x all-copies-missing ×4", deleteFirst: "C8x all-copies-missing ×4"},
		"C7: deleted": {prepare: func(w *copyWorld) (_, _ *pb.DuplicationCommand) {
			c := w.put("new")
			w.run(c)
			return c, w.delete()
		}, changes: "2 DELETE", createFirst: "C7 deletion-ordered, C7 deleted, C8 gone ×4",
			deleteFirst: "C7 deletion-ordered, C7 deleted, C8 gone ×4", effects: "2 Delete"},
		"C8: deleted before it was copied": {prepare: func(w *copyWorld) (_, _ *pb.DuplicationCommand) {
			return w.put("new"), w.delete()
		}, createFirst: "C8 gone ×4", deleteFirst: "C8 gone ×4"},
		"C7b: the rule keeps": {prepare: func(w *copyWorld) (_, _ *pb.DuplicationCommand) {
			c := w.put("new")
			w.run(c)
			w.rules.Deletes = policy.KeepCopy
			return c, w.delete()
		}, createFirst: "C7b kept ×4", deleteFirst: "C7b kept ×4", content: "new"},
		"C7b: by approval": {prepare: func(w *copyWorld) (_, _ *pb.DuplicationCommand) {
			c := w.put("new")
			w.run(c)
			w.rules.Deletes = policy.Approve
			return c, w.delete()
		}, createFirst: awaits, deleteFirst: awaits, content: "new"},
		"C7c: an orphan": {prepare: func(w *copyWorld) (_, _ *pb.DuplicationCommand) {
			w.write("2", "orphan", named)
			return w.other(manualReason), w.earlierDelete()
		}, changes: "2 ADD", createFirst: "C7c orphan ×2, C7d kept-newer ×2",
			deleteFirst: "C7d kept-newer ×2, C7c orphan ×2", content: "orphan"},
		"C7d: a newer copy": {prepare: func(w *copyWorld) (_, _ *pb.DuplicationCommand) {
			c := w.put("old")
			d := w.delete()
			w.write("2", "newer", storage.PutOptions{
				Original: storage.Original{Modified: time.Now().Add(time.Hour), Version: "v"},
			})
			return c, d
		}, changes: "2 ADD", createFirst: "C7d kept-newer ×4", deleteFirst: "C7d kept-newer ×4", content: "newer"},
	}
}

// TestRowsOverStores executes the commands of each row over real stores of both drivers, in both orders of arrival and
// each twice. The source is never changed, and whatever is repeated changes nothing.
func TestRowsOverStores(t *testing.T) {
	need.Integration(t)
	t.Parallel()
	t.Run("files", func(t *testing.T) {
		t.Parallel()
		checkRows(t, fileStore, fileStore, true)
	})
	for _, kind := range harness.S3Kinds() {
		t.Run(kind, func(t *testing.T) {
			need.Full(t)
			t.Parallel()
			r := newRealS3(t, harness.S3(t, harness.S3Options{Kind: kind}), false, false)
			t.Run("from files", func(t *testing.T) { checkRows(t, fileStore, r.store, true) })
			t.Run("to files", func(t *testing.T) { checkRows(t, r.store, fileStore, false) })
			t.Run("only", func(t *testing.T) {
				need.Full(t)
				checkRows(t, r.store, r.store, false)
			})
		})
	}
}

// checkRows checks all cases; fromFiles reports whether the source is a directory.
func checkRows(t *testing.T, source, destination storeMaker, fromFiles bool) {
	t.Helper()
	for name, c := range rowCases() {
		if c.files && !fromFiles {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.check(t, newCopyWorld(t, source, destination), "create first", c.createFirst)
			c.check(t, newCopyWorld(t, source, destination), "delete first", c.deleteFirst)
		})
	}
}

func (c rowCase) check(t *testing.T, w *copyWorld, order, want string) {
	t.Helper()
	created, deleted := c.prepare(w)
	commands := []*pb.DuplicationCommand{created, created, deleted, deleted}
	if order == "delete first" {
		slices.Reverse(commands)
	}
	before, source := len(w.effects()), w.content("1")
	w.changes = nil
	var ends []string
	for _, command := range commands {
		ends = append(ends, w.run(command)...)
	}
	if got := shorten(ends); got != want {
		t.Errorf("%s: got %s, want %s", order, got, want)
	}
	effects, changes := c.effects, c.changes
	if w.roots["2"] == "" && c.s3Effects != "" {
		effects, changes = c.s3Effects, c.s3Changes
	}
	if got := shorten(w.effects()[before:]); got != effects {
		t.Errorf("%s: effects are %s, want %s", order, got, effects)
	}
	if got := w.content("2"); got != c.content {
		t.Errorf("%s: the destination holds %q, want %q", order, got, c.content)
	}
	if got := w.content("1"); got != source {
		t.Errorf("%s: the source holds %q, and had %q", order, got, source)
	}
	if got := w.changed(); got != changes {
		t.Errorf("%s: changes are %s, want %s", order, got, changes)
	}
	w.sameProperties(order)
}

// Each row has a case over real stores, or a reason why it has none.
func TestRowsOverStoresAreComplete(t *testing.T) {
	rows := rowdoc.Constants(t, filepath.Join("..", "streams", "duplicate", "row.go"))
	has := map[string]bool{}
	for name := range rowCases() {
		row, _, _ := strings.Cut(name, ":")
		has[row] = true
		if rows[row] == "" {
			t.Errorf("case %q is of no row", name)
		}
	}
	without := rowsWithoutStores()
	for row := range rows {
		reason, excused := without[row]
		switch {
		case strings.HasPrefix(row, "S"): // rows about spaces
		case !has[row] && !excused:
			t.Errorf("row %s has no case", row)
		case has[row] && excused:
			t.Errorf("row %s has a case, although %s", row, reason)
		}
	}
	for row, reason := range without {
		if rows[row] == "" || reason == "" {
			t.Errorf("%q is no row, or has no reason", row)
		}
	}
}
