package storagetest

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

func (x *suite) properties(t *testing.T) {
	s := x.store(t)
	p := storage.Properties{MediaType: "image/png", User: map[string]string{"a": "1", "b": "ü"}}
	_, err := s.SetProperties(t.Context(), space, "a", p, storage.Condition{})
	if !s.Capabilities().SetProperties {
		wantErr(t, "SetProperties of an absent item", err, storage.ErrUnsupported)
		put(t, s, "a", "bytes")
		was := has(t, s, "a", "bytes")
		_, err = s.SetProperties(t.Context(), space, "a", p, storage.Condition{})
		wantErr(t, "SetProperties", err, storage.ErrUnsupported)
		same(t, "Stat", has(t, s, "a", "bytes"), was)
		return
	}
	wantErr(t, "SetProperties of an absent item", err, storage.ErrNotFound)
	lacks(t, s, "a")

	put(t, s, "a", "bytes", func(o *storage.PutOptions) { o.Properties.User = map[string]string{"old": "gone"} })
	was := has(t, s, "a", "bytes")
	_, err = s.SetProperties(t.Context(), space, "a", p, storage.Condition{Version: "no such version"})
	wantErr(t, "SetProperties on another version", err, storage.ErrChanged)
	same(t, "Stat", has(t, s, "a", "bytes"), was)

	for _, p := range []storage.Properties{p, {}, {MediaType: "text/x"}} {
		got, err := s.SetProperties(t.Context(), space, "a", p, storage.Condition{Version: was.Version})
		if err != nil {
			t.Fatalf("SetProperties: %v", err)
		}
		want := was
		want.Properties = p
		if earlier(s, got.Modified, was.Modified) {
			t.Errorf("SetProperties: got time %v, which is before %v", got.Modified, was.Modified)
		}
		same(t, "SetProperties", got, want)
		same(t, "Stat after SetProperties", has(t, s, "a", "bytes"), want)
		was = want
	}
	put(t, s, "a", "other")
	if o := has(t, s, "a", "other"); o.Properties.MediaType != "" {
		t.Errorf("Put without properties kept %+v", o.Properties)
	}
}

// setError returns the error of a SetProperties that would fail with err in a store that supports it.
func setError(s storage.Store, err error) error {
	if s.Capabilities().SetProperties {
		return err
	}
	return storage.ErrUnsupported
}

// propertyValues stores unusual names and values, and expects them unchanged.
func (x *suite) propertyValues(t *testing.T) {
	s := x.store(t)
	fold := s.Capabilities().FoldsPropertyCase
	values := map[string]string{
		"empty": "", "spaces": "  a  b  ", "lines": "a\r\nb\n", "nul": "a\x00b", "control": "\x01\x1f\x7f", "latin": "é",
		"emoji":   "🎞️",
		"percent": "%41%C3", "encoded word": "=?UTF-8?Q?a?=", "quoted": `"a\"b"`, "colon": "a: b", "base64": "YQ==",
		"long": strings.Repeat("x", 500),
	}
	names := []string{"k", "a-b", "a_b.c", "with space", "é", "=", ":", "content-type", "x-amz-meta-k", "1", "a\nb", "%41"}
	if !fold {
		names = append(names, "Upper", "upper", "")
	}
	check := func(what string, p storage.Properties) {
		t.Helper()
		o := put(t, s, "i", "x", func(o *storage.PutOptions) { o.Properties = p })
		stat := has(t, s, "i", "x")
		for call, got := range map[string]storage.Properties{"Put": o.Properties, "Stat": stat.Properties} {
			if got.MediaType != p.MediaType || !maps.Equal(got.User, p.User) {
				t.Errorf("%s: %s: got %q, want %q", what, call, got, p)
			}
		}
	}
	for name, v := range values {
		check("value "+name, storage.Properties{User: map[string]string{"k": v, "other": "o"}})
	}
	all := map[string]string{}
	for _, name := range names {
		check("name "+name, storage.Properties{User: map[string]string{name: "v"}})
		all[name] = name
	}
	check("all names", storage.Properties{MediaType: `text/plain; charset="utf-8"`, User: all})
	_, err := tryPut(t, s, "bad", "x", func(o *storage.PutOptions) { o.Properties.User = map[string]string{"k": "a\xff"} })
	if err == nil { // a store may accept any bytes, but must not change them
		if o := has(t, s, "bad", "x"); o.Properties.User["k"] != "a\xff" {
			t.Errorf("a value that is not UTF-8 became %q", o.Properties.User["k"])
		}
		return
	}
	if !retry.IsPermanent(err) {
		t.Errorf("a value that is not UTF-8: got %v, want it kept, or a permanent error", err)
	}
	lacks(t, s, "bad")
}

// propertyBytes stores as many properties as allowed, and more.
func (x *suite) propertyBytes(t *testing.T) {
	s := x.store(t)
	sized := func(n int) func(*storage.PutOptions) {
		return func(o *storage.PutOptions) { o.Properties.User = map[string]string{"k": strings.Repeat("v", n-1)} }
	}
	bound := s.Capabilities().MaxPropertyBytes
	n := bound / 2
	if bound == 0 {
		n = 64 << 10
	}
	put(t, s, "i", "x", sized(n))
	if o := has(t, s, "i", "x"); len(o.Properties.User["k"]) != n-1 {
		t.Errorf("got %d bytes of properties, want %d", len(o.Properties.User["k"])+1, n)
	}
	if bound == 0 {
		return
	}
	was := has(t, s, "i", "x")
	for _, item := range []string{"i", "new"} {
		_, err := tryPut(t, s, item, "y", sized(bound+1))
		if !errors.Is(err, storage.ErrTooLarge) || !retry.IsPermanent(err) {
			t.Errorf("Put of %q with %d bytes of properties: got %v, want a permanent ErrTooLarge", item, bound+1, err)
		}
	}
	var o storage.PutOptions
	sized(bound + 1)(&o)
	_, err := s.SetProperties(t.Context(), space, "i", o.Properties, storage.Condition{})
	wantErr(t, fmt.Sprintf("SetProperties of %d bytes", bound+1), err, setError(s, storage.ErrTooLarge))
	same(t, "Stat", has(t, s, "i", "x"), was)
	lacks(t, s, "new")
}
