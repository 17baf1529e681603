package emit

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/need"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/mem"
	"github.com/millrace/millrace/streams/storage/outbox"
	"github.com/millrace/millrace/streams/storage/outbox/outboxtest"
)

// A witnessStore records the mutations made through it, until it is dead.
type witnessStore struct {
	*mem.Store
	dead func() bool
	done []operation
}

// An operation is a mutation that was made.
type operation struct{ op, item, version string }

var errDead = errors.New("the process is dead")

func (w *witnessStore) did(op, item, version string, err error) error {
	if err == nil {
		w.done = append(w.done, operation{op, item, version})
	}
	return err
}

func (w *witnessStore) Put(
	ctx context.Context, space, item string, r io.Reader, o storage.PutOptions,
) (storage.Object, error) {
	if w.dead() {
		return storage.Object{}, errDead
	}
	obj, err := w.Store.Put(ctx, space, item, r, o)
	return obj, w.did("PUT", item, obj.Version+" "+obj.Properties.MediaType, err)
}

func (w *witnessStore) Delete(
	ctx context.Context, space, item string, o storage.DeleteOptions,
) (storage.Deleted, error) {
	if w.dead() {
		return storage.Deleted{}, errDead
	}
	d, err := w.Store.Delete(ctx, space, item, o)
	return d, w.did("DELETE", item, d.Object.Version, err)
}

func (w *witnessStore) SetProperties(
	ctx context.Context, space, item string, p storage.Properties, c storage.Condition,
) (storage.Object, error) {
	if w.dead() {
		return storage.Object{}, errDead
	}
	o, err := w.Store.SetProperties(ctx, space, item, p, c)
	return o, w.did("SET", item, p.MediaType, err)
}

func (w *witnessStore) CreateSpace(ctx context.Context, s storage.Space) error {
	if w.dead() {
		return errDead
	}
	return w.did("CREATE_SPACE", "", s.Name, w.Store.CreateSpace(ctx, s))
}

func (w *witnessStore) DeleteSpace(ctx context.Context, space string) error {
	if w.dead() {
		return errDead
	}
	return w.did("DELETE_SPACE", "", space, w.Store.DeleteSpace(ctx, space))
}

// operationOf returns the operation that a Change reports.
func operationOf(c *pb.Change) operation {
	switch c.GetOp() {
	case pb.Op_OP_ADD, pb.Op_OP_UPDATE:
		return operation{"PUT", c.GetItem(), c.GetVersion() + " " + c.GetMediaType()}
	case pb.Op_OP_SET_PROPERTIES:
		return operation{"SET", c.GetItem(), c.GetMediaType()}
	case pb.Op_OP_DELETE:
		return operation{"DELETE", c.GetItem(), c.GetVersion()}
	}
	return operation{strings.TrimPrefix(c.GetOp().String(), "OP_"), "", c.GetSpace()}
}

// play makes mutations of all kinds, some while nothing can be published. It ignores errors: the
// witnessStore knows what was made.
func play(ctx context.Context, s *Store, out *topic) {
	putAs := func(item, content, media string) {
		_, _ = s.Put(ctx, sp, item, strings.NewReader(content), storage.PutOptions{
			Size: storage.UnknownSize, Properties: storage.Properties{MediaType: media},
		})
	}
	put := func(item, content string) { putAs(item, content, "") }
	put("a", "1")
	put("a", "2")
	putAs("a", "2", "y/1") // the same bytes, with other properties
	put("a", "2")
	_, _ = s.SetProperties(ctx, sp, "a", storage.Properties{MediaType: "x/1"}, storage.Condition{})
	unavailable := out.fail
	out.set(func(c *pb.Change) (bool, error) { return false, errUnavailable })
	put("b", "1")
	_, _ = s.Delete(ctx, sp, "a", storage.DeleteOptions{})
	put("a", "3")
	put("b", "2")
	putAs("b", "2", "y/2")
	_, _ = s.SetProperties(ctx, sp, "b", storage.Properties{MediaType: "x/2"}, storage.Condition{})
	_ = s.CreateSpace(ctx, storage.Space{Name: "new"})
	out.set(unavailable)
	put("c", "1")
	_ = s.Flush(ctx)
	_ = s.DeleteSpace(ctx, "new")
	_, _ = s.Delete(ctx, sp, "b", storage.DeleteOptions{})
}

