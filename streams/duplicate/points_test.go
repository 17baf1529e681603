package duplicate

import (
	"context"
	"crypto/md5"
	"encoding/hex"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/mem"
	"github.com/millrace/millrace/streams/storage/record"
	"github.com/millrace/millrace/streams/storage/storagetest"
)

// A client acts once on a store, at a point of the execution of a repair. Points are before and after each call of a
// store, before each read of a body, and while records are read. Its Change is on record at once, or after the repair.
type client struct {
	*restoreWorld
	store   string
	act     func(*client)
	at      int // the point; 0: none
	late    bool
	clock   atomic.Int64 // of all stores, in seconds since their start
	mu      sync.Mutex   // guards the fields below, as both sides are observed at once
	points  int
	pending *pb.Change
	// The objects that the client found and left; zero: none. found is the content of the first.
	before, left storage.Object
	found        string
	contents     map[[2]string]string // of all versions, by store
	damaged      string               // the version of the copy that is repaired
}

var gif = storage.Properties{MediaType: "image/gif", User: map[string]string{"by": "the client"}}

// clientActs are what clients do to an item.
func clientActs() map[string]func(*client) {
	return map[string]func(*client){
		"new bytes": func(c *client) {
			c.left = c.put(c.store, "mine")
			c.pending = record.Content(at(c.store), c.left)
		},
		"new properties": func(c *client) {
			o, err := c.mem[c.store].SetProperties(c.t.Context(), "photos", "a.jpg", gif, storage.Condition{})
			if errors.Is(err, storage.ErrNotFound) || errors.Is(err, storage.ErrUnsupported) {
				return
			}
			c.must(err)
			c.left, c.pending = o, record.Content(at(c.store), o)
			c.pending.Op, c.pending.Time = pb.Op_OP_SET_PROPERTIES, record.Time(c.now(c.store))
		},
		"a delete": func(c *client) {
			if d, err := c.mem[c.store].Delete(c.t.Context(), "photos", "a.jpg", storage.DeleteOptions{}); err == nil {
				c.pending = record.Delete(at(c.store), d)
			}
		},
	}
}

// now returns the time by the clock of a store.
func (c *client) now(store string) time.Time {
	return hour(8).Add(time.Duration(store[0]-'0')*time.Hour + time.Duration(c.clock.Load())*time.Second)
}

// step passes a point.
func (c *client) step() {
	c.clock.Add(1)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.remember()
	if c.points++; c.points != c.at {
		return
	}
	c.before, c.found = c.current(c.store)
	c.act(c)
	c.remember()
	if !c.late {
		c.report()
	}
}

// remember notes the content of all versions.
func (c *client) remember() {
	for id := range c.mem {
		if o, content := c.current(id); o.Version != "" {
			c.contents[[2]string{id, o.Version}] = content
		}
	}
}

// report puts the client's Change on record.
func (c *client) report() {
	if c.pending != nil {
		c.reported(c.pending)
		c.pending = nil
	}
}

// current returns the object of a store and its bytes; zero if there is none.
func (c *client) current(id string) (storage.Object, string) {
	r, o, err := c.mem[id].Open(c.t.Context(), "photos", "a.jpg", "")
	if errors.Is(err, storage.ErrNotFound) {
		return storage.Object{}, ""
	}
	c.must(err)
	b, err := io.ReadAll(r)
	c.must(err)
	return o, string(b)
}

// A pointed is a store with points.
type pointed struct {
	storage.Store
	step func()
}

func (p pointed) Open(ctx context.Context, space, item, version string) (io.ReadCloser, storage.Object, error) {
	r, o, err := p.Store.Open(ctx, space, item, version)
	if err != nil {
		return nil, storage.Object{}, err
	}
	return pointedBody{r, p.step}, o, nil
}

func (p pointed) Put(
	ctx context.Context, space, item string, r io.Reader, o storage.PutOptions,
) (storage.Object, error) {
	put, err := p.Store.Put(ctx, space, item, r, o)
	p.step()
	return put, err
}

func (p pointed) SetProperties(
	ctx context.Context, space, item string, props storage.Properties, c storage.Condition,
) (storage.Object, error) {
	o, err := p.Store.SetProperties(ctx, space, item, props, c)
	p.step()
	return o, err
}

