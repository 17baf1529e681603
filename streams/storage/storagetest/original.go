package storagetest

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/streams/storage"
)

// putOriginal puts copies: their Original is kept with them, and removed with them.
func (x *suite) putOriginal(t *testing.T) {
	s := x.store(t)
	at := time.Date(2020, 2, 3, 4, 5, 6, 789_000_000, time.UTC)
	of := func(o storage.Original) func(*storage.PutOptions) {
		return func(p *storage.PutOptions) { p.Original, p.Digests = o, sums("bytes") }
	}
	check := func(what string, got, want storage.Original) {
		t.Helper()
		if got != want {
			t.Errorf("%s: got original %+v, want %+v", what, got, want)
		}
	}
	for name, original := range map[string]storage.Original{
		"an ETag":    {Modified: at, Version: `"0cc175b9c0f1b6a831c399e269772661"`},
		"no version": {Modified: at},
		"of old":     {Modified: time.UnixMilli(1).UTC(), Version: strings.Repeat("v,", 100)},
		"of nothing": {},
	} {
		t.Run(name, func(t *testing.T) {
			check("Put", put(t, s, name, "bytes", of(original)).Original, original)
			check("Stat", has(t, s, name, "bytes").Original, original)
		})
	}
	original := storage.Original{Modified: at, Version: "1"}
	put(t, s, "a", "bytes", of(original))
	if s.Capabilities().SetProperties {
		_, err := s.SetProperties(t.Context(), space, "a", storage.Properties{MediaType: "text/x"}, storage.Condition{})
		wantErr(t, "SetProperties", err, nil)
		check("Stat after SetProperties", has(t, s, "a", "bytes").Original, original)
	}
	put(t, s, "a", "bytes", of(storage.Original{Modified: at, Version: "2"}))
	check("Stat after another Put", has(t, s, "a", "bytes").Original, storage.Original{Modified: at, Version: "2"})
	put(t, s, "a", "other")
	check("Stat after a Put that is no copy", has(t, s, "a", "other").Original, storage.Original{})
}

// absentAt checks the time of an absence: it is by the clock that dates writes.
func (x *suite) absentAt(t *testing.T) {
	s := x.store(t)
	look := func(space string, want error) time.Time {
		t.Helper()
		_, err := s.Stat(t.Context(), space, "i")
		var absent *storage.AbsentError
		if !errors.Is(err, want) || !errors.As(err, &absent) || absent.At.IsZero() {
			t.Fatalf("Stat: got %v, want %v with a time", err, want)
		}
		return absent.At
	}
	look(noSpace, storage.ErrNoSpace)
	first := look(space, storage.ErrNotFound)
	o := put(t, s, "i", "x")
	if earlier(s, o.Modified, first) {
		t.Errorf("Put: got time %v, and the item was absent at %v", o.Modified, first)
	}
	d, err := s.Delete(t.Context(), space, "i", storage.DeleteOptions{})
	if err != nil {
		t.Fatalf("Delete: %v", err)
	}
	then := look(space, storage.ErrNotFound)
	round := s.Capabilities().TimeResolution // some services round the times of objects and truncate that of a response
	if then.Before(o.Modified.Add(-round)) || then.Before(d.Time.Add(-round)) {
		t.Errorf("Stat: absent at %v, before it was put at %v or deleted at %v", then, o.Modified, d.Time)
	}
	if again := put(t, s, "i", "y"); earlier(s, again.Modified, then) {
		t.Errorf("Put: got time %v, and the item was absent at %v", again.Modified, then)
	}
}
