package fixity

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/storagetest"
)

// A killing store calls kill before the byte at offset left of all bytes that are read; negative: never.
type killing struct {
	storage.Store
	left int
	kill func() error
}

func (k *killing) Open(ctx context.Context, space, item, version string) (io.ReadCloser, storage.Object, error) {
	r, o, err := k.Store.Open(ctx, space, item, version)
	if err != nil {
		return nil, storage.Object{}, err
	}
	return killingBody{r, k}, o, nil
}

type killingBody struct {
	io.ReadCloser
	k *killing
}

func (b killingBody) Read(p []byte) (int, error) {
	if b.k.left == 0 {
		return 0, b.k.kill()
	}
	n, err := b.ReadCloser.Read(p[:1])
	b.k.left -= n
	return n, err
}

// A check that is killed before any byte of any of its readings, the end included, publishes nothing. The task is
// executed again, by the same checker or another one, and its messages are those of a check that was not killed.
func TestKilledAtEveryByte(t *testing.T) {
	reason := errors.New("partition revoked")
	for name, tt := range pointsCases() {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				tt.prepare(w)
				time.Sleep(72 * time.Hour)
				k := &killing{Store: w.mem, left: -1}
				w.store = storagetest.NewFaulty(k)
				undisturbed := w.handle(task(nil))
				all := int(undisturbed.result.GetBytesRead())
				if row := undisturbed.result.GetRow(); all == 0 != (row == 8) {
					t.Fatalf("%d bytes were read: %v", all, undisturbed.result)
				}
				same := w.checker()
				for n := range all {
					for _, next := range []*Checker{same, w.checker()} {
						ctx, cancel := context.WithCancelCause(t.Context())
						k.left, k.kill = n, func() error { cancel(reason); return storage.ContextErr(ctx) }
						got, err := same.Handle(ctx, &schemas.Delivery{Topic: schemas.FixityLow, Body: task(nil), Attempt: 1})
						if got != nil || !errors.Is(err, reason) {
							t.Fatalf("killed before byte %d: %v, %v", n, got, err)
						}
						cancel(nil)
						k.left = -1
						w.repeats(next, undisturbed)
					}
				}
			})
		})
	}
}

// repeats checks that c, which executes the task a second time, publishes what want has.
func (w *world) repeats(c *Checker, want outcome) {
	w.t.Helper()
	again, err := c.Handle(w.t.Context(), &schemas.Delivery{Topic: schemas.FixityLow, Body: task(nil), Attempt: 2})
	must(w.t, err)
	expected := []schemas.Body{proto.CloneOf(want.result)}
	if want.change != nil {
		expected = append(expected, want.change)
	}
	if want.again != nil {
		expected = append(expected, proto.CloneOf(want.again))
	}
	if len(again) != len(expected) {
		w.t.Fatalf("%d messages, want %d", len(again), len(expected))
	}
	for i, m := range again { // every result has an id of its own
		switch b := m.Body.(type) {
		case *pb.FixityResult:
			r := expected[i].(*pb.FixityResult)
			r.Id, r.Attempt = b.GetId(), 2
		case *pb.FixityTask:
			expected[i].(*pb.FixityTask).Previous = b.GetPrevious()
		}
		if !proto.Equal(m.Body, expected[i]) {
			w.t.Errorf("got  %v\nwant %v", m.Body, expected[i])
		}
	}
}
