package duplicate

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/record"
)

// listOf returns an exclusion list with these lines, and its content.
func listOf(of string, lines ...string) (policy.ExcludeList, *policy.List) {
	text := strings.Join(lines, "\n")
	sum := sha256.Sum256([]byte(text))
	ref := policy.ExcludeList{URL: "https://lists/" + of, SHA256: hex.EncodeToString(sum[:]), Of: of}
	list, err := policy.ReadList(strings.NewReader(text), ref)
	if err != nil {
		panic(err)
	}
	return ref, list
}

func ids(lines ...string) (policy.ExcludeList, *policy.List) { return listOf(policy.OfIDs, lines...) }

func digests(lines ...string) (policy.ExcludeList, *policy.List) {
	return listOf(policy.OfDigests, lines...)
}

// listed adds an exclusion list that was read.
func (s *Observation) listed(ref policy.ExcludeList, list *policy.List) {
	s.Rules.ExcludeLists = append(s.Rules.ExcludeLists[:len(s.lists):len(s.lists)], ref)
	s.lists = append(s.lists, list)
}

// policyCases are the cases of the item table that depend on the options of a policy.
func policyCases() map[string]decisionCase {
	excluded := func(detail string) Decision { return Decision{Row: "C10", Result: "excluded", Detail: detail} }
	hold := &policy.Hold{Prefix: "a", Until: hour(99), Reason: "a lawsuit"}
	held := func(row Row) Decision {
		return Decision{Row: row, Result: "held", Detail: `hold of prefix "a" until ` +
			hour(99).UTC().Format(time.RFC3339) + ": a lawsuit"}
	}
	sum := strings.Repeat("a", 64)
	return map[string]decisionCase{
		"C10: by glob": {func(s *Observation) {
			s.Rules.Exclude = []string{"*.txt", "*.jpg"}
		}, excluded(`exclude "*.jpg"`)},
		"C10: too large": {func(s *Observation) {
			s.Rules.MaxSize, s.Source.Object.Size = 1000, 1001
		}, excluded("1001 bytes are more than maxSize 1kB")},
		"C10: too small": {func(s *Observation) { s.Rules.MinSize = 2 }, excluded("1 bytes are less than minSize 2B")},
		"C10: older than the start": {func(s *Observation) { s.Rules.Start = hour(3) },
			excluded("the content of " + hour(2).UTC().Format(time.RFC3339) + " is older than start " +
				hour(3).Format(time.RFC3339))},
		"C10: its id is listed": {func(s *Observation) { s.listed(ids("b.jpg", "a.jpg")) },
			excluded("excludeLists https://lists/ids")},
		"C10: its digest is listed, and the store reports it": {func(s *Observation) {
			s.listed(digests(sum, a))
		}, excluded("excludeLists https://lists/digests")},
		"C10: its digest is listed, and the change reports it": {func(s *Observation) {
			s.Source.Object.Digests = nil
			s.listed(digests(a))
		}, excluded("excludeLists https://lists/digests")},
		"C10: its digest is listed, and was read": {func(s *Observation) {
			s.Source.Read = map[string]string{"md5": a, "sha256": sum}
			s.listed(digests(sum))
		}, excluded("excludeLists https://lists/digests")},
		"C9: the exclusion lists are not read": {func(s *Observation) {
			s.Rules.ExcludeLists = make([]policy.ExcludeList, 1)
		}, Decision{Row: "C9", action: actReadLists}},
		"C9: nor are they for a delete": {func(s *Observation) {
			s.deleted(row(tomb, "v1", a, 4))
			s.Rules.ExcludeLists = make([]policy.ExcludeList, 1)
		}, Decision{Row: "C9", action: actReadLists}},
		"C1: a list has digests that the source lacks": {func(s *Observation) { s.listed(digests(sum)) },
			Decision{Row: "C1", action: actReadBytes, ReadSource: true}},
		"C5: beside all exclusions": {func(s *Observation) {
			s.Rules.Exclude, s.Rules.MinSize, s.Rules.MaxSize, s.Rules.Start = []string{"*.txt"}, 1, 1, hour(2)
			s.listed(ids("b.jpg", "a.jp", "a.jpg "))
			s.listed(digests(b))
		}, Decision{Row: "C5", action: actCopy, Result: "copied", Expected: md5of(a)}},
		"C5: under a hold": {func(s *Observation) { s.Hold = hold },
			Decision{Row: "C5", action: actCopy, Result: "copied", Expected: md5of(a)}},
		"C4: under a hold": {func(s *Observation) { s.Hold = hold; s.copiedFrom(1) }, held("C4")},
		"C3: under a hold": {func(s *Observation) {
			s.Hold = hold
			s.copied("d1", a)
			s.Source.Object.Properties = storage.Properties{MediaType: "image/jpeg"}
			s.records(row(live, "v1", a, 2), row(live, "d1", a, 3))
		}, held("C3")},
		"C2: under a hold": {func(s *Observation) {
			s.Hold = hold
			s.copied("d1", a)
			s.records(row(live, "v1", a, 2), row(live, "d1", a, 3))
			s.checked()
		}, Decision{Row: "C2", Result: "in-sync"}},
		"C7b: under a hold": {func(s *Observation) { s.Hold = hold; s.deleted(row(tomb, "v1", a, 4)) }, held("C7b")},
		"C7b: under a hold, and approved": {func(s *Observation) {
			s.Hold = hold
			s.deleted(row(tomb, "v1", a, 4))
			s.Command.Approved = "me"
		}, held("C7b")},
		"C7d: under a hold": {func(s *Observation) {
			s.Hold = hold
			s.deleted(row(tomb, "v1", a, 1))
		}, Decision{Row: "C7d", Result: "kept-newer"}},
		"C8: gone under a hold": {func(s *Observation) { s.Hold = hold; s.lost(row(tomb, "v1", a, 4)) },
			Decision{Row: "C8", Result: "gone-unexplained"}},
	}
}

