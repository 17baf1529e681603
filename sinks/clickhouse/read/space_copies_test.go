package read_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse/clickhousetest"
	"github.com/millrace/millrace/sinks/clickhouse/read"
)

func versionOf(c read.RecordedCopy) string {
	if !c.Live { // records have no content of a deleted copy
		return ""
	}
	return c.Version + "," + c.ETag
}

// recorded returns a record of the manifest in the form of the test.
func recorded(c schemas.Copy, m *pb.Record) string {
	version := ""
	if m.GetState() == pb.RecordState_RECORD_STATE_LIVE {
		version = m.GetVersion() + "," + m.GetEtag()
	}
	// The fields: live, size, time, time of the source, inferred, digests.
	f := strings.SplitN(strings.TrimPrefix(describeStored(c, m), c.Store+"/"+c.Space+"/"+c.Item+" "), " ", 6)
	return strings.Join([]string{c.Item, f[0], f[1], f[2], version, f[4], f[5]}, " ")
}

// EachInSpace returns what Records returns, for each item of a part of a space once and in order, also if the rows of
// the state are unmerged.
func TestEachInSpace(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	changes := storedChanges()
	for part := range slices.Chunk(changes, 5) { // a part of the table each
		clickhousetest.StoreBoth(t, db, schemas.Changes, int64(len(part)), part...)
	}
	all := func(of schemas.Copy, last string) (got []string) {
		t.Helper()
		err := read.EachInSpace(t.Context(), db, of, last, func(c read.RecordedCopy) error {
			got = append(got, fmt.Sprintf("%s %t %d %s %s %t %s", c.Item, c.Live, c.Size, c.Time.Format(time.RFC3339Nano),
				versionOf(c), c.Inferred, c.Digests))
			return nil
		})
		must(t, err)
		return got
	}
	for _, of := range []schemas.Copy{
		{Account: "acme", Store: "1", Space: "photos"}, {Account: "acme", Store: "2", Space: "photos"},
		{Account: "acme", Store: "10", Space: "photos"}, {Account: "acme", Store: "1", Space: "a"},
	} {
		var want []string
		for _, c := range keysOf(changes) {
			if c.WithoutItem() == of {
				records, err := read.Records(t.Context(), db, []schemas.Copy{c})
				must(t, err)
				want = append(want, recorded(c, records[0].GetManifest()))
			}
		}
		slices.Sort(want)
		if got := all(of, ""); !slices.Equal(got, want) {
			t.Errorf("%v: got\n%s\nwant\n%s", of, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		if got := all(schemas.Copy{Account: of.Account, Store: of.Store, Space: of.Space, Item: "a"}, "a/b"); len(got) != 1 ||
			!strings.HasPrefix(got[0], "a/b ") {
			t.Errorf("%v: of the part: got %q", of, got)
		}
	}
	stop := errors.New("stop")
	err := read.EachInSpace(t.Context(), db, schemas.Copy{Account: "acme", Store: "1", Space: "photos"}, "",
		func(read.RecordedCopy) error { return stop })
	if !errors.Is(err, stop) {
		t.Errorf("got %v", err)
	}
	if got := all(schemas.Copy{Account: "acme", Store: "1", Space: "nothing"}, ""); len(got) > 0 {
		t.Errorf("an unknown space: got %q", got)
	}
}

// A pass counts if it was of the content on record: of the same digests, as far as both have them.
func TestEachInSpaceHasPasses(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	of := schemas.Copy{Account: "acme", Store: "1", Space: "photos"}
	set := func(md5, sha1 string) map[string]string {
		d := map[string]string{}
		for alg, digit := range map[string]string{"md5": md5, "sha1": sha1} {
			if digit != "" {
				d[alg] = strings.Repeat(digit, map[string]int{"md5": 32, "sha1": 40}[alg])
			}
		}
		return d
	}
	for name, tt := range map[string]struct {
		current, passed map[string]string
		claimed, want   bool
	}{
		"the same":               {set("a", "b"), set("a", "b"), false, true},
		"one is shared":          {set("a", ""), set("a", "b"), false, true},
		"claimed":                {set("a", ""), set("a", "b"), true, true},
		"other content":          {set("c", ""), set("a", ""), false, false},
		"one of two contradicts": {set("a", "c"), set("a", "b"), false, false},
		"another contradicts":    {set("c", "b"), set("a", "b"), false, false},
		"none is shared":         {set("a", ""), set("", "b"), false, false},
		"none on record":         {nil, set("a", "b"), false, false},
	} {
		of.Item = name
		c := clickhousetest.Change(name, 0)
		result := clickhousetest.Result(c, time.Hour)
		result.Content.Digests = tt.passed
		if c.Digests = tt.current; tt.claimed {
			c.Provenance = pb.Provenance_PROVENANCE_CLAIMED
		}
		c.Id = schemas.ChangeID(c)
		clickhousetest.StoreBoth(t, db, schemas.Changes, 0, c)
		clickhousetest.StoreBoth(t, db, schemas.FixityResults, 0, result)
		err := read.EachLike(t.Context(), db, of.WithoutItem(), []string{name}, func(c read.RecordedCopy) error {
			want := time.Time{}
			if tt.want {
				want = clickhousetest.Epoch.Add(time.Hour).Truncate(time.Millisecond)
			}
			if !c.Passed.Equal(want) {
				t.Errorf("%s: got %v, want %v", name, c.Passed, want)
			}
			return nil
		})
		must(t, err)
	}
}

// EachLike returns the items that match a pattern, after an item. ManifestRecords returns the manifest of Records.
func TestEachLike(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	of := schemas.Copy{Account: "acme", Store: "1", Space: "photos"}
	var changes []schemas.Body
	var copies []schemas.Copy
	for _, item := range []string{"a.part-1", "a.part-2", "a.whole", "b", "it's.part-1", "part-1", "whole.x"} {
		c := clickhousetest.Change(item, 0)
		c.Id = schemas.ChangeID(c)
		changes = append(changes, c)
		copies = append(copies, schemas.CopyOf(c))
	}
	clickhousetest.StoreBoth(t, db, schemas.Changes, 0, changes...)
	for after, want := range map[string][]string{
		"": {"a.part-1", "a.part-2", "a.whole", "it's.part-1"}, "a.part-2": {"a.whole", "it's.part-1"}, "it's.part-1": nil,
	} {
		var got []string
		of.Item = after
		err := read.EachLike(t.Context(), db, of, []string{"%.whole", "%.part-%"}, func(c read.RecordedCopy) error {
			got = append(got, strings.Clone(c.Item))
			return nil
		})
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("after %q: got %q, %v, want %q", after, got, err, want)
		}
	}
	copies = append(copies, schemas.Copy{Account: "acme", Store: "1", Space: "photos", Item: "unknown"})
	whole, err := read.Records(t.Context(), db, copies)
	must(t, err)
	manifests, err := read.ManifestRecords(t.Context(), db, copies)
	must(t, err)
	for i, r := range manifests {
		if !proto.Equal(r.GetManifest(), whole[i].GetManifest()) ||
			r.GetAudit().GetState() != pb.RecordState_RECORD_STATE_NONE {
			t.Errorf("%s: got %v, want %v", copies[i].Item, r, whole[i])
		}
	}
}
