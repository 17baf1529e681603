package duplicate

import (
	"errors"
	"maps"
	"testing"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/storagetest"
)

// spaceRecords are the audit records of spaces.
type spaceRecords map[schemas.Copy]*pb.Record

func (r spaceRecords) of(c schemas.Copy) *pb.Record {
	if at := r[c]; at != nil {
		return at
	}
	return &pb.Record{State: none}
}

// add makes c the record of its space, unless a later Change was.
func (r spaceRecords) add(c *pb.Change) {
	at := schemas.CopyOf(c)
	if r.of(at).GetTime().AsTime().After(c.GetTime().AsTime()) {
		return
	}
	r[at] = &pb.Record{State: live, Time: c.GetTime(), Origin: c.GetOrigin()}
	if c.GetOp() == pb.Op_OP_DELETE_SPACE {
		r[at].State = tomb
	}
}

// ofSpace returns a client's Change of the space of store 1 at an hour, in the journal.
func (w *world) ofSpace(op pb.Op, h int) *pb.Change {
	return w.reported(&pb.Change{Op: op, Account: "acme", Store: "1", Space: "photos", Time: ms(hour(h))})
}

func spaceCommand(c *pb.Change) *pb.DuplicationCommand {
	about := command(c)
	about.Item = ""
	return about
}

// has checks a space in store 2: nil is none.
func (w *world) has(want *storage.Space) {
	w.t.Helper()
	got, err := w.mem["2"].StatSpace(w.t.Context(), "photos")
	if want == nil {
		if !errors.Is(err, storage.ErrNoSpace) {
			w.t.Errorf("space: got %+v, %v, want none", got, err)
		}
		return
	}
	if err != nil || !maps.Equal(got.Properties, want.Properties) || !maps.Equal(got.ACL, want.ACL) {
		w.t.Errorf("space: got %+v, %v, want %+v", got, err, want)
	}
}

var (
	first  = storage.Space{Name: "photos", Properties: map[string]string{"of": "ann"}, ACL: map[string]string{"all": "r"}}
	second = storage.Space{Name: "photos", Properties: map[string]string{"of": "bob"}, ACL: map[string]string{"all": "w"}}
)

// An execution that dies between its write and its messages, or whose store fails after it wrote, leaves a hole in the
// audit log that the next one fills, under the same id if the op is the same. A third publishes nothing.
func TestSpaceIsWrittenAndReported(t *testing.T) {
	acl := storage.Space{Name: "photos", Properties: map[string]string{"k": "v"}, ACL: map[string]string{"all": "r"}}
	for name, tt := range map[string]struct {
		op     pb.Op // of the source's Change
		space  storage.Space
		absent bool // the destination lacks the space
		method string
		want   pb.Op
		result string
	}{
		"created": {pb.Op_OP_CREATE_SPACE, first, true, "CreateSpace", pb.Op_OP_CREATE_SPACE, "created"},
		"properties": {pb.Op_OP_SET_SPACE_PROPERTIES, first, false, "SetSpace", pb.Op_OP_SET_SPACE_PROPERTIES,
			"properties-set"},
		"ACL only": {pb.Op_OP_SET_ACL, acl, false, "SetSpace", pb.Op_OP_SET_ACL, "properties-set"},
	} {
		for _, fault := range []string{"none", "killed", "failed, not persisted", "failed, but persisted"} {
			t.Run(name+", "+fault, func(t *testing.T) {
				w := newWorld(t)
				w.ofSpace(pb.Op_OP_CREATE_SPACE, 1)
				if tt.absent {
					w.must(w.mem["2"].DeleteSpace(t.Context(), "photos"))
				} else {
					w.journal.spaces[at("2").WithoutItem()] = spaceRecord(live, 1, pb.Origin_ORIGIN_DUPLICATION)
				}
				w.must(w.mem["1"].SetSpace(t.Context(), tt.space))
				c := spaceCommand(w.ofSpace(tt.op, 5))
				wrote := true
				switch fault {
				case "killed":
					_, err := w.crash(c, 0)
					w.must(err)
				case "failed, not persisted", "failed, but persisted":
					wrote = fault == "failed, but persisted"
					w.faulty["2"].Script(storagetest.Fault{Method: tt.method, Applied: wrote})
					if _, err := w.run(c, 0); retry.ClassOf(err) != retry.Transient {
						t.Fatalf("got %v", err)
					}
				default:
					wrote = false
				}
				got := w.mustRun(c)
				if wrote {
					got.ends("S1b", "in-sync", nothing, 1, 0)
				} else {
					got.ends(map[bool]string{true: "S1", false: "S1b"}[tt.absent], tt.result, done, 1, 0)
				}
				w.has(&tt.space)
				change := got.changes[0]
				if want := tt.want; change.GetOp() != want && !(wrote && change.GetOp() == pb.Op_OP_SET_SPACE_PROPERTIES) ||
					change.GetStore() != "2" || change.GetOrigin() != pb.Origin_ORIGIN_DUPLICATION ||
					!maps.Equal(change.GetProperties(), tt.space.Properties) || !maps.Equal(change.GetAcl(), tt.space.ACL) ||
					!change.GetTime().AsTime().Equal(hour(9)) && !change.GetTime().AsTime().Equal(hour(5)) {
					t.Errorf("change: %v", change)
				}
				w.mustRun(c).ends("S1b", "in-sync", nothing, 0, 0)
				w.untouched("1")
			})
		}
	}
}