type pointedBody struct {
	io.ReadCloser
	step func()
}

func (b pointedBody) Read(p []byte) (int, error) {
	b.step()
	return b.ReadCloser.Read(p[:min(len(p), 2)])
}

// pointsCases prepare repairs, and return the command. hello is the Change of the content at store 1, of which 2 and 3
// have copies.
func pointsCases() map[string]func(w *restoreWorld, hello *pb.Change) *pb.DuplicationCommand {
	properties := func(w *restoreWorld, hello *pb.Change) *pb.DuplicationCommand {
		c := w.repair(hello.GetDigests())
		c.SourceStore, c.Repair.Properties = "2", true
		return c
	}
	return map[string]func(*restoreWorld, *pb.Change) *pb.DuplicationCommand{
		"C0 corrupt": func(w *restoreWorld, hello *pb.Change) *pb.DuplicationCommand {
			w.mem["2"].Corrupt("photos", "a.jpg", []byte("hellO"))
			return w.repair(hello.GetDigests())
		},
		"C0 missing": func(w *restoreWorld, hello *pb.Change) *pb.DuplicationCommand {
			w.mem["2"].Lose("photos", "a.jpg")
			return w.repair(hello.GetDigests())
		},
		"C0 of the primary": func(w *restoreWorld, hello *pb.Change) *pb.DuplicationCommand {
			w.mem["1"].Corrupt("photos", "a.jpg", []byte("hellO"))
			c := w.repair(hello.GetDigests())
			c.SourceStore, c.DestinationStore = "2", "1"
			o, _ := w.mem["1"].Stat(w.t.Context(), "photos", "a.jpg")
			c.Repair.Failed = record.Identity(o)
			return c
		},
		"C0p": func(w *restoreWorld, hello *pb.Change) *pb.DuplicationCommand {
			w.mem["2"].Strip("photos", "a.jpg")
			return properties(w, hello)
		},
		"C0p by the bytes": func(w *restoreWorld, hello *pb.Change) *pb.DuplicationCommand {
			png := storage.Properties{MediaType: "image/png"}
			w.mem["2"].Alter("photos", "a.jpg", png)
			c := properties(w, hello)
			c.Repair.Failed.PropertiesHash = schemas.PropertiesHash(png.MediaType, nil)
			return c
		},
		"C0r deleted":  func(w *restoreWorld, hello *pb.Change) *pb.DuplicationCommand { return w.deleted(hello) },
		"C0r replaced": func(w *restoreWorld, hello *pb.Change) *pb.DuplicationCommand { return w.encrypted(hello) },
	}
}

// newClient prepares a case. The clocks of the stores go on, an hour apart. Store 2 cannot set properties in a case by
// the bytes.
func newClient(t *testing.T, name string) (*client, *pb.DuplicationCommand) {
	c := &client{contents: map[[2]string]string{}, restoreWorld: &restoreWorld{world: newWorld(t)}}
	c.rules.Pairs = append(c.rules.Pairs, policy.Pair{Source: "1", Destination: "3"})
	for _, id := range []string{"1", "2", "3"} {
		s, err := mem.New(mem.Config{ID: id, Now: func() time.Time { return c.now(id) },
			Weak: mem.Weak{Properties: id == "2" && name == "C0p by the bytes"}})
		c.must(err)
		s.Mark(id)
		c.mem[id], c.faulty[id] = s, storagetest.NewFaulty(pointed{s, c.step})
		c.must(s.CreateSpace(t.Context(), storage.Space{Name: "photos"}))
	}
	var err error
	c.executor, err = New(Config{Now: c.time, WaitIntervals: intervals, MissingIntervals: missing, Restores: c}, c, c,
		c.journal)
	c.must(err)
	hello := c.added("1", "hello")
	for _, to := range []string{"2", "3"} {
		copying := command(hello)
		copying.DestinationStore = to
		c.mustRun(copying)
	}
	order := pointsCases()[name](c.restoreWorld, hello)
	for _, s := range c.faulty {
		s.Before(func(context.Context, storagetest.Call) error { c.step(); return nil })
	}
	c.journal.meanwhile = func() { c.journal.mu.Unlock(); c.step(); c.journal.mu.Lock() }
	c.damaged, c.points = order.GetRepair().GetFailed().GetVersion(), 0
	return c, order
}

