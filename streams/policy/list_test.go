package policy

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/millrace/millrace/internal/heaptest"
	"github.com/millrace/millrace/internal/need"
)

func refOf(text, of string) ExcludeList {
	sum := sha256.Sum256([]byte(text))
	return ExcludeList{URL: "https://lists/a.txt", SHA256: hex.EncodeToString(sum[:]), Of: of}
}

func TestReadList(t *testing.T) {
	md5, sha := strings.Repeat("0a", 16), strings.Repeat("0a", 32)
	tests := map[string]struct {
		text, of string
		item     string
		digests  map[string]string
		listed   bool
		certain  bool
	}{
		"id":                     {"a/b.jpg\nc d\n", OfIDs, "c d", nil, true, true},
		"no newline at end":      {"a\nb", OfIDs, "b", nil, true, true},
		"from Windows":           {"a\r\nb\r\n", OfIDs, "a", nil, true, true},
		"empty lines":            {"\n\na\n\n", OfIDs, "a", nil, true, true},
		"empty id":               {"\n\na\n\n", OfIDs, "", nil, false, true},
		"part of an id":          {"a/b", OfIDs, "a", nil, false, true},
		"ids have case":          {"A", OfIDs, "a", nil, false, true},
		"twice":                  {"a\na\n", OfIDs, "a", nil, true, true},
		"empty":                  {"", OfIDs, "a", nil, false, true},
		"comments are ids":       {"# a\n", OfIDs, "# a", nil, true, true},
		"digest":                 {md5, OfDigests, "a", map[string]string{"md5": md5}, true, true},
		"digest in upper case":   {strings.ToUpper(sha), OfDigests, "a", map[string]string{"sha256": sha}, true, true},
		"another digest":         {md5, OfDigests, "a", map[string]string{"md5": md5[2:] + "ff"}, false, true},
		"no digest known":        {md5, OfDigests, "a", nil, false, false},
		"one of two known":       {md5 + "\n" + sha, OfDigests, "a", map[string]string{"md5": sha[:30] + "ff"}, false, false},
		"one of two is enough":   {md5 + "\n" + sha, OfDigests, "a", map[string]string{"md5": md5}, true, true},
		"an id that is a digest": {md5, OfDigests, md5, map[string]string{"md5": sha[:30] + "ff"}, false, true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			ref := refOf(tt.text, tt.of)
			list, err := ReadList(iotest.HalfReader(strings.NewReader(tt.text)), ref)
			must(t, err)
			reason, certain := Rules{ExcludeLists: []ExcludeList{ref}}.Excluded(tt.item,
				Content{Digests: tt.digests}, []*List{list})
			if (reason != "") != tt.listed || certain != tt.certain {
				t.Errorf("got %q, %v, want %v, %v", reason, certain, tt.listed, tt.certain)
			}
		})
	}
}

// A list that is not the one of the policy, or that has a line which cannot be meant, excludes nothing and allows
// nothing.
func TestReadListFaults(t *testing.T) {
	const malformed = "malformed list: "
	long := strings.Repeat("x", maxListLine)
	tests := map[string]struct {
		text, sum string
		of, want  string
	}{
		"another content": {"a\n", "b\n", OfIDs, "its SHA-256 is " +
			"87428fc522803d31065e7bce3cf03fe475096631e5e07bbd7a0fde60c4cf25c7, " +
			"and the policy names 0263829989b6fd954f72baaf2fc64bc2e2f01d692d4de72986ea808f6e99813f"},
		"a page of an error":       {"<html>" + long, "a\n", OfIDs, "its SHA-256 is "},
		"long line":                {"a\n" + long + "x\n", "", OfIDs, malformed + "line 2 has more than 1024 bytes"},
		"very long line":           {strings.Repeat(long, 100), "", OfIDs, malformed + "line 1 has more than 1024 bytes"},
		"no digest":                {"\nfile.txt\n", "", OfDigests, malformed + "line 2 is no MD5 or SHA-256 in hex"},
		"of another algorithm":     {strings.Repeat("a", 40), "", OfDigests, malformed + "line 1 is no MD5"},
		"of the length of digests": {strings.Repeat("x", 32), "", OfDigests, malformed + "line 1 is no MD5"},
		"too many lines":           {strings.Repeat("a\n", maxListLines+1), "", OfIDs, malformed + "it has more"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			sum := tt.sum
			if sum == "" {
				sum = tt.text
			}
			list, err := ReadList(strings.NewReader(tt.text), refOf(sum, tt.of))
			if list != nil || err == nil || !strings.HasPrefix(err.Error(), tt.want) {
				t.Errorf("got %v, %v, want %s", list, err, tt.want)
			}
		})
	}
	t.Run("as many lines as there may be", func(t *testing.T) {
		most := strings.Repeat("a\n", maxListLines)
		if _, err := ReadList(strings.NewReader(most), refOf(most, OfIDs)); err != nil {
			t.Error(err)
		}
	})
	t.Run("cut off", func(t *testing.T) {
		broken := errors.New("connection reset")
		r := io.MultiReader(strings.NewReader("a\n"), iotest.ErrReader(broken))
		if _, err := ReadList(r, refOf("a\n", OfIDs)); !errors.Is(err, broken) {
			t.Errorf("got %v, want %v", err, broken)
		}
	})
}

// A list takes 16 bytes a line, and little more while it is read.
func TestMemoryOfALongList(t *testing.T) {
	n := need.Amount(maxListLines/10, maxListLines, maxListLines)
	lines := func() io.Reader {
		r, w := io.Pipe()
		go func() {
			b := bufio.NewWriter(w)
			for i := range n {
				fmt.Fprintf(b, "photos/2026/%064d.jpg\n", i)
			}
			w.CloseWithError(b.Flush())
		}()
		return r
	}
	sum := sha256.New()
	if _, err := io.Copy(sum, lines()); err != nil {
		t.Fatal(err)
	}
	ref := ExcludeList{URL: "https://lists/a.txt", SHA256: hex.EncodeToString(sum.Sum(nil)), Of: OfIDs}
	var list *List
	start := time.Now()
	peak := heaptest.Peak(func() {
		var err error
		if list, err = ReadList(lines(), ref); err != nil {
			t.Fatal(err)
		}
	})
	t.Logf("%d lines, %d bytes, peak %d bytes, %s", list.Len(), list.Bytes(), peak, time.Since(start))
	if list.Len() != n || list.Bytes() != int64(16*n) || peak > int64(64*n) {
		t.Errorf("%d lines take %d bytes, at most %d while they are read", list.Len(), list.Bytes(), peak)
	}
	if listed, _ := list.excludes(fmt.Sprintf("photos/2026/%064d.jpg", n-1), Content{}); !listed {
		t.Error("the last line is not found")
	}
}