// A mode is how a step fails.
type mode struct {
	stop  bool // and all that follow
	power bool // unsynced data is lost
	did   bool // it was done all the same
	alive bool // only the disk stops, and not the store and the publisher
	etags bool // versions of the store are those of bytes
}

// One step of the outbox fails, and kills the process, or the machine, or neither: after a restart each
// mutation that was made has one Change, in the order of its item, and no other Change exists.
func TestEveryStep(t *testing.T) {
	for name, m := range map[string]mode{
		"one fails": {}, "one fails, but was done": {did: true},
		"killed before": {stop: true}, "killed after": {stop: true, did: true},
		"one fails, power lost later": {power: true}, "one fails, but was done, power lost later": {power: true, did: true},
		"power lost before": {stop: true, power: true}, "power lost after": {stop: true, power: true, did: true},
		"disk gone, process not":       {stop: true, alive: true},
		"disk gone after, process not": {stop: true, did: true, alive: true},
		"ETags, one fails":             {etags: true}, "ETags, one fails, but was done": {etags: true, did: true},
		"ETags, killed before": {etags: true, stop: true}, "ETags, killed after": {etags: true, stop: true, did: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			random := rand.New(rand.NewPCG(1, 2))
			stride := need.Amount(4, 1, 1) // of make test, each mode begins at another step
			for step := 1 + len(name)%stride; ; step += stride {
				if !playUntil(t, step, m, random) {
					if step < 80 {
						t.Errorf("only %d steps", step)
					}
					return
				}
				if t.Failed() {
					t.Fatalf("at step %d", step)
				}
			}
		})
	}
}

// playUntil plays with one failing step, and reports whether that step was reached.
func playUntil(t *testing.T, step int, how mode, random *rand.Rand) bool {
	m, err := mem.New(mem.Config{ID: "1", Weak: mem.Weak{Versions: how.etags}})
	must(t, err)
	m.Mark("1")
	must(t, m.CreateSpace(t.Context(), storage.Space{Name: sp}))
	small := func(c *outbox.Config) { c.Limit, c.Segment = 1<<20, 900 }
	d := outboxtest.New()
	f := fileOn(t, d, small) // a first start that fails leaves nothing
	d.Fail(step, outboxtest.Failure{Stop: how.stop, Applied: how.did})
	dead := func() bool { return !how.alive && d.Stopped() }
	w := &witnessStore{Store: m, dead: dead}
	out := &topic{}
	out.set(func(*pb.Change) (bool, error) {
		if dead() {
			return false, errDead
		}
		return true, nil
	})
	cfg := Config{Account: "acme", Store: "1", Outbox: f}
	s, err := New(w, cfg, out)
	must(t, err)
	play(t.Context(), s, out)
	met := d.Failed()

	left := d.After(how.power, random)
	cfg.Outbox, err = tryFile(left, small)
	if err != nil {
		t.Fatalf("restart: %v", err)
	}
	w.dead = func() bool { return false }
	out.set(nil)
	s, err = New(w, cfg, out)
	must(t, err)
	must(t, s.Flush(t.Context()))
	check(t, w.done, out.got, cfg.Outbox.Stats(), how.power)
	if held := slices.Collect(cfg.Outbox.Held()); len(held) > 0 {
		t.Errorf("left in the outbox: %+v", held)
	}
	return met
}

// check compares the mutations that were made with the published Changes.
func check(t *testing.T, done []operation, changes []*pb.Change, st outbox.Stats, power bool) {
	t.Helper()
	var got []operation
	ids := map[string]bool{}
	for _, c := range changes {
		if !ids[c.GetId()] {
			got = append(got, operationOf(c))
		}
		ids[c.GetId()] = true
	}
	// A power failure may lose the digests of one stream; nothing else is undecided.
	if st.Rejected != 0 || st.Undecided > 1 || st.Undecided > 0 && !power {
		t.Errorf("got %+v", st)
	}
	of := func(all []operation) map[string][]operation {
		by := map[string][]operation{}
		for _, d := range all {
			by[d.item] = append(by[d.item], d)
		}
		return by
	}
	want, is := of(done), of(got)
	if len(want) != len(is) {
		t.Errorf("got changes of %d items, want of %d", len(is), len(want))
	}
	for item := range want {
		if !slices.Equal(is[item], want[item]) {
			t.Errorf("item %q:\n got %v\nwant %v\nundecided %d", item, is[item], want[item], st.Undecided)
		}
	}
}