// A store that cannot keep what the source has keeps what it has, and the result says so.
func TestSpaceThatTheStoreCannotKeep(t *testing.T) {
	for _, err := range []error{storage.ErrUnsupported, storage.ErrTooLarge} {
		w := newWorld(t)
		w.must(w.mem["1"].SetSpace(t.Context(), first))
		w.faulty["2"].Script(storagetest.Fault{Method: "SetSpace", Err: err})
		got := w.mustRun(spaceCommand(w.ofSpace(pb.Op_OP_SET_ACL, 5)))
		got.ends("S1b", "properties-unsupported", nothing, 0, 0)
		if got.result.GetDetail() == "" {
			t.Error("no detail")
		}
	}
}

// Two executions at once: the one that read older properties writes last, observes the source again and sets the newer.
func TestSpaceIsSetByTwoAtOnce(t *testing.T) {
	w := newWorld(t)
	w.must(w.mem["1"].SetSpace(t.Context(), first))
	older := spaceCommand(w.ofSpace(pb.Op_OP_SET_SPACE_PROPERTIES, 5))
	w.once("2", "SetSpace", func() {
		w.must(w.mem["1"].SetSpace(t.Context(), second))
		w.mustRun(spaceCommand(w.ofSpace(pb.Op_OP_SET_SPACE_PROPERTIES, 6))).ends("S1b", "properties-set", done, 1, 0)
		w.has(&second)
	})
	got := w.mustRun(older)
	got.ends("S1b", "properties-set", done, 1, 0)
	w.has(&second)
	if p := got.changes[0].GetProperties(); !maps.Equal(p, second.Properties) {
		t.Errorf("the Change has %v", p)
	}
}

// A space that the source creates again, or deletes, while the destination's is made or set.
func TestSpaceOfTheSourceChangesMeanwhile(t *testing.T) {
	w := newWorld(t)
	w.must(w.mem["2"].DeleteSpace(t.Context(), "photos"))
	w.once("2", "CreateSpace", func() {
		w.must(w.mem["1"].DeleteSpace(t.Context(), "photos"))
		w.ofSpace(pb.Op_OP_DELETE_SPACE, 6)
	})
	got := w.mustRun(spaceCommand(w.ofSpace(pb.Op_OP_CREATE_SPACE, 5)))
	got.ends("S1", "created", done, 1, 0)
	// The command of the delete may have been executed before the space was visible.
	for _, c := range []*pb.DuplicationCommand{spaceCommand(w.ofSpace(pb.Op_OP_DELETE_SPACE, 6)), got.again[0]} {
		got := w.mustRun(c)
		got.ends("S2", "deletion-ordered", handedOn, 0, 0)
		if len(got.orders) != 1 || got.orders[0].GetItem() != "" || !got.orders[0].GetDeleted().AsTime().Equal(hour(6)) {
			t.Errorf("orders: %v", got.orders)
		}
	}
}

// Commands of a create and a delete, in both orders and each twice, end in the source's state.
func TestSpaceCommandsInAnyOrder(t *testing.T) {
	for _, last := range []pb.Op{pb.Op_OP_CREATE_SPACE, pb.Op_OP_DELETE_SPACE} {
		for _, order := range [][2]int{{0, 1}, {1, 0}} {
			w := newWorld(t)
			ops := []pb.Op{pb.Op_OP_DELETE_SPACE, pb.Op_OP_CREATE_SPACE}
			if last == pb.Op_OP_DELETE_SPACE {
				ops = []pb.Op{pb.Op_OP_CREATE_SPACE, pb.Op_OP_DELETE_SPACE}
				w.must(w.mem["1"].DeleteSpace(t.Context(), "photos"))
			}
			commands := [2]*pb.DuplicationCommand{spaceCommand(w.ofSpace(ops[0], 5)), spaceCommand(w.ofSpace(ops[1], 6))}
			orders := map[string]bool{}
			for range 2 {
				for _, i := range order {
					for _, o := range w.mustRun(commands[i]).orders {
						orders[o.GetId()] = true
					}
				}
			}
			if want := map[pb.Op]int{pb.Op_OP_DELETE_SPACE: 2}[last]; len(orders) != want { // one for each command
				t.Errorf("last %s, order %v: %d deletes were ordered, want %d", last, order, len(orders), want)
			}
			w.has(&storage.Space{Properties: map[string]string{"k": "v"}})
		}
	}
}

// While the destination holds items the command waits, and then ends.
func TestSpaceWaitsForItsItems(t *testing.T) {
	w := newWorld(t)
	w.put("2", "hello")
	w.must(w.mem["1"].DeleteSpace(t.Context(), "photos"))
	c := spaceCommand(w.ofSpace(pb.Op_OP_DELETE_SPACE, 6))
	for n := range intervals {
		_, err := w.crash(c, n)
		if retry.ClassOf(err) != retry.ClassWait || retry.CauseOf(err) != waitNotEmpty {
			t.Fatalf("wait %d: %v", n, err)
		}
		if in := time.Until(retry.Due(err)); in > intervals[n] || in < intervals[n]-time.Minute/2 {
			t.Errorf("wait %d: due in %s, want %s", n, in, intervals[n])
		}
	}
	got, err := w.crash(c, len(intervals))
	w.must(err)
	got.ends("S3", "not-empty", nothing, 0, 0)
	w.remove("2")
	w.mustRun(c).ends("S2", "deletion-ordered", handedOn, 0, 0)
}

// A delete that needs approval is marked so for the deleter.
func TestSpaceDeleteThatNeedsApproval(t *testing.T) {
	w := newWorld(t)
	w.rules.Deletes = policy.Approve
	w.must(w.mem["1"].DeleteSpace(t.Context(), "photos"))
	got := w.mustRun(spaceCommand(w.ofSpace(pb.Op_OP_DELETE_SPACE, 6)))
	got.ends("S2", "deletion-ordered", handedOn, 0, 0)
	if len(got.orders) != 1 || !got.orders[0].GetNeedsApproval() {
		t.Errorf("orders: %v", got.orders)
	}
	w.untouched("2")
}
