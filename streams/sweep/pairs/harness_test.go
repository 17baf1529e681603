package pairs

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/sweep"
)

// A harness is a pair of stores, with the records of their copies.
type harness struct {
	t           testing.TB
	config      Config
	source      *listed
	destination *listed
	rules       policy.Rules
	noPolicy    bool
	lists       []*policy.List
	records     map[schemas.Copy]*pb.CopyRecord
	fresh       func([]*pb.CopyRecord) ([]*pb.CopyRecord, error) // alters the answers
	calls       []string                                         // of the stores and the records, in order
}

var round = sweep.Round{ID: "00112233445566778899aabbccddeeff", Started: when}

func newHarness(t testing.TB) *harness {
	w := &harness{t: t, records: map[schemas.Copy]*pb.CopyRecord{},
		config: Config{Pair: Pair{Account: "acme", Space: "photos", Source: "1", Destination: "2"}},
		rules: policy.Rules{Revision: 4, Pairs: []policy.Pair{{Source: "1", Destination: "2"}},
			Deletes: policy.Propagate},
	}
	w.source, w.destination = &listed{of: w, id: "1"}, &listed{of: w, id: "2"}
	return w
}

func (w *harness) Rules(string, string) (policy.Rules, bool) { return w.rules, !w.noPolicy }

func (w *harness) Lists(context.Context, []policy.ExcludeList) ([]*policy.List, error) {
	return w.lists, nil
}

func (w *harness) Fresh(_ context.Context, copies []schemas.Copy) ([]*pb.CopyRecord, error) {
	w.calls = append(w.calls, "records")
	var all []*pb.CopyRecord
	for _, c := range copies {
		r := w.records[c]
		if r == nil {
			none := &pb.Record{State: pb.RecordState_RECORD_STATE_NONE}
			r = &pb.CopyRecord{Manifest: none, Audit: none}
		}
		all = append(all, r)
	}
	if w.fresh != nil {
		return w.fresh(all)
	}
	return all, nil
}

func (w *harness) sweep() sweep.Sweep {
	w.t.Helper()
	s, err := New(w.config, Deps{Source: w.source, Destination: w.destination, Rules: w, Records: w, Lists: w})
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

func (w *harness) page(cursor string) (sweep.Page, error) {
	w.t.Helper()
	return w.sweep()(w.t.Context(), round, []byte(cursor))
}

func (w *harness) mustPage(cursor string) sweep.Page {
	w.t.Helper()
	p, err := w.page(cursor)
	if err != nil {
		w.t.Fatal(err)
	}
	return p
}

// commands returns the commands of a page.
func commands(p sweep.Page) (all []*pb.DuplicationCommand) {
	for _, m := range p.Messages {
		all = append(all, m.Body.(*pb.DuplicationCommand))
	}
	return all
}

// items returns the items of commands as one text; "/" is the space.
func items(p sweep.Page) string {
	var all []string
	for _, c := range commands(p) {
		all = append(all, cmp.Or(c.GetItem(), "/"))
	}
	return strings.Join(all, " ")
}

// A listed is a store of one space, in the order of its ids.
type listed struct {
	of      *harness
	id      string
	objects []storage.Object
	fold    bool
	noSpace bool
	marker  []error // the answers of Marker, then nil
	// after n entries of a listing comes fault, or an error, if they are set.
	n       int
	fault   []storage.Object
	err     error
	listing func(after string) iter.Seq2[storage.Object, error] // replaces all of the above
}

func (s *listed) Capabilities() storage.Capabilities {
	return storage.Capabilities{FoldsPropertyCase: s.fold}
}

func (s *listed) Marker(context.Context) (err error) {
	s.of.calls = append(s.of.calls, "marker "+s.id)
	if len(s.marker) > 0 {
		err, s.marker = s.marker[0], s.marker[1:]
	}
	return err
}

func (s *listed) List(_ context.Context, space, after string) iter.Seq2[storage.Object, error] {
	s.of.calls = append(s.of.calls, "list "+s.id)
	switch {
	case s.listing != nil:
		return s.listing(after)
	case s.noSpace:
		s.err = fmt.Errorf("space %q: %w", space, storage.ErrNoSpace)
	}
	return func(yield func(storage.Object, error) bool) {
		at, found := slices.BinarySearchFunc(s.objects, after, func(o storage.Object, id string) int {
			return strings.Compare(o.Item, id)
		})
		if found {
			at++
		}
		for i, o := range s.objects[at:] {
			if i == s.n && s.end(yield) {
				return
			}
			if !yield(o, nil) {
				return
			}
		}
		if len(s.objects)-at <= s.n {
			s.end(yield)
		}
	}
}

// end yields the fault, and reports whether the listing ends.
func (s *listed) end(yield func(storage.Object, error) bool) bool {
	for _, o := range s.fault {
		if !yield(o, nil) {
			return true
		}
	}
	if s.err != nil {
		yield(storage.Object{}, s.err)
	}
	return s.err != nil
}

// has adds items of 7 bytes, sorted.
func (s *listed) has(ids ...string) {
	for _, id := range ids {
		s.objects = append(s.objects, *object(func(o *storage.Object) { o.Item = id }))
	}
}

// copyOf returns the copy of an item in a store.
func copyOf(store, item string) schemas.Copy {
	return schemas.Copy{Account: "acme", Store: store, Space: "photos", Item: item}
}
