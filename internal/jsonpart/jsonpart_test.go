package jsonpart

import (
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
)

var errEnough = errors.New("enough")

func TestParts(t *testing.T) {
	for name, tt := range map[string]struct {
		text string
		want []string // of an array, or of an object with the names; of one that is broken, as far as it is not
		fail string
	}{
		"array":               {` [1, "a" ,{"b":[ 2]},null,[]] `, []string{`1`, `"a"`, `{"b":[ 2]}`, `null`, `[]`}, ""},
		"empty array":         {`[]`, nil, ""},
		"object":              {`{"a":1,"\u0062":{"c":2},"a":null,"":""}`, []string{`a:1`, `b:{"c":2}`, `a:null`, `:""`}, ""},
		"empty object":        {` { } `, nil, ""},
		"nothing":             {``, nil, "EOF"},
		"another value":       {`7`, nil, "not a JSON array"},
		"cut short":           {`[1,2`, []string{`1`, `2`}, "EOF"},
		"cut in an element":   {`[1,"a`, []string{`1`}, "EOF"},
		"cut behind a name":   {`{"a":1,"b"`, []string{`a:1`}, "EOF"},
		"no comma":            {`[1 2]`, []string{`1`}, "after array element"},
		"a comma too much":    {`[1,]`, []string{`1`}, "invalid character"},
		"two members, none":   {`{"a":1,}`, []string{`a:1`}, "invalid character"},
		"a name that is none": {`{1:1}`, nil, "invalid character"},
		"the wrong end":       {`[1}`, []string{`1`}, "invalid character"},
		"trailing data":       {`[1]]`, []string{`1`}, "data after the end"},
		"two values":          {`[1][2]`, []string{`1`}, "data after the end"},
		"deep":                {strings.Repeat("[", 20000), nil, "depth"},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			err := Elements([]byte(tt.text), func(e []byte) error { got = append(got, string(e)); return nil })
			if strings.HasPrefix(strings.TrimSpace(tt.text), "{") {
				err = Members([]byte(tt.text), func(n string, v []byte) error { got = append(got, n+":"+string(v)); return nil })
			}
			if !slices.Equal(got, tt.want) || (err == nil) != (tt.fail == "") || err != nil && !strings.Contains(err.Error(),
				tt.fail) {
				t.Errorf("got %q, %v, want %q, %q", got, err, tt.want, tt.fail)
			}
		})
	}
}

// What the caller does not want is not read, and what it has read is not held.
func TestPartsMemory(t *testing.T) {
	many := []byte("[" + strings.Repeat("1,", 1<<20) + "1]")
	names := []byte("{" + strings.Repeat(`"a":1,`, 1<<18) + `"a":1}`)
	for name, read := range map[string]func(func() error) error{
		"elements": func(f func() error) error { return Elements(many, func([]byte) error { return f() }) },
		"members":  func(f func() error) error { return Members(names, func(string, []byte) error { return f() }) },
	} {
		n := 0
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err := read(func() error {
			if n++; n == 1000 {
				return errEnough
			}
			return nil
		})
		runtime.ReadMemStats(&after)
		if got := after.TotalAlloc - before.TotalAlloc; !errors.Is(err, errEnough) || n != 1000 || got > 256<<10 {
			t.Errorf("%s: got %v after %d parts and %d bytes", name, err, n, got)
		}
	}
}

// The parts are those that encoding/json finds.
func FuzzElements(f *testing.F) {
	for _, s := range []string{`[]`, `[1,"a",{"b":[2]},null]`, ` [ 1 , 2 ] `, `[1 2]`, `[1][2]`, `{"a":1}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var got []string
		err := Elements(b, func(e []byte) error { got = append(got, string(e)); return nil })
		var want []json.RawMessage
		wantErr := json.Unmarshal(b, &want)
		if want == nil && wantErr == nil {
			wantErr = errEnough // null is no array
		}
		if (err == nil) != (wantErr == nil) {
			t.Fatalf("got %v, encoding/json says %v", err, wantErr)
		}
		if err == nil && fmt.Sprintf("%s", got) != fmt.Sprintf("%s", want) {
			t.Fatalf("got %q, want %q", got, want)
		}
	})
}
