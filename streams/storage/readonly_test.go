package storage_test

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/mem"
	"github.com/millrace/millrace/streams/storage/storagetest"
)

// reads are the methods that change nothing; every other method must be refused.
var reads = []string{"Capabilities", "List", "Marker", "Open", "Spaces", "Stat", "StatSpace"}

// A read-only view passes the reading part of the contract.
func TestReadOnlyContract(t *testing.T) {
	storagetest.RunReadOnly(t, func(t *testing.T, spaces map[string]map[string]string) storage.Store {
		s, err := mem.New(mem.Config{ID: "1"})
		must(t, err)
		s.Mark("1")
		for space, items := range spaces {
			err = s.CreateSpace(t.Context(), storage.Space{Name: space})
			for item, content := range items {
				_, putErr := s.Put(t.Context(), space, item, strings.NewReader(content),
					storage.PutOptions{Size: storage.UnknownSize})
				err = errors.Join(err, putErr)
			}
			must(t, err)
		}
		return storage.ReadOnly(s)
	})
}

// A read-only view passes on Locate: the source of a copy is opened through such a view.
func TestReadOnlyLocates(t *testing.T) {
	inner, err := mem.New(mem.Config{ID: "1"})
	must(t, err)
	ref := storage.Ref{Space: "s", Item: "a", Version: "7"}
	at, err := storage.Locate(t.Context(), storage.ReadOnly(located{inner}), ref)
	if err != nil || at.Handle != ref {
		t.Errorf("Locate: got %+v, %v", at, err)
	}
	if _, err := storage.Locate(t.Context(), storage.ReadOnly(inner), ref); !errors.Is(err, storage.ErrUnsupported) {
		t.Errorf("Locate in a store that is no Locator: got %v, want ErrUnsupported", err)
	}
}

// A located store returns a place that holds the Ref it was asked for.
type located struct{ storage.Store }

func (located) Locate(_ context.Context, ref storage.Ref) (storage.Location, error) {
	return storage.Location{Handle: ref, Close: func() error { return nil }}, nil
}

func TestReadOnly(t *testing.T) {
	ctx := t.Context()
	inner, err := mem.New(mem.Config{ID: "1"})
	must(t, err)
	inner.Mark("1")
	inner.CreateSpace(ctx, storage.Space{Name: "photos"})
	if _, err := inner.Put(ctx, "photos", "a", strings.NewReader("x"),
		storage.PutOptions{Size: storage.UnknownSize}); err != nil {
		t.Fatal(err)
	}
	f := storagetest.NewFaulty(inner)
	s := storage.ReadOnly(f)
	if c := s.Capabilities(); !c.ReadOnly || c.ConditionalPut || c.SetProperties || c.Kind != "mem" {
		t.Errorf("capabilities: %+v", c)
	}
	refused := map[string]error{}
	refused["CreateSpace"] = s.CreateSpace(ctx, storage.Space{Name: "x"})
	refused["SetSpace"] = s.SetSpace(ctx, storage.Space{Name: "photos"})
	refused["DeleteSpace"] = s.DeleteSpace(ctx, "photos")
	refused["WriteMarker"] = s.WriteMarker(ctx)
	_, refused["Put"] = s.Put(ctx, "photos", "a", strings.NewReader("y"), storage.PutOptions{})
	_, refused["SetProperties"] = s.SetProperties(ctx, "photos", "a", storage.Properties{}, storage.Condition{})
	_, refused["Delete"] = s.Delete(ctx, "photos", "a", storage.DeleteOptions{})
	for method, err := range refused {
		if !errors.Is(err, storage.ErrReadOnly) || !storage.IsNotApplied(err) {
			t.Errorf("%s: got %v, marked: %t", method, err, storage.IsNotApplied(err))
		}
	}
	if calls := f.Calls(); len(calls) > 0 {
		t.Errorf("calls went through: %v", calls)
	}
	if got, want := reflect.TypeFor[storage.Store]().NumMethod(), len(reads)+len(refused); got != want {
		t.Errorf("the interface has %d methods, and %d are either read or refused here", got, want)
	}
	_, stat := s.Stat(ctx, "photos", "a")
	_, space := s.StatSpace(ctx, "photos")
	r, _, open := s.Open(ctx, "photos", "a", "")
	for method, err := range map[string]error{"Stat": stat, "StatSpace": space, "Open": open, "Marker": s.Marker(ctx)} {
		if err != nil {
			t.Errorf("%s: %v", method, err)
		}
	}
	if open == nil {
		r.Close()
	}
	n := 0
	for range s.Spaces(ctx) {
		n++
	}
	for o, err := range s.List(ctx, "photos", "") {
		if err == nil && o.Item == "a" {
			n++
		}
	}
	if n != 2 {
		t.Errorf("listings returned %d, want one space and one item", n)
	}
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
