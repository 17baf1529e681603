package merge

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/internal/need"
)

func seq(keys []string, err error) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for _, k := range keys {
			if !yield(k, nil) {
				return
			}
		}
		if err != nil {
			yield("", err)
		}
	}
}

func same(s string) string { return s }

// all returns the pairs as text: "<a" is only in the first sequence, ">a" only in the second, "=a" in both.
func all(a, b iter.Seq2[string, error]) (got []string, err error) {
	for p, e := range Sorted(a, same, b, same) {
		if e != nil {
			return got, e
		}
		mark := "="
		switch {
		case !p.InSecond:
			mark = "<"
		case !p.InFirst:
			mark = ">"
		}
		got = append(got, mark+p.Key)
	}
	return got, nil
}

func TestSorted(t *testing.T) {
	away := errors.New("away")
	for name, tt := range map[string]struct {
		a, b       string
		errA, errB error
		want       string
		err        error
	}{
		"both empty":            {"", "", nil, nil, "", nil},
		"only the first":        {"a b", "", nil, nil, "<a <b", nil},
		"only the second":       {"", "a b", nil, nil, ">a >b", nil},
		"equal":                 {"a b", "a b", nil, nil, "=a =b", nil},
		"in turns":              {"a c e", "b c d", nil, nil, "<a >b =c >d <e", nil},
		"bytes, not letters":    {"B a \xff", "Z a é", nil, nil, "<B >Z =a >é <\xff", nil},
		"the first fails":       {"a", "b", away, nil, "<a", away},
		"the second fails":      {"b c", "a", nil, away, ">a", away},
		"fails at once":         {"", "a", away, nil, "", away},
		"both fail":             {"a", "a", away, away, "=a", away},
		"twice":                 {"a a", "b", nil, nil, "<a", ErrOrder},
		"goes backwards":        {"b a", "b", nil, nil, "=b", ErrOrder},
		"the second, backwards": {"", "b a", nil, nil, ">b", ErrOrder},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := all(seq(strings.Fields(tt.a), tt.errA), seq(strings.Fields(tt.b), tt.errB))
			if strings.Join(got, " ") != tt.want || !errors.Is(err, tt.err) {
				t.Errorf("got %v, %v; want %s, %v", got, err, tt.want, tt.err)
			}
		})
	}
}

// Each key comes once, in order, from where it is.
func TestSortedModel(t *testing.T) {
	need.Check(t, func(t *rapid.T) {
		keys := rapid.SliceOfNDistinct(rapid.StringMatching(`[a-d]{0,3}`), 0, 20, rapid.ID)
		a, b := keys.Draw(t, "a"), keys.Draw(t, "b")
		slices.Sort(a)
		slices.Sort(b)
		in := map[string]string{}
		for _, k := range a {
			in[k] = "<"
		}
		for _, k := range b {
			in[k] += ">"
		}
		var want []string
		for _, k := range slices.Sorted(maps.Keys(in)) {
			mark := in[k]
			if mark == "<>" {
				mark = "="
			}
			want = append(want, mark+k)
		}
		if got, err := all(seq(a, nil), seq(b, nil)); err != nil || !slices.Equal(got, want) {
			t.Fatalf("got %v, %v; want %v", got, err, want)
		}
	})
}

// Who stops early stops both sequences.
func TestSortedStops(t *testing.T) {
	stopped := 0
	endless := func(yield func(string, error) bool) {
		for i := 0; ; i++ {
			if !yield(fmt.Sprintf("%09d", i), nil) {
				stopped++
				return
			}
		}
	}
	for range Sorted(endless, same, endless, same) {
		break
	}
	if stopped != 2 {
		t.Errorf("%d of 2 sequences were stopped", stopped)
	}
}
