package emit

import (
	"context"
	"errors"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/mem"
	"github.com/millrace/millrace/streams/storage/outbox"
	"github.com/millrace/millrace/streams/storage/outbox/outboxtest"
	"github.com/millrace/millrace/streams/storage/storagetest"
)

// A topic records the published Changes; fail decides for each whether it is published and which error is
// returned.
type topic struct {
	mu   sync.Mutex
	got  []*pb.Change
	fail func(c *pb.Change) (published bool, err error)
}

func (p *topic) Publish(_ context.Context, messages ...schemas.Message) error {
	c := messages[0].Body.(*pb.Change)
	p.mu.Lock()
	defer p.mu.Unlock()
	published, err := true, error(nil)
	if p.fail != nil {
		published, err = p.fail(c)
	}
	if published {
		p.got = append(p.got, proto.CloneOf(c))
	}
	return err
}

// take returns the Changes published since the last take.
func (p *topic) take() []*pb.Change {
	p.mu.Lock()
	defer p.mu.Unlock()
	got := p.got
	p.got = nil
	return got
}

func (p *topic) set(fail func(c *pb.Change) (bool, error)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fail = fail
}

type world struct {
	t         *testing.T
	s         *Store
	mem       *mem.Store
	faulty    *storagetest.Faulty
	topic     *topic
	outbox    *outbox.File
	intents   atomic.Int64 // recorded in outbox
	undecided []outbox.Mutation
}

// A countingOutbox counts the intents of a world, and records the mutations of all reports.
type countingOutbox struct {
	*outbox.File
	w *world
}

// Claim allows several stores, one after the other.
func (o countingOutbox) Claim(string) error { return nil }

func (o countingOutbox) Intend(ctx context.Context, in outbox.Mutation) (outbox.Ticket, error) {
	o.w.intents.Add(1)
	return o.File.Intend(ctx, in)
}

func (o countingOutbox) Report(m outbox.Mutation, rejected error) error {
	o.w.undecided = append(o.w.undecided, m)
	return o.File.Report(m, rejected)
}

const sp = "photos"

func newWorld(t *testing.T) *world {
	t.Helper()
	return durable(t, outboxtest.New(), memory(t))
}

func (w *world) put(content string, edit ...func(*storage.PutOptions)) (storage.Object, error) {
	o := storage.PutOptions{Size: storage.UnknownSize}
	for _, e := range edit {
		e(&o)
	}
	return w.s.Put(WithUser(w.t.Context(), "ann"), sp, "a", strings.NewReader(content), o)
}

// pending returns the content of the outbox.
func (w *world) pending() []outbox.Mutation { return slices.Collect(w.outbox.Held()) }

func ops(changes []*pb.Change) (ops []string) {
	for _, c := range changes {
		ops = append(ops, strings.TrimPrefix(c.GetOp().String(), "OP_"))
	}
	return ops
}

// wantOps compares the ops published since the last call, and the number of mutations left in the outbox.
func (w *world) wantOps(left int, want ...string) []*pb.Change {
	w.t.Helper()
	got := w.topic.take()
	if !slices.Equal(ops(got), want) {
		w.t.Fatalf("got changes %v, want %v", ops(got), want)
	}
	if p := w.pending(); len(p) != left {
		w.t.Fatalf("got %d in the outbox, want %d: %+v", len(p), left, p)
	}
	for _, c := range got {
		if err := schemas.Validate(c); err != nil || c.GetId() != schemas.ChangeID(c) {
			w.t.Errorf("published %v, whose id is to be %s: %v", c, schemas.ChangeID(c), err)
		}
	}
	return got
}

func TestContract(t *testing.T) {
	inner := map[storage.Store]*mem.Store{}
	storagetest.Run(t, func(t *testing.T) storage.Store {
		m, err := mem.New(mem.Config{ID: "1"})
		must(t, err)
		out := &topic{}
		s, err := New(m, Config{Account: "acme", Store: "1", Unmarked: true, Outbox: fileOn(t, outboxtest.New())}, out)
		must(t, err)
		t.Cleanup(func() {
			for _, c := range out.take() {
				if err := schemas.Validate(c); err != nil {
					t.Errorf("published %v: %v", c, err)
				}
			}
			for h := range s.cfg.Outbox.Held() {
				t.Errorf("left in the outbox: %+v", h)
			}
		})
		inner[s] = m
		return s
	}, storagetest.WithKept(func(t *testing.T, s storage.Store, space, item string) (all [][]byte) {
		for _, k := range inner[s].AllKept() {
			if k.Space == space && k.Object.Item == item {
				all = append(all, k.Bytes)
			}
		}
		return all
	}))
}

