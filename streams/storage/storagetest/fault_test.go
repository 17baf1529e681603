package storagetest_test

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/mem"
	"github.com/millrace/millrace/streams/storage/storagetest"
)

const sp = "photos"

// world returns a Faulty store with items a, b, c and d of 100 bytes each, and its inner store.
func world(t *testing.T) (*storagetest.Faulty, *mem.Store) {
	t.Helper()
	m, err := mem.New(mem.Config{ID: "1"})
	if err == nil {
		err = m.CreateSpace(t.Context(), storage.Space{Name: sp})
	}
	for _, item := range []string{"a", "b", "c", "d"} {
		if err == nil {
			_, err = m.Put(t.Context(), sp, item, strings.NewReader(strings.Repeat(item, 100)), storage.PutOptions{Size: 100})
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return storagetest.NewFaulty(m), m
}

func read(ctx context.Context, s storage.Store, item string) (string, error) {
	r, _, err := s.Open(ctx, sp, item, "")
	if err != nil {
		return "", err
	}
	b, err := io.ReadAll(r)
	return string(b), errors.Join(err, r.Close())
}

func TestStreamFaults(t *testing.T) {
	whole := strings.Repeat("a", 100)
	tests := map[string]struct {
		fault storagetest.Fault
		want  string
		err   error
	}{
		"none":              {storagetest.Fault{Method: "Put"}, whole, nil},
		"cut":               {storagetest.Fault{Cut: true, After: 7}, whole[:7], nil},
		"cut behind it":     {storagetest.Fault{Cut: true, After: 700}, whole, nil},
		"a bit flipped":     {storagetest.Fault{Flip: true, After: 1}, "a`" + whole[2:], nil},
		"reset in mid-body": {storagetest.Fault{Mid: true, After: 5, Err: syscall.ECONNRESET}, whole[:5], syscall.ECONNRESET},
		"flipped, then cut": {storagetest.Fault{Flip: true, Cut: true, After: 3}, "aaa", nil},
		"not begun":         {storagetest.Fault{}, "", storagetest.ErrFault},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			f, _ := world(t)
			f.Script(tt.fault)
			if got, err := read(t.Context(), f, "a"); got != tt.want || !errors.Is(err, tt.err) || tt.err == nil && err != nil {
				t.Errorf("got %q, %v, want %q, %v", got, err, tt.want, tt.err)
			}
			f.Heal()
			if got, err := read(t.Context(), f, "a"); got != whole || err != nil {
				t.Errorf("healed: got %q, %v", got, err)
			}
		})
	}
}

func TestListingFaults(t *testing.T) {
	f, m := world(t)
	was, err := storagetest.Snapshot(t.Context(), m, sp)
	if err != nil {
		t.Fatal(err)
	}
	_, err = m.Delete(t.Context(), sp, "b", storage.DeleteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		fault storagetest.Fault
		want  string
		err   error
	}{
		"none":       {storagetest.Fault{Method: "Put"}, "acd", nil},
		"stale":      {storagetest.Fault{Stale: was}, "abcd", nil},
		"repeats":    {storagetest.Fault{Repeat: true, After: 1}, "accd", nil},
		"leaves out": {storagetest.Fault{Omit: true, After: 1}, "ad", nil},
		"ends early": {storagetest.Fault{Cut: true, After: 2}, "ac", nil},
		"fails":      {storagetest.Fault{Mid: true, After: 2}, "ac", storagetest.ErrFault},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			f.Heal()
			f.Script(tt.fault)
			got := ""
			var err error
			for o, e := range f.List(t.Context(), sp, "") {
				got, err = got+o.Item, e
			}
			if got != tt.want || !errors.Is(err, tt.err) || tt.err == nil && err != nil {
				t.Errorf("got %q, %v, want %q, %v", got, err, tt.want, tt.err)
			}
		})
	}
}

