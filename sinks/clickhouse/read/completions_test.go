package read_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/clickhousetest"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/sinks/clickhouse/verify"
)

// digestWords are the words whose MD5 the tests of completions use.
var digestWords = []string{"one", "two", "three"}

// A completionCase is a history of an item, and what is on record after it: the word of the MD5, with how it is known,
// and that of a contradicted claim.
type completionCase struct {
	history  []*pb.Change
	manifest string
	audit    string // if it differs from the manifest, without the claim
	by       string // the property "by"
}

func completionCases(item string) map[string]completionCase {
	with := func(c *pb.Change, f func(*pb.Change)) *pb.Change {
		c = proto.CloneOf(c)
		f(c)
		c.Id = schemas.ChangeID(c)
		return c
	}
	says := func(word string, how pb.Provenance) func(*pb.Change) {
		return func(c *pb.Change) {
			c.Provenance, c.Digests = how, map[string]string{"md5": schemas.ID(word)}
			if word == "" {
				c.Digests = nil
			}
		}
	}
	const none, claimed, verified = pb.Provenance_PROVENANCE_UNSPECIFIED, pb.Provenance_PROVENANCE_CLAIMED,
		pb.Provenance_PROVENANCE_VERIFIED
	bare := with(clickhousetest.Change(item, 0), says("", none))
	claim, report := with(bare, says("two", claimed)), with(bare, says("two", verified))
	completed := func(c *pb.Change, word string) *pb.Change { return clickhousetest.Complete(c, word) }
	later := with(clickhousetest.Change(item, time.Minute), says("", none))
	gone := with(later, func(c *pb.Change) { c.Op = pb.Op_OP_DELETE })
	ahead := with(bare, func(c *pb.Change) { c.Time = clickhousetest.At(174 * 365 * 24 * time.Hour) })
	other := with(bare, func(c *pb.Change) { c.Version = "v2" })
	described := func(c *pb.Change, by string) *pb.Change {
		return with(c, func(c *pb.Change) { c.Properties = map[string]string{"by": by} })
	}
	set := with(described(bare, "you"), func(c *pb.Change) { c.Op, c.Version = pb.Op_OP_SET_PROPERTIES, "" })
	one := completed(bare, "one")
	of := func(all ...*pb.Change) []*pb.Change { return all }
	return map[string]completionCase{
		"bare":                   {history: of(bare), manifest: "none"},
		"bare, completed":        {history: of(bare, one), manifest: "verified one"},
		"completed twice":        {history: of(bare, one, completed(bare, "two")), manifest: "verified one"},
		"completed, reported":    {history: of(bare, one, report), manifest: "verified two"},
		"reported, completed":    {history: of(report, one), manifest: "verified two"},
		"claim, contradicted":    {history: of(claim, one), manifest: "verified one, not two", audit: "verified one"},
		"claim, agreed":          {history: of(claim, completed(claim, "two")), manifest: "verified two"},
		"completed, claimed":     {history: of(bare, one, claim), manifest: "verified one, not two", audit: "verified one"},
		"ahead, completed":       {history: of(ahead, completed(ahead, "one")), manifest: "verified one"},
		"completed, deleted":     {history: of(bare, one, gone), manifest: "verified one"},
		"completed, new content": {history: of(bare, one, later), manifest: "none"},
		"new content, completed": {history: of(bare, later, one), manifest: "none"},
		"a claim of that time": {history: of(bare, one, with(other, says("two", claimed))),
			manifest: "claimed two"},
		"a report of that time": {history: of(bare, one, with(other, says("two", verified))),
			manifest: "verified two"},
		"a claim after a report of that time": {history: of(report, with(other, says("three", claimed))),
			manifest: "claimed three"},
		"properties of the completion": {history: of(bare, described(one, "me")), manifest: "verified one", by: "me"},
		"properties of that time":      {history: of(bare, described(one, "me"), set), manifest: "verified one", by: "you"},
	}
}

// describeDigests returns the digests of a record in the form of a completionCase.
func describeDigests(digests map[string]string, how pb.Provenance, claims map[string]string) string {
	word := func(m map[string]string) string {
		i := slices.IndexFunc(digestWords, func(w string) bool { return schemas.ID(w) == m["md5"] })
		return append(digestWords, "another")[(i+4)%4]
	}
	if len(digests) == 0 {
		return "none"
	}
	s := strings.ToLower(strings.TrimPrefix(how.String(), "PROVENANCE_")) + " " + word(digests)
	if len(claims) > 0 {
		s += ", not " + word(claims)
	}
	return s
}

