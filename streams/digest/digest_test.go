package digest

import (
	"bytes"
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/internal/need"
)

func TestCompare(t *testing.T) {
	tests := map[string]struct {
		a, b Set
		want Agreement
	}{
		"nothing known":                    {nil, Set{MD5: "a"}, Incomparable},
		"nothing in common":                {Set{SHA1: "a"}, Set{MD5: "a"}, Incomparable},
		"one shared and equal":             {Set{MD5: "a", SHA1: "x"}, Set{MD5: "a", SHA256: "y"}, Agree},
		"all shared and equal":             {Set{MD5: "a", SHA1: "x"}, Set{MD5: "a", SHA1: "x"}, Agree},
		"one shared and different":         {Set{MD5: "a"}, Set{MD5: "b"}, Disagree},
		"one equal and one different":      {Set{MD5: "a", SHA1: "x"}, Set{MD5: "a", SHA1: "y"}, Disagree},
		"two empty sets are not agreement": {Set{}, Set{}, Incomparable},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got, back := tt.a.Compare(tt.b), tt.b.Compare(tt.a); got != tt.want || back != tt.want {
				t.Errorf("got %v and, the other way round, %v, want %v", got, back, tt.want)
			}
		})
	}
}

func TestUnionAndOnly(t *testing.T) {
	a, b := Set{MD5: "a", SHA1: "x"}, Set{MD5: "b", SHA256: "y"}
	if got, want := a.Union(b), (Set{MD5: "a", SHA1: "x", SHA256: "y"}); !maps.Equal(got, want) {
		t.Errorf("got union %v, want %v", got, want)
	}
	if len(a) != 2 || len(b) != 2 {
		t.Error("Union changed its operands")
	}
	if got := Set(nil).Union(nil); got == nil || len(got) != 0 {
		t.Errorf("got union of nothing %v, want an empty set", got)
	}
	if got, want := a.Only(SHA1, SHA256), (Set{SHA1: "x"}); !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestValidate(t *testing.T) {
	m := strings.Repeat("0a", md5.Size)
	tests := map[string]struct {
		set Set
		ok  bool
	}{
		"empty":             {nil, true},
		"good":              {Set{MD5: m, SHA1: strings.Repeat("00", 20), SHA256: strings.Repeat("ff", 32)}, true},
		"unknown algorithm": {Set{"crc0": "0011223344556677"}, true},
		"upper case":        {Set{MD5: strings.ToUpper(m)}, false},
		"too short":         {Set{MD5: m[2:]}, false},
		"of another length": {Set{SHA256: m}, false},
		"empty digest":      {Set{"crc0": ""}, false},
		"odd length":        {Set{"crc0": "001"}, false},
		"multipart etag":    {Set{MD5: m[:30] + "-2"}, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if err := tt.set.Validate(); (err == nil) != tt.ok {
				t.Errorf("got %v, want ok %v", err, tt.ok)
			}
		})
	}
}

func sums(b []byte) Set {
	m, s1, s2 := md5.Sum(b), sha1.Sum(b), sha256.Sum256(b)
	return Set{MD5: hex.EncodeToString(m[:]), SHA1: hex.EncodeToString(s1[:]), SHA256: hex.EncodeToString(s2[:])}
}

// The digests equal those of the standard library for any division of the stream into writes.
func TestHasherAnyCut(t *testing.T) {
	all := []string{MD5, SHA1, SHA256}
	need.Check(t, func(t *rapid.T) {
		algs := rapid.SliceOfDistinct(rapid.SampledFrom(all), func(s string) string { return s }).Draw(t, "algs")
		h, err := New(algs...)
		if err != nil {
			t.Fatal(err)
		}
		for range rapid.IntRange(1, 3).Draw(t, "streams") {
			h.reset()
			var stream []byte
			for _, n := range rapid.SliceOfN(rapid.OneOf(rapid.IntRange(0, 100),
				rapid.IntRange(cacheBlock-1, cacheBlock+1), rapid.IntRange(forkBytes-1, forkBytes+1)), 0, 4).Draw(t, "cuts") {
				p := bytes.Repeat([]byte{byte(n), 'x', byte(len(stream))}, n/3+1)[:n]
				stream = append(stream, p...)
				if rapid.Bool().Draw(t, "read") {
					if m, err := h.ReadFrom(iotest.HalfReader(bytes.NewReader(p))); m != int64(n) || err != nil {
						t.Fatalf("ReadFrom: got %d, %v, want %d", m, err, n)
					}
				} else if m, err := h.Write(p); m != n || err != nil {
					t.Fatalf("Write: got %d, %v, want %d", m, err, n)
				}
			}
			if got, want := h.Sum(), sums(stream).Only(algs...); !maps.Equal(got, want) {
				t.Fatalf("got %v, want %v", got, want)
			}
			if got, want := h.Size(), int64(len(stream)); got != want {
				t.Fatalf("got size %d, want %d", got, want)
			}
		}
	})
}

func TestHasherReadFromFails(t *testing.T) {
	boom := errors.New("boom")
	h, _ := New(MD5, SHA256)
	n, err := h.ReadFrom(io.MultiReader(strings.NewReader("abc"), iotest.ErrReader(boom)))
	if n != 3 || !errors.Is(err, boom) {
		t.Errorf("got %d, %v, want 3 and the reader's error", n, err)
	}
	wrapped := fmt.Errorf("connection: %w", io.EOF)
	if _, err := h.ReadFrom(iotest.ErrReader(wrapped)); err != wrapped {
		t.Errorf("got %v, want the error of the reader, which is not io.EOF", err)
	}
	if _, err := h.ReadFrom(stuck{}); !errors.Is(err, io.ErrNoProgress) {
		t.Errorf("got %v, want io.ErrNoProgress", err)
	}
}

type stuck struct{}

func (stuck) Read([]byte) (int, error) { return 0, nil }

func TestNew(t *testing.T) {
	if _, err := New(MD5, "crc32"); !errors.Is(err, errAlgorithm) {
		t.Errorf("got %v, want errAlgorithm", err)
	}
	h, err := New(MD5, MD5)
	if err != nil || !slices.Equal(h.Sum().Algorithms(), []string{MD5}) {
		t.Errorf("got %v, %v, want one md5", h, err)
	}
	if Known("crc32") || !Known(SHA1) {
		t.Error("Known is wrong")
	}
}

func TestPool(t *testing.T) {
	p, err := NewPool(MD5, SHA256)
	if err != nil {
		t.Fatal(err)
	}
	for _, more := range [][]string{nil, {MD5}, {SHA1}, nil} {
		h, err := p.Get(more...)
		if err != nil {
			t.Fatal(err)
		}
		h.Write([]byte("abc"))
		want := sums([]byte("abc")).Only(append([]string{MD5, SHA256}, more...)...)
		if got := h.Sum(); !maps.Equal(got, want) {
			t.Errorf("more %v: got %v, want %v", more, got, want)
		}
		p.Put(h)
	}
	if _, err := p.Get("crc32"); !errors.Is(err, errAlgorithm) {
		t.Errorf("got %v, want errAlgorithm", err)
	}
	if _, err := NewPool("crc32"); !errors.Is(err, errAlgorithm) {
		t.Errorf("got %v, want errAlgorithm", err)
	}
}
