package fixity

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/retry"
)

// attempt returns the state of an attempt that observed the store, with the verdict on its evidence. f alters it before
// it is judged.
func attempt(y symbolic, f func(*attemptState)) attemptState {
	a := attemptState{evidence: y.evidence()}
	if f != nil {
		f(&a)
	}
	a.verdict = Judge(a.evidence, StoreSettings{})
	return a
}

func recheck(a *attemptState)    { a.recheck = true }
func markerRead(a *attemptState) { a.markerRead = true }
func recordsRead(a *attemptState) {
	a.markerRead, a.recordsRead, a.fresh = true, true, &pb.CopyRecord{}
}
func noAnswer(a *attemptState)  { a.markerRead, a.recordsRead = true, true }
func confirmed(a *attemptState) { recordsRead(a); a.unchanged = true }
func readTwice(a *attemptState) { confirmed(a); a.evidence.Second = a.evidence.Content }

// lost is f for an object whose properties are in doubt.
func lost(f func(*attemptState)) func(*attemptState) {
	return func(a *attemptState) {
		a.propertiesInDoubt = true
		if f != nil {
			f(a)
		}
	}
}

// Each case begins with the requirement's name.
func needCases() map[string]struct {
	state attemptState
	want  requirement
} {
	good, rotten := symbolic{c: "a", s: "a", m: "a", a: "a"}, symbolic{c: "b", s: "a", m: "a", a: "a"}
	missing, unread := symbolic{c: "404", s: "404", m: "a", a: "a"}, symbolic{c: "unread", s: "none", m: "a", a: "a"}
	uncaptured, noAudit := symbolic{c: "a", s: "a", m: "none", a: "none"}, symbolic{c: "a", s: "a", m: "a", a: "none"}
	unrecorded := symbolic{c: "a", s: "a", m: "unknown", a: "unknown"}
	noManifest := symbolic{c: "a", s: "a", m: "unknown", a: "a"}
	wrongDigest, replaced := symbolic{c: "a", s: "b", m: "a", a: "a"}, symbolic{c: "b", s: "b", m: "a", a: "a"}
	noBytes, noQuorum := symbolic{c: "404", s: "a", m: "a", a: "a"}, symbolic{c: "c", s: "b", m: "a", a: "none"}
	final := attempt(uncaptured, confirmed)
	final.conclusion.Final = true
	update := attempt(replaced, confirmed)
	update.verdict = verdict(RowUpdateNotCaptured, "")
	finalUpdate := update
	finalUpdate.conclusion.Final = true
	return map[string]struct {
		state attemptState
		want  requirement
	}{
		"observation":                       {attemptState{}, needObservation},
		"marker: both absent":               {attempt(missing, nil), needMarker},
		"marker: bytes absent":              {attempt(noBytes, nil), needMarker},
		"marker: item absent":               {attempt(symbolic{c: "unread", s: "404", m: "a", a: "a"}, nil), needMarker},
		"records: missing":                  {attempt(missing, markerRead), needRecords},
		"records: corrupt":                  {attempt(rotten, nil), needRecords},
		"records: audit missing":            {attempt(noAudit, nil), needRecords},
		"records: none in the task":         {attempt(unrecorded, nil), needRecords},
		"records: corrupt, properties lost": {attempt(rotten, lost(nil)), needRecords},
		"records: pass of a re-check":       {attempt(good, recheck), needRecords},
		"properties: pass":                  {attempt(good, lost(nil)), needProperties},
		"properties: unread":                {attempt(unread, lost(nil)), needProperties},
		"algorithms": {attempt(good, func(a *attemptState) {
			recordsRead(a)
			a.evidence.Audit.Digests = map[string]string{"sha1": "x"}
		}), needAlgorithms},
		"algorithms: manifest unknown": {attempt(noManifest, func(a *attemptState) {
			recordsRead(a)
			a.evidence.Audit.Digests = map[string]string{"sha1": "x"}
		}), needAlgorithms},
		"unchanged: missing":                   {attempt(missing, recordsRead), needUnchanged},
		"unchanged: corrupt":                   {attempt(rotten, recordsRead), needUnchanged},
		"unchanged: pass, properties lost":     {attempt(good, lost(recordsRead)), needUnchanged},
		"second read: corrupt":                 {attempt(rotten, confirmed), needSecondRead},
		"second read: store digest wrong":      {attempt(wrongDigest, confirmed), needSecondRead},
		"second read: replaced":                {attempt(replaced, confirmed), needSecondRead},
		"second read: no quorum":               {attempt(noQuorum, confirmed), needSecondRead},
		"second read: not captured, final":     {final, needSecondRead},
		"second read: update, final":           {finalUpdate, needSecondRead},
		"nothing: pass":                        {attempt(good, nil), needNothing},
		"nothing: pass, fresh":                 {attempt(good, recordsRead), needNothing},
		"nothing: pass, properties unknown":    {attempt(good, lost(noAnswer)), needNothing},
		"nothing: pass, properties known":      {attempt(good, lost(confirmed)), needNothing},
		"nothing: unverified":                  {attempt(unread, nil), needNothing},
		"nothing: missing":                     {attempt(missing, confirmed), needNothing},
		"nothing: audit missing":               {attempt(noAudit, confirmed), needNothing},
		"nothing: not captured, to re-check":   {attempt(uncaptured, confirmed), needNothing},
		"nothing: update, to re-check":         {update, needNothing},
		"nothing: corrupt, read twice":         {attempt(rotten, readTwice), needNothing},
		"nothing: item without bytes":          {attempt(noBytes, markerRead), needNothing},
		"nothing: store unknown":               {attempt(symbolic{c: "a", s: "unknown", m: "a", a: "a"}, nil), needNothing},
		"nothing: store unknown, bytes absent": {attempt(symbolic{c: "404", s: "unknown", m: "a", a: "a"}, nil), needNothing},
		"nothing: content unknown":             {attempt(symbolic{c: "unknown", s: "a", m: "a", a: "a"}, nil), needNothing},
		"nothing: records unknown":             {attempt(unrecorded, noAnswer), needNothing},
		"nothing: manifest unknown":            {attempt(noManifest, recordsRead), needNothing},
		"nothing: second reading unknown": {attempt(rotten, func(a *attemptState) {
			confirmed(a)
			a.evidence.Second = Evidence{State: stUnknown}
		}), needNothing},
		"nothing: readings differ": {attempt(rotten, func(a *attemptState) {
			confirmed(a)
			a.evidence.Second = good.evidence().Content
		}), needNothing},
	}
}