// The decorator passes on the NotApplied marks of the inner store.
func TestMarks(t *testing.T) {
	storagetest.RunMarks(t, func(t *testing.T) (storage.Store, *storagetest.Faulty) {
		w := newWorld(t)
		must(t, w.mem.DeleteSpace(t.Context(), sp))
		return w.s, w.faulty
	})
}

// Every method of storage.Store emits a Change or is listed as one that does not.
func TestEveryMethod(t *testing.T) {
	ctx := t.Context()
	quiet := map[string]func(*Store) error{
		"Capabilities": func(s *Store) error { s.Capabilities(); return nil },
		"Spaces": func(s *Store) error {
			for range s.Spaces(ctx) {
			}
			return nil
		},
		"StatSpace": func(s *Store) error { _, err := s.StatSpace(ctx, sp); return err },
		"List": func(s *Store) error {
			for range s.List(ctx, sp, "") {
			}
			return nil
		},
		"Stat":        func(s *Store) error { _, err := s.Stat(ctx, sp, "a"); return err },
		"Open":        func(s *Store) error { r, _, err := s.Open(ctx, sp, "a", ""); r.Close(); return err },
		"Marker":      func(s *Store) error { return s.Marker(ctx) },
		"WriteMarker": func(s *Store) error { return s.WriteMarker(ctx) },
	}
	emitting := map[string]func(*Store) error{
		"CreateSpace": func(s *Store) error { return s.CreateSpace(ctx, storage.Space{Name: "new"}) },
		"SetSpace":    func(s *Store) error { return s.SetSpace(ctx, storage.Space{Name: sp}) },
		"DeleteSpace": func(s *Store) error {
			if err := s.inner.CreateSpace(ctx, storage.Space{Name: "old"}); err != nil {
				return err
			}
			return s.DeleteSpace(ctx, "old")
		},
		"Put": func(s *Store) error {
			_, err := s.Put(ctx, sp, "b", strings.NewReader("x"), storage.PutOptions{Size: 1})
			return err
		},
		"SetProperties": func(s *Store) error {
			_, err := s.SetProperties(ctx, sp, "a", storage.Properties{}, storage.Condition{})
			return err
		},
		"Delete": func(s *Store) error { _, err := s.Delete(ctx, sp, "a", storage.DeleteOptions{}); return err },
	}
	store := reflect.TypeFor[storage.Store]()
	for i := range store.NumMethod() {
		name := store.Method(i).Name
		call, want := quiet[name], 0
		if f, ok := emitting[name]; ok {
			call, want = f, 1
		}
		t.Run(name, func(t *testing.T) {
			if call == nil {
				t.Fatalf("method %s is missing from both tables", name)
			}
			w := newWorld(t)
			if _, err := w.mem.Put(ctx, sp, "a", strings.NewReader("x"), storage.PutOptions{Size: 1}); err != nil {
				t.Fatal(err)
			}
			must(t, call(w.s))
			if got := w.topic.take(); len(got) != want {
				t.Errorf("got changes %v, want %d", ops(got), want)
			}
			if w.faulty.Count(name) == 0 && name != "Capabilities" {
				t.Error("the inner store was not called")
			}
		})
	}
	if len(quiet)+len(emitting) != store.NumMethod() {
		t.Error("a table lists an unknown method")
	}
}

func TestChanges(t *testing.T) {
	w := newWorld(t)
	ctx := WithUser(t.Context(), "ann")
	props := storage.Properties{MediaType: "image/png", User: map[string]string{"k": "v"}}
	one, err := w.put("one", func(o *storage.PutOptions) {
		o.Properties = props
		o.Digests = digest.Set{digest.MD5: "f97c5d29941bfb1b2fdab0874906ab82", "crc0": "0011223344556677"}
	})
	must(t, err)
	two, err := w.put("two", func(o *storage.PutOptions) { o.Version = one.Version })
	must(t, err)
	set, err := w.s.SetProperties(ctx, sp, "a", props, storage.Condition{})
	must(t, err)
	gone, err := w.s.Delete(ctx, sp, "a", storage.DeleteOptions{})
	must(t, err)
	got := w.wantOps(0, "ADD", "UPDATE", "SET_PROPERTIES", "DELETE")
	sequence := ""
	for i, c := range got {
		if c.GetSequence() <= sequence {
			t.Errorf("change %d has sequence %q after %q", i, c.GetSequence(), sequence)
		}
		sequence = c.GetSequence()
		c.Sequence, c.Id = "", ""
	}
	base := func(op pb.Op, o storage.Object, at time.Time) *pb.Change {
		return &pb.Change{
			Op: op, Account: "acme", Store: "1", Space: sp, Item: "a", Version: o.Version, Size: 3,
			Digests: o.Digests.Only(digest.MD5, digest.SHA256), Provenance: pb.Provenance_PROVENANCE_VERIFIED,
			MediaType: o.Properties.MediaType, Properties: o.Properties.User,
			Time: timestamppb.New(at), User: "ann", Agent: "test", Origin: pb.Origin_ORIGIN_CLIENT,
		}
	}
	deleted := base(pb.Op_OP_DELETE, gone.Object, gone.Time)
	deleted.MediaType, deleted.Properties = "", nil
	want := []*pb.Change{
		base(pb.Op_OP_ADD, one, one.Modified), base(pb.Op_OP_UPDATE, two, two.Modified),
		base(pb.Op_OP_SET_PROPERTIES, set, got[2].GetTime().AsTime()), deleted,
	}
	for i := range want {
		if !proto.Equal(got[i], want[i]) {
			t.Errorf("change %d: got  %v\nwant %v", i, got[i], want[i])
		}
	}
	if age := time.Since(got[2].GetTime().AsTime()); age < -time.Second || age > time.Minute {
		t.Errorf("SET_PROPERTIES has time %v, want now", got[2].GetTime().AsTime())
	}
}