// repaired executes a repair until it has a result, and publishes what follows. killed: what the first execution
// returned is lost.
func (c *client) repaired(order *pb.DuplicationCommand, killed bool) did {
	c.t.Helper()
	for range 5 {
		got, _, err := c.try(order)
		c.step()
		if err != nil || killed {
			killed = killed && err != nil
			continue
		}
		for _, change := range got.changes {
			of := c.contents[[2]string{change.GetStore(), change.GetVersion()}]
			sum := md5.Sum([]byte(of))
			if content := change.GetOp() != pb.Op_OP_SET_PROPERTIES; of == "" ||
				content && change.GetDigests()[digest.MD5] != hex.EncodeToString(sum[:]) {
				c.t.Errorf("version %s is %q, and recorded is %v", change.GetVersion(), of, change)
			}
			c.journal.add(change)
		}
		return got
	}
	c.t.Fatal("the repair does not end")
	return did{}
}

// keeps checks that what the client left is in the store and on record.
func (c *client) keeps(act string) {
	c.t.Helper()
	o, content := c.current(c.store)
	row := c.journal.rows[at(c.store)]
	switch {
	case act == "new bytes" && (content != "mine" || o.Version != c.left.Version):
		c.t.Errorf("the client wrote %v, and there is %q, %v", c.left, content, o)
	case act == "a delete" && (o.Version != "" || isLive(row)):
		c.t.Errorf("the client deleted %q, and there is %q, on record %v", c.found, content, row)
	case act == "new properties" && content == "hello" && c.found != "XXXXX" &&
		(!o.Properties.Equal(gif, false) || !record.Properties(row).Equal(gif, false)):
		c.t.Errorf("the client set %v, and there is %v, on record %v", gif, o.Properties, row)
	}
	if o.Version != "" && o.Version != c.damaged && (!isLive(row) || row.GetVersion() != o.Version ||
		digest.Set(row.GetDigests()).Compare(o.Digests) == digest.Disagree) {
		c.t.Errorf("the store has %v, on record is %v", o, row)
	}
}

// checked executes the repair that follows the check of a copy whose properties are not those on record. Stores set
// properties unconditionally: what a client sets right before a repair is on record, and that repair brings it back.
func (c *client) checked(order *pb.DuplicationCommand, done did) {
	c.t.Helper()
	to := order.GetDestinationStore()
	o, _ := c.current(to)
	if m := c.journal.rows[at(to)]; !order.GetRepair().GetProperties() || !isLive(m) || o.PropertiesUnknown ||
		record.Properties(m).Equal(o.Properties, false) {
		return
	}
	if len(done.tasks) == 0 {
		c.t.Error("no check follows")
	}
	order.Id, order.Repair.Failed = "of the check", record.Identity(o)
	order.Repair.Failed.PropertiesHash = schemas.PropertiesHash(o.Properties.MediaType, o.Properties.User)
	c.repaired(order, false)
}

// A client acts on either side at every point of a repair, which may be killed after its write. Nothing of the client's
// is lost, and no Change is published of bytes that the copy did not have.
func TestClientActsAtEveryPointOfARepair(t *testing.T) {
	for name := range pointsCases() {
		for act, do := range clientActs() {
			for _, store := range []string{"1", "2", "3"} {
				for late, killed := range map[bool]bool{true: false, false: true} {
					for n, last := 0, 1; n <= last && !t.Failed(); n++ {
						c, order := newClient(t, name)
						c.store, c.act, c.at, c.late = store, do, n, late
						done := c.repaired(order, killed)
						last = max(last, c.points)
						c.report()
						c.checked(order, done)
						o, content := c.current(order.GetDestinationStore())
						if n == 0 && (content != "hello" || o.Properties.MediaType != "image/jpeg") {
							t.Errorf("not repaired: %q, %v; %v", content, o, done.result)
						}
						if n > 0 && c.points >= n && (c.left.Version != "" || act == "a delete" && c.found != "") {
							c.keeps(act)
						}
						if t.Failed() {
							t.Logf("%s, %s of store %s at point %d of %d, on record late: %t, killed: %t", name, act, store, n, last,
								late, killed)
						}
					}
				}
			}
		}
	}
}