func TestNeeds(t *testing.T) {
	for name, tt := range needCases() {
		t.Run(name, func(t *testing.T) {
			if got := tt.state.needs(); got != tt.want {
				t.Errorf("got %s, want %s (row %d)", got, tt.want, tt.state.verdict.Row)
			}
		})
	}
}

// Each requirement is asked for once, in their order, whatever the evidence.
func TestNeedsEnd(t *testing.T) {
	answers := map[requirement]func(*attemptState){
		needMarker: markerRead, needRecords: recordsRead, needProperties: recordsRead,
		needUnchanged:  func(a *attemptState) { a.unchanged = true },
		needSecondRead: func(a *attemptState) { a.evidence.Second = a.evidence.Content },
	}
	every(func(y symbolic) {
		for _, doubt := range []bool{false, true} {
			a := attempt(y, func(a *attemptState) { a.propertiesInDoubt = doubt })
			a.conclusion.Final = true
			last := needObservation
			for next := a.needs(); next != needNothing; next = a.needs() {
				answer := answers[next]
				if next <= last || answer == nil {
					t.Fatalf("%+v: requirement %s after %s", y, next, last)
				}
				answer(&a)
				a.verdict, last = Judge(a.evidence, StoreSettings{}), next
			}
		}
	})
}

// A requirement that its answer does not meet ends the check. Here the evidence has an algorithm that no record has.
func TestUnmetRequirement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		k := &check{Checker: w.checker(), task: task(nothing()), copy: at, store: w.store}
		k.attemptState = attempt(symbolic{c: "a", s: "a", m: "a", a: "a"}, func(a *attemptState) {
			recordsRead(a)
			a.object, a.evidence.Content.Digests = w.object, sums(good)
			a.evidence.Audit.Digests = digest.Set{digest.SHA1: "00"}
		})
		err := k.attemptOnce(t.Context())
		if !retry.IsPermanent(err) || !strings.Contains(err.Error(), "still needs algorithms: content md5:") {
			t.Errorf("got %v, want the requirement and the evidence", err)
		}
	})
}

// Each requirement has a constant, a named case, and a line in docs/decisions-fixity.md, in the order of needs.
func TestNeedsAreDocumented(t *testing.T) {
	cases := map[requirement]bool{}
	for name, tt := range needCases() {
		if named, _, _ := strings.Cut(name, ":"); named != tt.want.String() {
			t.Errorf("case %q is of requirement %s", name, tt.want)
		}
		cases[tt.want] = true
	}
	var names []string
	for r := needNothing; r < requirements; r++ {
		names = append(names, r.String())
		if !cases[r] {
			t.Errorf("requirement %s has no named case", r)
		}
	}
	page, err := os.ReadFile("../../docs/decisions-fixity.md")
	must(t, err)
	_, section, _ := strings.Cut(string(page), "\n## What a verdict needs\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var documented []string
	for _, m := range regexp.MustCompile(`(?m)^\| ([a-z ]+) \|`).FindAllStringSubmatch(section, -1)[1:] {
		documented = append(documented, m[1])
	}
	if !slices.Equal(documented, names[needNothing+1:]) {
		t.Errorf("the document has %q, need.go %q", documented, names[needNothing+1:])
	}
}