func TestDecideByPolicy(t *testing.T) {
	for name, tt := range policyCases() {
		t.Run(name, func(t *testing.T) {
			if got := Decide(observation(tt.observe)); !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got  %+v\nwant %+v", got, tt.want)
			}
		})
	}
}

// A hold ends neither a repair nor does an exclusion list delay one.
func TestRepairDespiteHoldAndLists(t *testing.T) {
	tt := repairCases()["corrupt"]
	got := Decide(observation(func(s *Observation) {
		s.Command.Reason = pb.DuplicationReason_DUPLICATION_REASON_REPAIR
		s.copied("d1", b)
		s.Command.Repair = &pb.RepairOrder{Incident: "i", Digests: md5of(a), Failed: record.Identity(s.Destination.Object)}
		s.records(row(live, "v1", a, 2), row(live, "d1", a, 3))
		s.Destination.Record.Audit = row(live, "d1", a, 3)
		s.Hold, s.Rules.ExcludeLists = &policy.Hold{}, make([]policy.ExcludeList, 1)
	}))
	if !reflect.DeepEqual(got, tt.want) {
		t.Errorf("got  %+v\nwant %+v", got, tt.want)
	}
}

// lists are exclusion lists that can be read, by URL. err is the reason why none can be.
type lists struct {
	all map[string]*policy.List
	err error
}

func (l lists) Lists(_ context.Context, refs []policy.ExcludeList) (all []*policy.List, err error) {
	for _, ref := range refs {
		all = append(all, l.all[ref.URL])
	}
	if l.err != nil {
		return nil, retry.Unavailable(l.err)
	}
	return all, nil
}

// reads makes the executor read these lists.
func (w *world) reads(l lists) { w.executor.observer.lists = l }

// While an exclusion list cannot be read, the commands of the space wait, and no attempt is spent. Then they go on.
func TestUnreadableExclusionList(t *testing.T) {
	w := newWorld(t)
	ref, list := ids("b.jpg")
	w.rules.ExcludeLists = []policy.ExcludeList{ref}
	c := command(w.added("1", "hello"))
	waits := func(why string) {
		t.Helper()
		if _, err := w.run(c, 0); retry.ClassOf(err) != retry.ClassUnavailable || !strings.Contains(err.Error(), why) {
			t.Fatalf("got %v, want %s", err, why)
		}
		if n := w.faulty["2"].Count("Put"); n != 0 {
			t.Fatalf("%d puts", n)
		}
	}
	waits("reads no exclusion lists")
	w.reads(lists{err: errors.New("404 Not Found")})
	waits("404 Not Found")
	w.reads(lists{all: map[string]*policy.List{ref.URL: list}})
	w.mustRun(c).ends("C5", "copied", done, 1, 1)
}

// The reason of an exclusion is the detail of the result.
func TestExcludedByList(t *testing.T) {
	w := newWorld(t)
	ref, list := ids("a.jpg")
	w.rules.ExcludeLists = []policy.ExcludeList{ref}
	w.reads(lists{all: map[string]*policy.List{ref.URL: list}})
	got := w.mustRun(command(w.added("1", "hello")))
	got.ends("C10", "excluded", nothing, 0, 0)
	if got.result.GetDetail() != "excludeLists https://lists/ids" {
		t.Errorf("got detail %q", got.result.GetDetail())
	}
}

// Nothing under a hold is overwritten or deleted, until the hold has ended. What is absent is copied.
func TestHold(t *testing.T) {
	w := newWorld(t)
	w.rules.Holds = []policy.Hold{{Prefix: "a", Until: time.Now().Add(time.Hour), Reason: "a lawsuit"}}
	w.mustRun(command(w.added("1", "one"))).ends("C5", "copied", done, 1, 1)
	second := command(w.added("1", "two"))
	got := w.mustRun(second)
	got.ends("C4", "held", nothing, 0, 0)
	if !strings.Contains(got.result.GetDetail(), "a lawsuit") {
		t.Errorf("got detail %q", got.result.GetDetail())
	}
	w.holds("2", "one")
	w.rules.Holds[0].Prefix = "b"
	w.mustRun(second).ends("C4", "copied", done, 1, 1)
	w.holds("2", "two")
	w.rules.Holds[0].Prefix = ""
	gone := command(w.gone("1"))
	w.mustRun(gone).ends("C7b", "held", nothing, 0, 0)
	w.rules.Holds[0].Until = time.Now().Add(-time.Second)
	w.mustRun(gone).ends("C7", "deletion-ordered", handedOn, 0, 0)
}