// Digests that millrace computed join the content that they were computed from, wherever records are read, however
// often and in which order they are stored: the first completion stays, a report goes before it, and a claim that it
// contradicts stands beside it. All reports are one row of the audit log's view. Kafka has each an hour after the last.
func TestDigestsJoin(t *testing.T) {
	t.Parallel()
	inOrder := func(n int) (all []int) {
		for i := range n {
			all = append(all, i)
		}
		return all
	}
	for name, order := range map[string]func(n int) []int{
		"in one batch": nil,
		"one by one":   inOrder,
		"reversed":     func(n int) []int { all := inOrder(n); slices.Reverse(all); return all },
		"twice":        func(n int) []int { return append(inOrder(n), inOrder(n)...) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := clickhousetest.Open(t)
			cases := completionCases("")
			names := slices.Sorted(maps.Keys(cases))
			var copies []schemas.Copy
			for i, item := range names {
				history := completionCases(item)[item].history
				copies = append(copies, schemas.CopyOf(history[0]))
				var records []*schemas.Delivery
				for j, c := range history {
					d := clickhousetest.Deliver(schemas.Changes, int64(100*i+j), c)[0]
					d.Timestamp = clickhousetest.Epoch.Add(time.Duration(j+1) * time.Hour)
					records = append(records, d)
				}
				batches := [][]*schemas.Delivery{records}
				if order != nil {
					batches = nil
					order := order
					if item == "ahead, completed" && name == "reversed" {
						order = inOrder // what is ahead is stored in Kafka's order
					}
					for _, j := range order(len(records)) {
						batches = append(batches, records[j:j+1])
					}
				}
				for _, batch := range batches {
					must(t, clickhouse.NewSink(db).Store(t.Context(), batch))
					must(t, clickhouse.NewState(db).Store(t.Context(), batch))
				}
			}
			checkCompletions(t, db, names, copies)
		})
	}
}

// checkCompletions compares what is on record of the cases, by all ways to read it.
func checkCompletions(t *testing.T, db *clickhouse.DB, names []string, copies []schemas.Copy) {
	t.Helper()
	cases := completionCases("")
	fresh, err := clickhousetest.Reader(t, db, clickhousetest.Reached,
		read.ReaderConfig{}.WithBatch(0, time.Millisecond)).Fresh(t.Context(), copies)
	must(t, err)
	known, err := read.Records(t.Context(), db, copies)
	must(t, err)
	view, err := clickhousetest.Strings(t.Context(), db, "SELECT formatRowNoNewline('JSONEachRow', item, digests['md5'],"+
		" verified, claims['md5'], properties['by']) FROM {db}.manifest ORDER BY item")
	must(t, err)
	for i, name := range names {
		want := cases[name]
		audit := want.audit
		if audit == "" {
			audit = want.manifest
		}
		for from, r := range map[string]*pb.CopyRecord{"fresh": fresh[i], "records": known[i]} {
			m, a := r.GetManifest(), r.GetAudit()
			if got := describeDigests(m.GetDigests(), m.GetProvenance(), m.GetClaims()); got != want.manifest {
				t.Errorf("%s, %s: the manifest says %q, want %q", name, from, got, want.manifest)
			}
			if got := describeDigests(a.GetDigests(), a.GetProvenance(), nil); got != audit {
				t.Errorf("%s, %s: the audit log says %q, want %q", name, from, got, audit)
			}
			if m.GetChangeId() != a.GetChangeId() {
				t.Errorf("%s, %s: the manifest has change %s, the audit log %s", name, from, m.GetChangeId(), a.GetChangeId())
			}
			if m.GetProperties()["by"] != want.by || m.GetPropertiesClaimed() && want.by != "" {
				t.Errorf("%s, %s: properties %v", name, from, m)
			}
		}
		m := fresh[i].GetManifest()
		verified := 0
		if m.GetProvenance() == pb.Provenance_PROVENANCE_VERIFIED {
			verified = 1
		}
		line := fmt.Sprintf(`{"item":%q,"arrayElement(digests, 'md5')":%q,"verified":%d,"arrayElement(claims, 'md5')":%q,`+
			`"arrayElement(properties, 'by')":%q}`, name, m.GetDigests()["md5"], verified, m.GetClaims()["md5"], want.by)
		if i >= len(view) || view[i] != line {
			t.Errorf("%s: the view manifest says %s, want %s", name, view[min(i, len(view)-1)], line)
		}
		ids := map[string]bool{}
		for _, c := range want.history {
			ids[c.GetId()+c.GetTime().String()] = true
		}
		rows := clickhousetest.Count(t, db, "audit_log_v WHERE item = '"+name+"'")
		if rows != fmt.Sprint(len(ids)) {
			t.Errorf("%s: the view of the audit log has %s rows, want %d", name, rows, len(ids))
		}
	}
	report, err := verify.Manifest(t.Context(), db, verify.ManifestConfig{})
	if err != nil || len(report.Differ) > 0 || int(report.Copies) != len(copies) {
		t.Errorf("rebuilt: %+v, %v", report, err)
	}
}
