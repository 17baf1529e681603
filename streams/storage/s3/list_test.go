package s3

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/s3/s3test"
)

// contents returns the XML of entries of a page.
func contents(keys ...string) string {
	var b strings.Builder
	for _, k := range keys {
		fmt.Fprintf(&b,
			"<Contents><Key>%s</Key><LastModified>2026-10-21T07:28:00.000Z</LastModified>"+
				"<ETag>&quot;e&quot;</ETag><Size>1</Size></Contents>", k)
	}
	return b.String()
}

func result(inner string) string { return "<ListBucketResult>" + inner + "</ListBucketResult>" }

const (
	encoded = "<EncodingType>url</EncodingType>"
	more2   = "<IsTruncated>true</IsTruncated><NextContinuationToken>2</NextContinuationToken>"
)

// Correct and incorrect listings of services: the result is exact, or the listing ends with an error.
func TestOddListings(t *testing.T) {
	for name, tt := range map[string]struct {
		pages   []string // the last one is repeated forever, or all of them in turn
		turns   bool
		want    []string
		skipped int
		is      error
		class   retry.Class
	}{
		"exact": {pages: []string{result(contents("s/a", "s/b") + more2), result(contents("s/c"))},
			want: []string{"a", "b", "c"}},
		"no items": {pages: []string{result("")}},
		"repeats in a page": {pages: []string{result(contents("s/a", "s/a"))}, want: []string{"a"},
			is: storage.ErrListing},
		"goes back in a page": {pages: []string{result(contents("s/b", "s/a"))}, want: []string{"b"},
			is: storage.ErrListing},
		"repeats a page": {pages: []string{result(contents("s/a", "s/b") + more2)}, want: []string{"a", "b"},
			is: storage.ErrListing},
		"goes back in the next": {pages: []string{result(contents("s/b") + more2), result(contents("s/a"))},
			want: []string{"b"}, is: storage.ErrListing},
		"the same token for ever": {pages: []string{result(more2)}, is: storage.ErrListing},
		"empty pages in a circle": {pages: []string{result(more2), result(strings.ReplaceAll(more2, ">2<", ">3<")),
			result(strings.ReplaceAll(more2, ">2<", ">4<"))}, turns: true, is: storage.ErrListing},
		"truncated without a token": {pages: []string{result("<IsTruncated>true</IsTruncated>" + contents("s/a"))},
			is: storage.ErrListing},
		"of another prefix": {pages: []string{result(contents("other/a"))}, is: storage.ErrListing},
		"encoded": {pages: []string{result(encoded + contents("s/a%2Fb+c%2B%25", "s/%C3%A4%0A",
			"s/%F0%9F%A6%A5"))}, want: []string{"a/b c+%", "ä\n", "🦥"}},
		"not encoded": {pages: []string{result(contents("s/a%2F+", "s/ä"))}, want: []string{"a%2F+", "ä"}},
		"a key that is no UTF-8": {pages: []string{result(encoded + contents("s/a", "s/b%FF", "s/c"))},
			want: []string{"a", "c"}, skipped: 1},
		"encoded wrongly": {pages: []string{result(encoded + contents("s/a%2"))}, class: retry.Transient,
			is: errAny},
		"no UTF-8, not encoded": {pages: []string{result(contents("s/\xff"))}, class: retry.ClassUnavailable,
			is: errAny},
		"cut": {pages: []string{result(contents("s/a"))[:60]}, class: retry.ClassUnavailable,
			is: errAny},
		"an error within a success": {pages: []string{"<Error><Code>SlowDown</Code></Error>"}, is: storage.ErrSlowDown},
		"other XML":                 {pages: []string{"<rss><channel/></rss>"}, class: retry.ClassUnavailable, is: errAny},
		"XHTML": {pages: []string{`<?xml version="1.0"?>` +
			`<html xmlns="http://www.w3.org/1999/xhtml"><body/></html>`}, class: retry.ClassUnavailable, is: errAny},
		"JSON":    {pages: []string{`{"items": []}`}, class: retry.ClassUnavailable, is: errAny},
		"nothing": {pages: []string{""}, class: retry.ClassUnavailable, is: errAny},
		"with an answer's other name": {pages: []string{"<ListAllMyBucketsResult></ListAllMyBucketsResult>"},
			class: retry.ClassUnavailable, is: errAny},
	} {
		t.Run(name, func(t *testing.T) {
			sc, n := &script{}, 0
			var skipped int
			s, _ := direct(t, s3test.Options{Before: sc.hook}, func(c *Config) {
				c.Skipped = func(string, string) { skipped++ }
			})
			sc.answer = func(w http.ResponseWriter, r *http.Request) bool {
				if !r.URL.Query().Has("list-type") {
					return false
				}
				if n++; n > 10 {
					t.Error("has no end")
					return false
				}
				w.Header().Set("Content-Type", "application/xml")
				page := min(n, len(tt.pages))
				if tt.turns {
					page = (n-1)%len(tt.pages) + 1
				}
				_, _ = io.WriteString(w, tt.pages[page-1])
				return true
			}
			sc.on = true
			var got []string
			var err error
			for o, e := range s.List(t.Context(), "s", "") {
				if err = e; e == nil {
					got = append(got, o.Item)
				}
			}
			if !slices.Equal(got, tt.want) || skipped != tt.skipped || (err != nil) != (tt.is != nil) ||
				tt.is != errAny && !errors.Is(err, tt.is) {
				t.Errorf("listed %q, skipped %d: %v; want %q, %d: %v", got, skipped, err, tt.want, tt.skipped, tt.is)
			}
			if retry.ClassOf(err) != tt.class {
				t.Errorf("%v is %v, want %v", err, retry.ClassOf(err), tt.class)
			}
		})
	}
}

var errAny = errors.New("any")

// A listing of versions that repeats a page ends with an error.
func TestVersionListingLoop(t *testing.T) {
	sc := &script{}
	s, _ := direct(t, s3test.Options{Versions: true, Before: sc.hook})
	sc.answer = func(w http.ResponseWriter, r *http.Request) bool {
		if !r.URL.Query().Has("versions") {
			return false
		}
		_, _ = io.WriteString(w,
			`<ListVersionsResult><IsTruncated>true</IsTruncated><NextKeyMarker>s/a</NextKeyMarker></ListVersionsResult>`)
		return true
	}
	sc.on = true
	var err error
	for _, err = range s.List(t.Context(), "s", "") {
		if err == nil {
			t.Fatal("an item")
		}
	}
	if !errors.Is(err, storage.ErrListing) {
		t.Errorf("%v", err)
	}
}
