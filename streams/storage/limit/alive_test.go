package limit

import (
	"context"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/mem"
)

// Each successful read is reported to the watchdog of the task; a Read that returns no bytes is not.
func TestReadersAreAlive(t *testing.T) {
	m, err := mem.New(mem.Config{ID: "1"})
	must(t, err)
	s := New(m, NewBreaker(Config{Account: "acme", Store: "1"}), nil)
	must(t, s.CreateSpace(t.Context(), storage.Space{Name: "photos"}))
	o, err := s.Put(t.Context(), "photos", "a", strings.NewReader("bytes"), storage.PutOptions{Size: 5})
	must(t, err)
	alive := 0
	ctx := retry.Watched(t.Context(), func() { alive++ })
	r, _, err := s.Open(ctx, "photos", "a", o.Version)
	must(t, err)
	defer r.Close()
	if alive != 0 {
		t.Errorf("alive %d times before a byte was read", alive)
	}
	if b, err := io.ReadAll(iotest.OneByteReader(r)); string(b) != "bytes" || err != nil {
		t.Fatalf("got %q, %v", b, err)
	}
	if alive != 5 {
		t.Errorf("alive %d times in five reads", alive)
	}
	if n, err := r.Read(make([]byte, 1)); n != 0 || err != io.EOF || alive != 5 {
		t.Errorf("at the end: %d, %v, alive %d times", n, err, alive)
	}
	retry.Alive(context.Background()) // without a watchdog: no effect
}