// A call is carried out and reported as failed, and the reverse.
func TestFalseReports(t *testing.T) {
	ctx := t.Context()
	unsized := storage.PutOptions{Size: storage.UnknownSize}
	tests := map[string]struct {
		call func(s storage.Store) error
		did  func(m *mem.Store) bool
	}{
		"Put": {func(s storage.Store) error {
			o, err := s.Put(ctx, sp, "new", strings.NewReader("x"), unsized)
			if err == nil && (o.Size != 1 || o.Version == "" || len(o.Digests) == 0) {
				t.Errorf("Put returned %+v", o)
			}
			return err
		}, func(m *mem.Store) bool { _, err := m.Stat(ctx, sp, "new"); return err == nil }},
		"Delete": {func(s storage.Store) error {
			d, err := s.Delete(ctx, sp, "a", storage.DeleteOptions{})
			if err == nil && (d.Object.Size != 100 || d.Time.IsZero()) {
				t.Errorf("Delete returned %+v", d)
			}
			return err
		}, func(m *mem.Store) bool { _, err := m.Stat(ctx, sp, "a"); return err != nil }},
		"SetProperties": {func(s storage.Store) error {
			_, err := s.SetProperties(ctx, sp, "a", storage.Properties{MediaType: "a/b"}, storage.Condition{})
			return err
		}, func(m *mem.Store) bool { o, _ := m.Stat(ctx, sp, "a"); return o.Properties.MediaType == "a/b" }},
		"CreateSpace": {func(s storage.Store) error { return s.CreateSpace(ctx, storage.Space{Name: "new"}) },
			func(m *mem.Store) bool { _, err := m.StatSpace(ctx, "new"); return err == nil }},
		"WriteMarker": {func(s storage.Store) error { return s.WriteMarker(ctx) },
			func(m *mem.Store) bool { return m.Marker(ctx) == nil }},
	}
	for name, tt := range tests {
		for kind, x := range map[string]struct {
			fault    storagetest.Fault
			did, err bool
		}{
			"not done, reported so":      {storagetest.Fault{Method: name}, false, true},
			"done, reported as failed":   {storagetest.Fault{Method: name, Applied: true}, true, true},
			"not done, reported as done": {storagetest.Fault{Method: name, FalseSuccess: true}, false, false},
			"done late, and reported so": {storagetest.Fault{Method: name, Delay: time.Nanosecond}, true, false},
			"not met: another item":      {storagetest.Fault{Method: name, Space: "another"}, true, false},
			"not met: the third call":    {storagetest.Fault{Method: name, Skip: 2}, true, false},
			"not met: a chance of nil":   {storagetest.Fault{Method: name, Chance: 1e-300}, true, false},
		} {
			t.Run(name+" "+kind, func(t *testing.T) {
				f, m := world(t)
				f.Script(x.fault)
				if err := tt.call(f); (err != nil) != x.err {
					t.Errorf("got %v, want an error: %v", err, x.err)
				}
				if did := tt.did(m); did != x.did {
					t.Errorf("done: %v, want %v", did, x.did)
				}
			})
		}
	}
}

// Draws are equal for the same seed, and differ for another.
func TestChance(t *testing.T) {
	run := func(seed uint64) (met []int) {
		f, _ := world(t)
		f.Seed(seed)
		f.Script(storagetest.Fault{Method: "Stat", Times: -1, Chance: 0.3})
		for i := range 200 {
			if _, err := f.Stat(t.Context(), sp, "a"); err != nil {
				met = append(met, i)
			}
		}
		return met
	}
	first := run(7)
	if again, other := run(7), run(8); !slices.Equal(first, again) || slices.Equal(first, other) {
		t.Errorf("got %v, the same seed %v, another %v", first, again, other)
	}
	if len(first) < 30 || len(first) > 100 {
		t.Errorf("%d of 200 calls met a fault of 0.3", len(first))
	}
}

// A delay occurs where it is scripted, and ends with the caller's context.
func TestDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, _ := world(t)
		f.Script(storagetest.Fault{Method: "Open", Mid: true, After: 50, Delay: time.Minute},
			storagetest.Fault{Method: "Stat", Delay: time.Hour},
			storagetest.Fault{Method: "List", Mid: true, After: 2, Delay: time.Minute})
		begun := time.Now()
		if got, err := read(t.Context(), f, "a"); len(got) != 100 || err != nil || time.Since(begun) != time.Minute {
			t.Errorf("got %d bytes, %v, after %v", len(got), err, time.Since(begun))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := f.Stat(ctx, sp, "a"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want the end of the caller's time", err)
		}
		begun, n := time.Now(), 0
		for _, err := range f.List(t.Context(), sp, "") {
			if n++; err != nil || (time.Since(begun) > 0) != (n > 2) {
				t.Errorf("entry %d: %v after %v", n, err, time.Since(begun))
			}
		}
		if n != 4 {
			t.Errorf("listed %d of 4", n)
		}
	})
}
