package emit

import (
	"fmt"
	"strings"
	"testing"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/storage/mem"
	"github.com/millrace/millrace/streams/storage/outbox"
	"github.com/millrace/millrace/streams/storage/outbox/outboxtest"
)

func fileOn(t testing.TB, d *outboxtest.Disk, edit ...func(*outbox.Config)) *outbox.File {
	t.Helper()
	f, err := tryFile(d, edit...)
	must(t, err)
	return f
}

func tryFile(d *outboxtest.Disk, edit ...func(*outbox.Config)) (*outbox.File, error) {
	cfg := outbox.Config{Disk: d}
	for _, e := range edit {
		e(&cfg)
	}
	return outbox.Open(cfg)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// An outbox serves one Store in its life, and only the account and store of the Changes that it holds.
func TestNewClaimsTheFile(t *testing.T) {
	m, err := mem.New(mem.Config{ID: "1"})
	must(t, err)
	dir := t.TempDir()
	refused := func(f *outbox.File, store, why string) {
		t.Helper()
		if _, err := New(m, Config{Account: "acme", Store: store, Outbox: f}, &topic{}); err == nil ||
			!strings.Contains(err.Error(), why) {
			t.Errorf("of store %s: got %v, want %s", store, err, why)
		}
	}
	f, err := outbox.Open(outbox.Config{Dir: dir})
	must(t, err)
	_, err = New(m, Config{Account: "acme", Store: "1", Outbox: f}, &topic{})
	must(t, err)
	refused(f, "1", "already serves store acme/1")
	refused(f, "2", "already serves store acme/1")
	draft := &pb.Change{Op: pb.Op_OP_ADD, Account: "acme", Store: "1", Space: sp, Item: "a"}
	_, err = f.Intend(t.Context(), outbox.Mutation{Draft: draft})
	must(t, err)
	must(t, f.Close())
	f, err = outbox.Open(outbox.Config{Dir: dir})
	must(t, err)
	refused(f, "2", "holds changes of store acme/1, not of acme/2")
	_, err = New(m, Config{Account: "acme", Store: "1", Outbox: f}, &topic{})
	must(t, err)
	must(t, f.Close())
}

// A program that opens a salvaged outbox looks up lost outcomes in the store and publishes what was made,
// once.
func TestSalvagedIsLookedUp(t *testing.T) {
	const segment = "0000000000000001.segment"
	d, m := outboxtest.New(), memory(t)
	w := durable(t, d, m)
	w.topic.set(func(*pb.Change) (bool, error) { return false, errUnavailable })
	end := 0 // of the outcome of the second put
	for i := range 5 {
		must(t, w.putItem(fmt.Sprint(i), "x"))
		if i == 1 {
			end = len(d.Read(segment))
		}
	}
	b := d.Read(segment)
	b[end-1] ^= 1
	damaged := outboxtest.New()
	damaged.Write(segment, b)
	salvaged := fileOn(t, damaged, func(c *outbox.Config) { c.Salvage = true })
	for h := range salvaged.Held() {
		if (h.Outcome == 0) != (h.Key == "acme/photos/1") {
			t.Errorf("got %+v, want only the outcome of the second put lost", h)
		}
	}
	w = durable(t, outboxtest.New(), m, func(c *Config) { c.Outbox = salvaged })
	must(t, w.s.Flush(t.Context()))
	got := w.topic.take()
	if len(got) != 5 || w.held() != 0 {
		t.Errorf("got %v, %d left, want five", items(got), w.held())
	}
	for _, c := range got {
		o, err := m.Stat(t.Context(), sp, c.GetItem())
		must(t, err)
		if c.GetVersion() != o.Version || !c.GetTime().AsTime().Equal(o.Modified) || c.GetOp() != pb.Op_OP_ADD {
			t.Errorf("got %v, want the observed item: %+v", c, o)
		}
	}
}