func TestSpaceChanges(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	a, b := map[string]string{"a": "r"}, map[string]string{"b": "w"}
	for _, err := range []error{
		w.s.CreateSpace(ctx, storage.Space{Name: "s", Properties: a, ACL: a}),
		w.s.SetSpace(ctx, storage.Space{Name: "s", Properties: a, ACL: b}),
		w.s.SetSpace(ctx, storage.Space{Name: "s", Properties: b, ACL: b}),
		w.s.SetSpace(ctx, storage.Space{Name: "s", Properties: b, ACL: b}),
		w.s.DeleteSpace(ctx, "s"),
	} {
		must(t, err)
	}
	got := w.wantOps(0, "CREATE_SPACE", "SET_ACL", "SET_SPACE_PROPERTIES", "SET_SPACE_PROPERTIES", "DELETE_SPACE")
	if !maps.Equal(got[1].GetAcl(), b) || !maps.Equal(got[1].GetProperties(), a) || got[1].GetItem() != "" {
		t.Errorf("got %v, want ACL and properties of the space", got[1])
	}
	for i, c := range got[1:] { // in one millisecond too
		if !c.GetTime().AsTime().After(got[i].GetTime().AsTime()) || c.GetId() == got[i].GetId() {
			t.Errorf("change %d has the time or id of the one before", i+1)
		}
	}
}

// A mutation whose Change could not be published is refused before it is made.
func TestRefused(t *testing.T) {
	w := newWorld(t)
	_, err := w.put("x", func(o *storage.PutOptions) {
		o.Properties.User = map[string]string{"big": strings.Repeat("x", schemas.MaxBytes)}
	})
	if !errors.Is(err, schemas.ErrTooLarge) || !retry.IsPermanent(err) {
		t.Errorf("got %v, want a permanent ErrTooLarge", err)
	}
	full := newWorld(t)
	full.s.cfg.Outbox = &badOutbox{File: full.outbox, intend: retry.Unavailable(outbox.ErrFull)}
	if _, err := full.put("x"); !errors.Is(err, outbox.ErrFull) || retry.ClassOf(err) != retry.ClassUnavailable {
		t.Errorf("got %v, want ErrFull, as unavailable", err)
	}
	for _, w := range []*world{w, full} {
		if w.faulty.Count("Put") != 0 {
			t.Error("the inner store was called")
		}
		w.wantOps(0)
	}
}

func TestNew(t *testing.T) {
	m, _ := mem.New(mem.Config{ID: "1"})
	box := fileOn(t, outboxtest.New())
	ok := Config{Account: "a", Store: "1", Outbox: box}
	for name, f := range map[string]func() (*Store, error){
		"no store":     func() (*Store, error) { return New(nil, ok, &topic{}) },
		"no publisher": func() (*Store, error) { return New(m, ok, nil) },
		"no account":   func() (*Store, error) { return New(m, Config{Store: "1", Outbox: box}, &topic{}) },
		"no id":        func() (*Store, error) { return New(m, Config{Account: "a", Outbox: box}, &topic{}) },
		"no outbox":    func() (*Store, error) { return New(m, Config{Account: "a", Store: "1"}, &topic{}) },
		"bad digest": func() (*Store, error) {
			return New(m, Config{Account: "a", Store: "1", Outbox: box, Digests: []string{"x"}}, &topic{})
		},
	} {
		if _, err := f(); err == nil {
			t.Errorf("%s: got no error", name)
		}
	}
}
