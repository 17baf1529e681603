package integration

import (
	"context"
	"io"
	"iter"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/sweep"
	"github.com/millrace/millrace/streams/sweep/reconcile"
)

// reconcile runs a round of the sweep reconcile over a store.
func (m *memoryLoop) reconcile(store string, expected bool) {
	m.t.Helper()
	pages, err := reconcile.New(reconcile.Config{
		Space: schemas.Copy{Account: "acme", Store: store, Space: "photos"}, AppearsWhole: true, ExternalWrites: expected,
	}, reconcile.Deps{
		Store: storage.ReadOnly(m.stores[store]), Fresh: func(context.Context) error { return nil },
		Rows: func(_ context.Context, of schemas.Copy, _ string) iter.Seq2[reconcile.Row, error] {
			return func(yield func(reconcile.Row, error) bool) {
				var items []string
				for at := range maps.Keys(m.manifest) {
					if at.Store == of.Store && at.Item > of.Item {
						items = append(items, at.Item)
					}
				}
				slices.Sort(items)
				for _, item := range items {
					of.Item = item
					r := m.manifest[of]
					if !yield(reconcile.Row{Item: item, Live: r.GetState() == pb.RecordState_RECORD_STATE_LIVE,
						Time: r.GetTime().AsTime(), Size: schemas.SizeOf(r), Version: r.GetVersion()}, nil) {
						return
					}
				}
			}
		},
		Settle:        func(context.Context, time.Duration, int) error { return nil },
		OpenIncident:  func(context.Context, schemas.Copy, string) error { return nil },
		CloseIncident: func(context.Context, schemas.Copy, string) error { return nil },
		DeclaredGone:  func() bool { return false },
	})
	m.must(err)
	page, err := pages(m.t.Context(), sweep.Round{ID: schemas.NewID()}, nil)
	m.must(err)
	for _, out := range page.Messages {
		m.publish(out)
	}
}

func (m *memoryLoop) bytes(at schemas.Copy) string {
	m.t.Helper()
	r, _, err := m.mem[at.Store].Open(m.t.Context(), at.Space, at.Item, "")
	m.must(err)
	defer r.Close()
	b, err := io.ReadAll(r)
	m.must(err)
	return string(b)
}

// TestOddDates checks that a file is copied, on record, checked and repaired whatever its date is. Each message is
// encoded and decoded: one that cannot be is a dead letter.
func TestOddDates(t *testing.T) {
	t.Parallel()
	for year, at := range map[string]time.Time{
		"1965": time.Date(1965, 7, 13, 1, 2, 3, 0, time.UTC), "2106": time.Unix(1<<32-1, 0).UTC(),
		"2446": time.Date(2446, 5, 1, 0, 0, 0, 0, time.UTC),
	} {
		source := schemas.Copy{Account: "acme", Store: "1", Space: "photos", Item: "a"}
		for name, arrive := range map[string]func(*memoryLoop){
			"event": func(m *memoryLoop) { m.notice(source) }, "sweep": func(m *memoryLoop) { m.reconcile("1", false) },
		} {
			t.Run(year+"/"+name, func(t *testing.T) {
				m := newLoop(t)
				_, err := m.mem["1"].Put(t.Context(), "photos", "a", strings.NewReader("bytes"), storage.PutOptions{Size: 5})
				m.must(err)
				m.mem["1"].Date("photos", "a", at)
				arrive(m)
				m.check(source)
				to := source.In("2")
				if got := m.bytes(to); got != "bytes" {
					t.Errorf("the copy has %q", got)
				}
				first := m.changes[0]
				if date := first.GetModified().AsTime(); !date.Equal(at) || time.Until(first.GetTime().AsTime()) > time.Second {
					t.Errorf("recorded as of %v, with date %v", first.GetTime().AsTime(), date)
				}
				n := len(m.changes)
				for _, store := range []string{"1", "2"} {
					r := m.manifest[source.In(store)]
					if r.GetState() != pb.RecordState_RECORD_STATE_LIVE || len(r.GetDigests()) == 0 {
						t.Errorf("on record of store %s: %v", store, r)
					}
					m.reconcile(store, true)
				}
				if len(m.changes) > n {
					t.Errorf("reconcile reported it again: %v", m.changes[n:])
				}
				m.mem["2"].Corrupt("photos", "a", []byte("BYTES"))
				m.check(to)
				if got := m.bytes(to); got != "bytes" {
					t.Errorf("after a repair the copy has %q", got)
				}
				for _, i := range m.incidents {
					if i.GetState() != pb.IncidentState_INCIDENT_STATE_CLOSED {
						t.Errorf("open: %v", i)
					}
				}
			})
		}
	}
}
