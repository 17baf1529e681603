package preview_test

import (
	"testing"
	"time"

	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/policy/preview"
)

// day returns a time.
func day(n int) time.Time { return time.Date(2026, 9, n, 12, 0, 0, 0, time.UTC) }

// live returns a live record with digests.
func live(size int64, digests preview.Digests) preview.Record {
	return preview.Record{Live: true, Size: size, Time: day(10), SourceTime: day(9), Digests: digests}
}

// deleted returns a tombstone.
func deleted(at time.Time) preview.Record { return preview.Record{Time: at} }

func TestDecide(t *testing.T) {
	t.Parallel()
	const a, b, mixed = preview.Digests("md5:aa"), preview.Digests("md5:bb"), preview.Digests("md5:aa sha256:dd")
	none, one2two := preview.Record{}, policy.Pair{Source: "1", Destination: "2"}
	propagate := policy.Rules{Deletes: policy.Propagate, Since: day(1), Added: map[policy.Pair]time.Time{one2two: day(1)}}
	with := func(change func(*policy.Rules)) policy.Rules {
		r := propagate
		change(&r)
		return r
	}
	hold := with(func(r *policy.Rules) { r.Holds = []policy.Hold{{Until: day(30)}} })
	doubtful := deleted(day(12))
	doubtful.Doubtful = true
	for name, tt := range map[string]struct {
		rules    policy.Rules
		from, to preview.Record
		want     preview.Outcome
	}{
		"nothing on record":                      {propagate, none, none, preview.Nothing},
		"deleted on both sides":                  {propagate, deleted(day(12)), deleted(day(13)), preview.Nothing},
		"no copy":                                {propagate, live(1, a), none, preview.Copy},
		"deleted copy":                           {propagate, live(1, a), deleted(day(12)), preview.Copy},
		"no copy of unknown size":                {propagate, live(-1, ""), none, preview.Copy},
		"equal digests":                          {propagate, live(1, a), live(1, a), preview.Unchanged},
		"a shared digest agrees":                 {propagate, live(1, a), live(1, "md5:aa sha256:cc"), preview.Unchanged},
		"a shared digest differs":                {propagate, live(1, mixed), live(1, "md5:aa sha256:cc"), preview.Update},
		"digests differ":                         {propagate, live(1, a), live(1, b), preview.Update},
		"no digests, sizes differ":               {propagate, live(1, ""), live(2, ""), preview.Update},
		"no digests, equal sizes":                {propagate, live(1, ""), live(1, ""), preview.Compare},
		"no digests, unknown size":               {propagate, live(1, ""), live(-1, ""), preview.Compare},
		"no common algorithm":                    {propagate, live(1, "md5:aa"), live(1, "sha256:aa"), preview.Compare},
		"digests differ, held":                   {hold, live(1, a), live(1, b), preview.Held},
		"no copy, held":                          {hold, live(1, a), none, preview.Copy},
		"equal, held":                            {hold, live(1, a), live(1, a), preview.Unchanged},
		"no source on record":                    {propagate, none, live(1, a), preview.Orphan},
		"source deleted":                         {propagate, deleted(day(12)), live(1, a), preview.Delete},
		"source deleted, held":                   {hold, deleted(day(12)), live(1, a), preview.Held},
		"source deleted at the time of the copy": {propagate, deleted(day(9)), live(1, a), preview.Delete},
		"source deleted before the copy":         {propagate, deleted(day(8)), live(1, a), preview.Kept},
		"source deleted, doubtful":               {propagate, doubtful, live(1, a), preview.Approve},
		"source deleted, rule keep": {with(func(r *policy.Rules) { r.Deletes = policy.KeepCopy }),
			deleted(day(12)), live(1, a), preview.Kept},
		"source deleted, rule approve": {with(func(r *policy.Rules) { r.Deletes = policy.Approve }),
			deleted(day(12)), live(1, a), preview.Approve},
		"source deleted before the rule": {with(func(r *policy.Rules) { r.Since = day(12) }),
			deleted(day(12)), live(1, a), preview.Kept},
		"source deleted before the end of approval": {with(func(r *policy.Rules) { r.Propagated = day(12) }),
			deleted(day(12)), live(1, a), preview.Approve},
		"source deleted before the pair": {with(func(r *policy.Rules) {
			r.Added = map[policy.Pair]time.Time{one2two: day(13)}
		}), deleted(day(12)), live(1, a), preview.Kept},
		"excluded by a glob": {with(func(r *policy.Rules) { r.Exclude = []string{"*.tmp"} }),
			live(1, a), none, preview.Excluded},
		"excluded by size": {with(func(r *policy.Rules) { r.MaxSize = 10 }), live(11, a), live(1, b), preview.Excluded},
		"size that decides unknown": {with(func(r *policy.Rules) { r.MinSize = 10 }),
			live(-1, a), none, preview.Compare},
		"excluded by age": {with(func(r *policy.Rules) { r.Start = day(11) }), live(1, a), none, preview.Excluded},
		"excluded, source deleted": {with(func(r *policy.Rules) { r.Exclude = []string{"*"} }),
			deleted(day(12)), live(1, a), preview.Delete},
	} {
		t.Run(name, func(t *testing.T) {
			got := preview.Decide(preview.Case{Item: "x.tmp", Pair: one2two, Rules: &tt.rules, From: tt.from, To: tt.to,
				Now: day(20)})
			if got != tt.want {
				t.Errorf("got %d, want %d", got, tt.want)
			}
		})
	}
}

func TestDigestsCompareAsSets(t *testing.T) {
	t.Parallel()
	all := []preview.Digests{"", "md5:aa", "md5:bb", "sha256:aa", "md5:aa sha256:aa", "md5:aa sha256:bb",
		"md5:bb sha256:aa", "sha1:cc sha256:bb"}
	for _, a := range all {
		for _, b := range all {
			if got, want := a.Compare(b), a.Set().Compare(b.Set()); got != want {
				t.Errorf("%q and %q: got %v, want %v", a, b, got, want)
			}
		}
	}
	if got := preview.Digests("").Set(); got.Compare(digest.Set{}) != digest.Incomparable || len(got) != 0 {
		t.Errorf("got %v", got)
	}
}
