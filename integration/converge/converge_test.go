package converge_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/millrace/millrace/integration/converge"
)

// rules returns a fan-out, a chain, and a space with copies that are kept.
func rules() map[string]converge.Rule {
	return map[string]converge.Rule{
		"fan":   {Pairs: []converge.Pair{{From: "1", To: "2"}, {From: "1", To: "3"}}},
		"chain": {Pairs: []converge.Pair{{From: "1", To: "2"}, {From: "2", To: "3"}}},
		"kept":  {Pairs: []converge.Pair{{From: "1", To: "2"}, {From: "1", To: "4"}}, Keep: true},
	}
}

// world is a model and an observation that matches it.
type world struct {
	*converge.Model
	converge.Observation
}

func at(store, space, item string) converge.Copy {
	return converge.Copy{Store: store, ItemRef: converge.ItemRef{Space: space, Item: item}}
}

func content(sha string) converge.Content {
	return converge.Content{SHA256: sha, MediaType: "text/plain", User: map[string]string{"a": "b"}}
}

// newWorld returns a world with an item "live" and an item "gone" in each space. The copies of kept/gone are kept.
func newWorld() *world {
	w := &world{converge.NewModel("1", rules(), "4"), converge.Observation{
		Copies: map[converge.Copy]converge.Content{}, Records: map[converge.Copy]converge.Record{}, Rechecked: true,
	}}
	for space, rule := range rules() {
		w.act(converge.Mutation{ItemRef: converge.ItemRef{Space: space, Item: "live"}, Kind: converge.Put, User: "ann",
			Content: content("s-" + space)})
		w.act(converge.Mutation{ItemRef: converge.ItemRef{Space: space, Item: "gone"}, Kind: converge.Put, User: "ann",
			Content: content("g-" + space)})
		w.act(converge.Mutation{ItemRef: converge.ItemRef{Space: space, Item: "gone"}, Kind: converge.Delete, User: "ben"})
		w.put(at("1", space, "live"), "s-"+space)
		for _, p := range rule.Pairs {
			w.put(at(p.To, space, "live"), "s-"+space)
			if rule.Keep {
				w.RecordKept(at(p.To, space, "gone"))
				w.put(at(p.To, space, "gone"), "g-"+space)
			}
		}
	}
	return w
}

// act records a mutation in the model and in the audit log.
func (w *world) act(a converge.Mutation) {
	w.RecordMutation(a)
	w.Audit = append(w.Audit, converge.Entry{Copy: converge.Copy{Store: "1", ItemRef: a.ItemRef}, Kind: a.Kind,
		User: a.User, Client: true, Content: a.Content})
}

// put adds a recorded copy to a store.
func (w *world) put(at converge.Copy, sha string) {
	w.Copies[at] = content(sha)
	row := converge.Row{Live: true, SHA256: sha}
	w.Records[at] = converge.Record{Manifest: row, Audit: row}
}

// remove removes a copy and its records.
func (w *world) remove(at converge.Copy) {
	delete(w.Copies, at)
	w.Records[at] = converge.Record{}
}

// incident opens an incident of a lost copy.
func (w *world) incident(at converge.Copy) { w.open(at, "content-missing", "") }

// open opens an incident.
func (w *world) open(at converge.Copy, kind, subject string) {
	w.Incidents = append(w.Incidents,
		converge.Incident{Copy: at, Kind: kind, Subject: subject, ID: fmt.Sprint(len(w.Incidents)), Open: true})
}

// closed closes the latest incident with the given reasons of operators.
func (w *world) closed(reasons ...string) {
	i := &w.Incidents[len(w.Incidents)-1]
	i.Open, i.Reasons = false, reasons
}

// lose removes a copy but not its records.
func (w *world) lose(at converge.Copy) {
	w.RecordLoss(at)
	delete(w.Copies, at)
}

// TestCompare checks that each kind of deviation is found, and that a world without deviations has no findings.
func TestCompare(t *testing.T) {
	find := func(f converge.Finding, at converge.Copy) findings { return findings{at: {f}} }
	for name, tt := range map[string]struct {
		change func(w *world)
		want   findings // findings without an explanation
	}{
		"all is well": {func(*world) {}, nil},

		"the source is missing": {func(w *world) { w.remove(at("1", "fan", "live")) },
			find(converge.SourceChanged, at("1", "fan", "live"))},
		"the source is missing, and an incident reports it": {func(w *world) {
			w.remove(at("1", "fan", "live"))
			w.incident(at("1", "fan", "live"))
		}, findings{at("1", "fan", "live"): {converge.IncidentUnexplained, converge.SourceChanged}}},
		"the source has other bytes": {func(w *world) { w.put(at("1", "fan", "live"), "x") },
			find(converge.SourceChanged, at("1", "fan", "live"))},
		"the source has other properties": {func(w *world) {
			c := content("s-fan")
			c.User = nil
			w.Copies[at("1", "fan", "live")] = c
		}, find(converge.SourceChanged, at("1", "fan", "live"))},
		"the source has another media type": {func(w *world) {
			c := content("s-fan")
			c.MediaType = ""
			w.Copies[at("1", "fan", "live")] = c
		}, find(converge.SourceChanged, at("1", "fan", "live"))},
		"the deleted source exists again": {func(w *world) { w.put(at("1", "fan", "gone"), "g-fan") },
			find(converge.SourceChanged, at("1", "fan", "gone"))},
		"the source was lost": {func(w *world) {
			w.RecordLoss(at("1", "fan", "live"))
			w.remove(at("1", "fan", "live"))
		}, find(converge.CopyMissing, at("1", "fan", "live"))},
		"the source was lost, and an incident reports it": {func(w *world) {
			w.RecordLoss(at("1", "fan", "live"))
			w.remove(at("1", "fan", "live"))
			w.incident(at("1", "fan", "live"))
		}, nil},

		"a copy is missing": {func(w *world) { w.remove(at("3", "fan", "live")) },
			find(converge.CopyMissing, at("3", "fan", "live"))},
		"a copy was lost, and an incident reports it": {func(w *world) {
			w.lose(at("3", "fan", "live"))
			w.incident(at("3", "fan", "live"))
		}, nil},
		"a copy is missing that was not lost, and an incident reports it": {func(w *world) {
			w.remove(at("3", "fan", "live"))
			w.incident(at("3", "fan", "live"))
		}, find(converge.IncidentUnexplained, at("3", "fan", "live"))},
		"a recorded copy is missing": {func(w *world) {
			delete(w.Copies, at("3", "fan", "live"))
			w.incident(at("3", "fan", "live"))
		}, findings{at("3", "fan", "live"): {converge.CopyGone, converge.IncidentUnexplained}}},
		"a copy is missing, and an incident reports another copy": {func(w *world) {
			w.remove(at("3", "fan", "live"))
			w.lose(at("2", "fan", "live"))
			w.incident(at("2", "fan", "live"))
		}, find(converge.CopyMissing, at("3", "fan", "live"))},
		"a copy is missing, and an incident reports its source": {func(w *world) {
			w.remove(at("3", "chain", "live"))
			w.lose(at("1", "chain", "live"))
			w.incident(at("1", "chain", "live"))
		}, find(converge.CopyMissing, at("3", "chain", "live"))},
		"a copy was lost, and its source has another incident": {func(w *world) {
			w.lose(at("3", "fan", "live"))
			w.Records[at("3", "fan", "live")] = converge.Record{}
			w.open(at("1", "fan", "live"), "audit-mismatch", "")
		}, findings{
			at("3", "fan", "live"): {converge.CopyMissing}, at("1", "fan", "live"): {converge.IncidentUnexplained},
		}},
		"a copy has older bytes": {func(w *world) {
			w.act(converge.Mutation{ItemRef: converge.ItemRef{Space: "fan", Item: "live"}, Kind: converge.Put, User: "ann",
				Content: content("new")})
			w.put(at("1", "fan", "live"), "new")
			w.put(at("2", "fan", "live"), "new")
		}, find(converge.CopyDiffers, at("3", "fan", "live"))},
		"a copy has other properties": {func(w *world) {
			c := content("s-fan")
			c.User = map[string]string{"a": "c"}
			w.Copies[at("3", "fan", "live")] = c
		}, find(converge.CopyDiffers, at("3", "fan", "live"))},
		"a copy of a deleted item remains": {func(w *world) { w.put(at("3", "fan", "gone"), "g-fan") },
			find(converge.CopyLeft, at("3", "fan", "gone"))},
		"a copy has bytes that were never put": {func(w *world) { w.put(at("3", "fan", "live"), "x") },
			find(converge.NeverPut, at("3", "fan", "live"))},
		"a copy of an item that was never put": {func(w *world) { w.put(at("3", "fan", "new"), "x") },
			find(converge.NeverPut, at("3", "fan", "new"))},

		"a kept copy is missing": {func(w *world) { w.remove(at("2", "kept", "gone")) },
			find(converge.KeptGone, at("2", "kept", "gone"))},
		"a kept copy is missing, and an incident reports it": {func(w *world) {
			w.remove(at("2", "kept", "gone"))
			w.incident(at("2", "kept", "gone"))
		}, findings{at("2", "kept", "gone"): {converge.IncidentUnexplained, converge.KeptGone}}},
		"a kept copy was lost": {func(w *world) {
			w.RecordLoss(at("2", "kept", "gone"))
			w.remove(at("2", "kept", "gone"))
		}, find(converge.CopyMissing, at("2", "kept", "gone"))},
		"a kept copy has older bytes": {func(w *world) {
			w.act(converge.Mutation{ItemRef: converge.ItemRef{Space: "kept", Item: "gone"}, Kind: converge.Put, User: "ann",
				Content: content("new")})
			w.act(converge.Mutation{ItemRef: converge.ItemRef{Space: "kept", Item: "gone"}, Kind: converge.Delete, User: "ann"})
			w.RecordKept(at("2", "kept", "gone"))
		}, find(converge.CopyDiffers, at("2", "kept", "gone"))},
		"a copy that was absent when its source was deleted stays absent": {func(w *world) {
			w.act(converge.Mutation{ItemRef: converge.ItemRef{Space: "kept", Item: "gone"}, Kind: converge.Put, User: "ann",
				Content: content("new")})
			w.act(converge.Mutation{ItemRef: converge.ItemRef{Space: "kept", Item: "gone"}, Kind: converge.Delete, User: "ann"})
			w.remove(at("2", "kept", "gone"))
		}, nil},

		"the last copy is missing": {func(w *world) {
			for _, store := range []string{"1", "2"} {
				w.RecordLoss(at(store, "chain", "live"))
				w.incident(at(store, "chain", "live"))
			}
			for _, store := range []string{"1", "2", "3"} {
				w.remove(at(store, "chain", "live"))
			}
		}, findings{at("1", "chain", "live"): {converge.LastCopyGone}, at("3", "chain", "live"): {converge.CopyMissing}}},
		"all copies were lost": {func(w *world) {
			for _, store := range []string{"1", "2", "3"} {
				w.RecordLoss(at(store, "chain", "live"))
				w.incident(at(store, "chain", "live"))
				w.remove(at(store, "chain", "live"))
			}
		}, nil},
		"two were lost, and a guessed delete of the source was published": {func(w *world) {
			for _, store := range []string{"1", "2"} {
				w.RecordLoss(at(store, "fan", "live"))
				w.remove(at(store, "fan", "live"))
			}
			w.RecordGuess(converge.ItemRef{Space: "fan", Item: "live"})
			w.incident(at("2", "fan", "live"))
		}, nil},
		"the source was lost, and a guessed delete was published after its incident was opened": {func(w *world) {
			w.RecordLoss(at("1", "fan", "live"))
			w.incident(at("1", "fan", "live"))
			w.RecordGuess(converge.ItemRef{Space: "fan", Item: "live"})
			w.remove(at("1", "fan", "live"))
		}, nil},
		"a copy was deleted because of a guessed delete": {func(w *world) {
			w.RecordLoss(at("1", "fan", "live"))
			w.RecordGuess(converge.ItemRef{Space: "fan", Item: "live"})
			w.remove(at("1", "fan", "live"))
			w.remove(at("3", "fan", "live"))
			w.incident(at("3", "fan", "live"))
		}, findings{at("3", "fan", "live"): {converge.DeletedOnAGuess, converge.IncidentUnexplained}}},

		"an existing copy is deleted in the manifest": {func(w *world) {
			w.Records[at("2", "fan", "live")] = converge.Record{Audit: converge.Row{Live: true, SHA256: "s-fan"}}
		}, find(converge.ManifestWrong, at("2", "fan", "live"))},
		"a missing copy is live in the manifest": {func(w *world) {
			w.Records[at("2", "fan", "gone")] = converge.Record{Manifest: converge.Row{Live: true, SHA256: "g-fan"}}
		}, find(converge.ManifestWrong, at("2", "fan", "gone"))},
		"the manifest has other bytes": {func(w *world) {
			r := w.Records[at("2", "fan", "live")]
			r.Manifest.SHA256 = "x"
			w.Records[at("2", "fan", "live")] = r
		}, find(converge.ManifestWrong, at("2", "fan", "live"))},
		"the audit log has other bytes": {func(w *world) {
			r := w.Records[at("2", "fan", "live")]
			r.Audit.SHA256 = "x"
			w.Records[at("2", "fan", "live")] = r
		}, find(converge.AuditWrong, at("2", "fan", "live"))},
		"a record without digests": {func(w *world) {
			r := w.Records[at("2", "fan", "live")]
			r.Manifest.SHA256 = ""
			w.Records[at("2", "fan", "live")] = r
		}, nil},
		"the manifest is wrong, and an incident reports it": {func(w *world) {
			w.RecordFault(converge.ClockStep, "2")
			w.Records[at("2", "fan", "live")] = converge.Record{Audit: converge.Row{Live: true, SHA256: "s-fan"}}
			w.open(at("2", "fan", "live"), "resurrected", "")
		}, nil},
		"the manifest is wrong, and an unrelated incident is open": {func(w *world) {
			w.Records[at("2", "fan", "live")] = converge.Record{Audit: converge.Row{Live: true, SHA256: "s-fan"}}
			w.open(at("2", "fan", "live"), "audit-mismatch", "")
		}, findings{at("2", "fan", "live"): {converge.IncidentUnexplained, converge.ManifestWrong}}},
		"a copy remains, and its source was deleted before a gap": {func(w *world) {
			w.put(at("3", "fan", "gone"), "g-fan")
			w.AllowLeftCopies()
		}, nil},
		"a copy remains, and its source was deleted after a gap": {func(w *world) {
			w.AllowLeftCopies()
			w.act(converge.Mutation{ItemRef: converge.ItemRef{Space: "fan", Item: "live"}, Kind: converge.Delete, User: "ann"})
			for _, store := range []string{"1", "2"} {
				w.remove(at(store, "fan", "live"))
			}
		}, find(converge.CopyLeft, at("3", "fan", "live"))},
		"a kept copy was lost before its source was deleted": {func(w *world) {
			w.RecordLoss(at("2", "kept", "live"))
			w.act(converge.Mutation{ItemRef: converge.ItemRef{Space: "kept", Item: "live"}, Kind: converge.Delete, User: "ann"})
			w.RecordKept(at("2", "kept", "live"))
			w.remove(at("1", "kept", "live"))
			w.remove(at("2", "kept", "live"))
		}, find(converge.KeptGone, at("2", "kept", "live"))},

		"a mutation is not on record": {func(w *world) {
			w.RecordMutation(converge.Mutation{ItemRef: converge.ItemRef{Space: "fan", Item: "live"},
				Kind: converge.SetProperties, User: "ann", Content: content("")})
		}, find(converge.MutationUnrecorded, at("1", "fan", "live"))},
		"one of two equal mutations is not on record": {func(w *world) {
			w.RecordMutation(converge.Mutation{ItemRef: converge.ItemRef{Space: "fan", Item: "live"}, Kind: converge.Put,
				User: "ann", Content: content("s-fan")})
		}, find(converge.MutationUnrecorded, at("1", "fan", "live"))},
		"a mutation is on record twice": {func(w *world) {
			w.Audit = append(w.Audit, w.Audit[0])
		}, nil},
		"a mutation is recorded without a user": {func(w *world) {
			i := slices.IndexFunc(w.Audit, func(e converge.Entry) bool { return e.Copy == at("1", "fan", "live") })
			w.Audit[i].User = ""
		}, find(converge.MutationWrongUser, at("1", "fan", "live"))},
		"a client's mutation is recorded with the origin of a role": {func(w *world) {
			i := slices.IndexFunc(w.Audit, func(e converge.Entry) bool { return e.Copy == at("1", "fan", "live") })
			w.Audit[i].Client = false
		}, find(converge.MutationUnrecorded, at("1", "fan", "live"))},
		"a mutation is on record that no client made": {func(w *world) {
			w.Audit = append(w.Audit,
				converge.Entry{Copy: at("1", "fan", "live"), Kind: converge.Delete, User: "ann", Client: true})
		}, find(converge.MutationUnknown, at("1", "fan", "live"))},
		"a client's mutation is on record in another store": {func(w *world) {
			w.Audit = append(w.Audit, converge.Entry{Copy: at("2", "fan", "live"), Kind: converge.Put, User: "ann", Client: true,
				Content: content("s-fan")})
		}, find(converge.MutationUnknown, at("2", "fan", "live"))},
		"a mutation by a role is on record": {func(w *world) {
			w.Audit = append(w.Audit,
				converge.Entry{Copy: at("2", "fan", "live"), Kind: converge.Put, Content: content("s-fan")})
		}, nil},
		"a record without digests of a mutation without digests": {func(w *world) {
			p := converge.ItemRef{Space: "fan", Item: "bare"}
			w.RecordMutation(converge.Mutation{ItemRef: p, Kind: converge.Put, User: "dan", NoDigests: true,
				Content: content("b")})
			w.Audit = append(w.Audit,
				converge.Entry{Copy: converge.Copy{Store: "1", ItemRef: p}, Kind: converge.Put, User: "dan", Client: true})
			for _, store := range []string{"1", "2", "3"} {
				w.put(converge.Copy{Store: store, ItemRef: p}, "b")
			}
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			tt.change(w)
			w.compare(t, tt.want)
		})
	}
}

// findings are the sorted findings by copy.
type findings map[converge.Copy][]converge.Finding

// compare compares the unexplained deviations with the wanted ones.
func (w *world) compare(t *testing.T, want findings) {
	t.Helper()
	got := findings{}
	for _, d := range w.Compare(w.Observation) {
		if d.Explanation == "" && !slices.Contains(got[d.Copy], d.Finding) {
			got[d.Copy] = append(got[d.Copy], d.Finding)
		}
	}
	if !maps.EqualFunc(got, want, slices.Equal) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestCompareBeforeRecheck checks that before the recheck a lost copy may be undetected and the command of a dead
// letter not executed, and that this explains no other deviation.
func TestCompareBeforeRecheck(t *testing.T) {
	lost := at("3", "fan", "live")
	for name, tt := range map[string]struct {
		change func(w *world)
		want   findings
	}{
		"a copy was lost": {func(w *world) { w.lose(lost) }, nil},
		"a copy is missing that was not lost": {func(w *world) { delete(w.Copies, lost) },
			findings{lost: {converge.AuditWrong, converge.CopyGone, converge.ManifestWrong}}},
		"a copy is missing that was not lost, and a command for it is a dead letter": {func(w *world) {
			delete(w.Copies, lost)
			w.DeadLetters = append(w.DeadLetters, converge.DeadLetter{Copy: lost, Command: true})
		}, findings{lost: {converge.AuditWrong, converge.CopyGone, converge.ManifestWrong}}},
		"a copy was never made": {func(w *world) { w.remove(lost) }, findings{lost: {converge.CopyMissing}}},
		"a copy was never made, and its command is a dead letter": {func(w *world) {
			w.remove(lost)
			w.DeadLetters = append(w.DeadLetters, converge.DeadLetter{Copy: lost, Command: true})
		}, nil},
		"a copy was never made, and the command of another is a dead letter": {func(w *world) {
			w.remove(lost)
			w.DeadLetters = append(w.DeadLetters, converge.DeadLetter{Copy: at("2", "fan", "live"), Command: true})
		}, findings{lost: {converge.CopyMissing}}},
		"a copy was made and not reported, and its command is a dead letter": {func(w *world) {
			delete(w.Records, lost)
			w.DeadLetters = append(w.DeadLetters, converge.DeadLetter{Copy: lost, Command: true})
		}, nil},
		"a copy was made and not reported, and a check of it is a dead letter": {func(w *world) {
			delete(w.Records, lost)
			w.DeadLetters = append(w.DeadLetters, converge.DeadLetter{Copy: lost})
		}, findings{lost: {converge.AuditWrong, converge.ManifestWrong}}},
		"bytes that nobody put are recorded, and the command is a dead letter": {func(w *world) {
			w.Records[lost] = converge.Record{Manifest: converge.Row{Live: true, SHA256: "never"}, Audit: w.Records[lost].Audit}
			w.DeadLetters = append(w.DeadLetters, converge.DeadLetter{Copy: lost, Command: true})
		}, findings{lost: {converge.ManifestWrong}}},
		"a copy was made and not reported": {func(w *world) { delete(w.Records, lost) },
			findings{lost: {converge.AuditWrong, converge.ManifestWrong}}},
		"a copy was lost, and its source": {func(w *world) {
			w.lose(lost)
			w.lose(at("1", "fan", "live"))
		}, nil},
		"an incident without a fault": {func(w *world) { w.incident(lost) }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			w.Rechecked = false
			tt.change(w)
			w.compare(t, tt.want)
		})
	}
}

// TestCompareIncidents checks that each incident and dead letter needs a fault, and that no decision may be lost.
func TestCompareIncidents(t *testing.T) {
	copied := at("3", "fan", "live")
	space, none := converge.Copy{Store: "3", ItemRef: converge.ItemRef{Space: "fan"}}, converge.Copy{}
	restored := func(w *world) { // lost and restored
		w.RecordLoss(copied)
		w.incident(copied)
		w.closed()
	}
	lost := func(w *world, space string, n int) { // n items, restored and then deleted
		for i := range n {
			c := at("3", space, fmt.Sprint("lost", i))
			w.act(converge.Mutation{ItemRef: c.ItemRef, Kind: converge.Put, User: "ann", Content: content("l")})
			w.RecordLoss(c)
			w.incident(c)
			w.closed()
			w.act(converge.Mutation{ItemRef: c.ItemRef, Kind: converge.Delete, User: "ann"})
		}
	}
	held := func(w *world, at converge.Copy) { w.open(at, "repairs-held", ""); w.closed() }
	closes := converge.Decision{Copy: copied, Kind: "content-missing", Closes: true, Reason: "r"}
	approves := converge.Decision{Copy: copied, Kind: "content-missing", Reason: "r"}
	for name, tt := range map[string]struct {
		change func(w *world)
		want   findings
	}{
		"of a copy that was lost": {restored, nil},
		"of a copy that was not lost": {func(w *world) { w.incident(copied); w.closed() },
			findings{copied: {converge.IncidentUnexplained}}},
		"of a source that was lost": {func(w *world) {
			w.RecordLoss(copied)
			for _, kind := range []string{"source-missing", "all-copies-missing"} {
				w.open(copied, kind, "")
				w.closed()
			}
		}, nil},
		"of a source that was not lost": {func(w *world) { w.open(copied, "source-missing", ""); w.closed() },
			findings{copied: {converge.IncidentUnexplained}}},
		"of a kind that no fault causes": {func(w *world) { w.open(copied, "no-quorum", ""); w.closed() },
			findings{copied: {converge.IncidentUnexplained}}},
		"open, of an existing copy": {func(w *world) { w.RecordLoss(copied); w.incident(copied) },
			findings{copied: {converge.IncidentStale}}},
		"twice, for one loss": {func(w *world) { restored(w); w.incident(copied); w.closed() },
			findings{copied: {converge.IncidentDuplicate}}},
		"twice, for two losses": {func(w *world) { restored(w); restored(w) }, nil},
		"twice at a time": {func(w *world) { restored(w); restored(w); w.Incidents[1].Duplicate = true },
			findings{copied: {converge.IncidentDuplicate}}},
		"under a tombstone, after a clock was set back": {func(w *world) {
			w.RecordFault(converge.ClockStep, "3")
			w.open(copied, "resurrected", "")
			w.closed()
		}, nil},
		"of a copy with too early a record, after a clock was set back": {func(w *world) {
			w.RecordFault(converge.ClockStep, "3")
			for _, kind := range []string{"replaced", "content-missing"} {
				w.open(copied, kind, "")
				w.closed()
			}
		}, nil},
		"of a copy that was not replaced": {func(w *world) { w.open(copied, "replaced", ""); w.closed() },
			findings{copied: {converge.IncidentUnexplained}}},
		"under a tombstone": {func(w *world) { w.open(copied, "resurrected", ""); w.closed() },
			findings{copied: {converge.IncidentUnexplained}}},
		"of deletes after a guessed delete": {func(w *world) {
			w.RecordGuess(copied.ItemRef)
			w.open(space, "deletes-held", "")
			w.closed()
		}, nil},
		"of deletes without a guessed delete": {func(w *world) { w.open(space, "deletes-held", ""); w.closed() },
			findings{space: {converge.IncidentUnexplained}}},
		"of a table that was emptied": {func(w *world) {
			w.RecordFault(converge.Empty, "clickhouse")
			w.open(none, "records-behind", "audit_log")
			w.closed()
		}, nil},
		"of a table that was restored": {func(w *world) {
			w.RecordFault(converge.Restore, "clickhouse")
			w.open(none, "records-behind", "audit_log")
			w.closed()
		}, nil},
		"of a table": {func(w *world) { w.open(none, "records-behind", "audit_log"); w.closed() },
			findings{none: {converge.IncidentUnexplained}}},
		"of a table, and still open": {func(w *world) {
			w.RecordFault(converge.Empty, "clickhouse")
			w.open(none, "records-behind", "audit_log")
		}, findings{none: {converge.IncidentStale}}},
		"of a record that cannot be decoded": {func(w *world) {
			w.RecordFault(converge.CorruptRecord, "admin/0@1")
			w.open(none, "record-unreadable", "admin/0@1")
			w.closed()
		}, nil},
		"of a record that can be decoded": {func(w *world) {
			w.RecordFault(converge.CorruptRecord, "admin/0@1")
			w.open(none, "record-unreadable", "admin/0@2")
			w.closed()
		}, findings{none: {converge.IncidentUnexplained}}},
		"of a space that was lost": {func(w *world) {
			w.RecordFault(converge.LoseSpace, "3/fan")
			w.open(space, "space-missing", "")
			w.closed()
		}, nil},
		"of the repairs of a space that was lost": {func(w *world) {
			w.RecordFault(converge.LoseSpace, "3/fan")
			held(w, space)
		}, nil},
		"of the repairs of a space of which a copy is still missing": {func(w *world) {
			lost(w, "fan", 10)
			w.open(space, "repairs-held", "")
			w.lose(copied)
			w.incident(copied)
		}, nil},
		"of the repairs of a space of which no copy is missing any more": {func(w *world) {
			lost(w, "fan", 10)
			w.open(space, "repairs-held", "")
		}, findings{space: {converge.IncidentStale}}},
		"of the repairs of many items": {func(w *world) { lost(w, "fan", 10); held(w, space) }, nil},
		"of the repairs of a few items": {func(w *world) { lost(w, "fan", 9); lost(w, "chain", 10); held(w, space) },
			findings{space: {converge.IncidentUnexplained}}},
		"of a listing of a space that was lost": {func(w *world) {
			w.RecordFault(converge.LoseSpace, "3/fan")
			w.open(space, "listing-incomplete", "")
			w.closed()
		}, nil},
		"of an existing space": {func(w *world) {
			w.RecordFault(converge.LoseSpace, "2/fan")
			w.open(space, "space-missing", "")
			w.closed()
		}, findings{space: {converge.IncidentUnexplained}}},
		"of a policy with a removed store": {func(w *world) {
			w.RecordFault(converge.RemoveStore, "4")
			w.open(none, "policy-refused", "")
			w.closed()
		}, nil},
		"of a policy before a record that cannot be decoded": {func(w *world) {
			w.RecordFault(converge.CorruptRecord, "policies/0@1")
			w.open(none, "policy-refused", "")
			w.closed()
		}, nil},
		"of a policy": {func(w *world) { w.open(none, "policy-refused", ""); w.closed() },
			findings{none: {converge.IncidentUnexplained}}},

		"an operator approved the repair": {func(w *world) {
			w.RecordLoss(copied)
			w.incident(copied)
			w.closed("r")
			w.RecordDecision(approves)
		}, nil},
		"an operator approved the repair, and it waits for another approval": {func(w *world) {
			w.lose(copied)
			w.incident(copied)
			w.Incidents[0].Reasons, w.Incidents[0].AwaitsApproval = []string{"r"}, true
			w.RecordDecision(approves)
		}, nil},
		"an operator approved the repair, and the incident is open": {func(w *world) {
			w.lose(copied)
			w.incident(copied)
			w.Incidents[0].Reasons = []string{"r"}
			w.RecordDecision(approves)
		}, findings{copied: {converge.DecisionLost}}},
		"an operator closed it, and it waits for an approval": {func(w *world) {
			w.lose(copied)
			w.incident(copied)
			w.Incidents[0].Reasons, w.Incidents[0].AwaitsApproval = []string{"r"}, true
			w.RecordDecision(closes)
		}, findings{copied: {converge.DecisionLost}}},
		"no incident has the approval": {func(w *world) { restored(w); w.RecordDecision(approves) },
			findings{copied: {converge.DecisionLost}}},
		"an operator closed it": {func(w *world) {
			w.RecordLoss(copied)
			w.incident(copied)
			w.closed("r")
			w.RecordDecision(closes)
		}, nil},
		"an operator closed it, and the fault was found again": {func(w *world) {
			w.lose(copied)
			w.incident(copied)
			w.closed("r")
			w.RecordDecision(closes)
			w.incident(copied)
		}, nil},
		"an operator closed it, and it is open": {func(w *world) {
			w.lose(copied)
			w.incident(copied)
			w.Incidents[0].Reasons = []string{"r"}
			w.RecordDecision(closes)
		}, findings{copied: {converge.DecisionLost}}},

		"a dead letter of a removed store": {func(w *world) {
			w.RecordFault(converge.RemoveStore, "3")
			w.DeadLetters = append(w.DeadLetters, converge.DeadLetter{Copy: copied, Position: "duplication.high/0@1"})
		}, nil},
		"a dead letter of a record that cannot be decoded": {func(w *world) {
			w.RecordFault(converge.CorruptRecord, "admin/0@1")
			w.DeadLetters = append(w.DeadLetters, converge.DeadLetter{Position: "admin/0@1"})
		}, nil},
		"a dead letter of a task that ran when processes were killed": {func(w *world) {
			w.RecordFault(converge.Kill, "work")
			w.DeadLetters = append(w.DeadLetters,
				converge.DeadLetter{Copy: copied, Position: "duplication.high/0@1", Died: true})
		}, nil},
		"a dead letter of a running task, and no process was killed": {func(w *world) {
			w.DeadLetters = append(w.DeadLetters,
				converge.DeadLetter{Copy: copied, Position: "duplication.high/0@1", Died: true})
		}, findings{copied: {converge.DeadLetterUnexplained}}},
		"a dead letter": {func(w *world) {
			w.DeadLetters = append(w.DeadLetters, converge.DeadLetter{Copy: copied, Position: "duplication.high/0@1"})
		}, findings{copied: {converge.DeadLetterUnexplained}}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			tt.change(w)
			w.compare(t, tt.want)
		})
	}
}

func places() (all []converge.ItemRef) {
	for _, space := range []string{"fan", "chain", "kept"} {
		for _, item := range []string{"a", "b", "c", "d"} {
			all = append(all, converge.ItemRef{Space: space, Item: item})
		}
	}
	return all
}

func names() converge.Names {
	return converge.Names{Processes: []string{"p", "q", "r"}, Roles: []string{"checker"}, Stores: []string{"2", "3"},
		Clock: "2", Removable: "4", Engine: "clickhouse", Spaces: []string{"fan", "chain"},
		Steward: "r", Topics: []string{"policies", "admin"}, LostSpace: "lost"}
}

// TestSeed checks that equal seeds produce equal runs and different seeds different runs.
func TestSeed(t *testing.T) {
	l := converge.Load{Items: places(), Length: time.Minute, Every: 100 * time.Millisecond}
	same := func(a, b []converge.Op) bool {
		return slices.EqualFunc(a, b, func(a, b converge.Op) bool {
			return a.At == b.At && a.ItemRef == b.ItemRef && a.Kind == b.Kind && a.User == b.User && a.Body == b.Body &&
				maps.Equal(a.Props, b.Props)
		})
	}
	if !same(converge.Ops(7, l), converge.Ops(7, l)) || same(converge.Ops(7, l), converge.Ops(8, l)) {
		t.Error("ops are not a function of the seed")
	}
	if !same(converge.First(7, l.Items), converge.First(7, l.Items)) || same(converge.First(7, l.Items),
		converge.First(8, l.Items)) {
		t.Error("the first ops are not a function of the seed")
	}
	if a := converge.Events(7, names(), time.Minute); !slices.Equal(a,
		converge.Events(7, names(), time.Minute)) || slices.Equal(a, converge.Events(8, names(), time.Minute)) {
		t.Error("events are not a function of the seed")
	}
}

// TestOps checks that clients delete and set properties only of existing items, and that all kinds of ops occur.
func TestOps(t *testing.T) {
	l := converge.Load{Items: places(), Length: 2 * time.Minute, Every: 50 * time.Millisecond}
	live, kinds, back := map[converge.ItemRef]string{}, map[converge.Kind]int{}, 0
	dead := map[converge.ItemRef]string{}
	for i, o := range append(converge.First(3, l.Items), converge.Ops(3, l)...) {
		_, there := live[o.ItemRef]
		switch o.Kind {
		case converge.Put:
			if o.Body == dead[o.ItemRef] {
				back++
			}
			live[o.ItemRef] = o.Body
		case converge.Delete:
			dead[o.ItemRef] = live[o.ItemRef]
			delete(live, o.ItemRef)
		}
		if o.Kind != converge.Put && !there {
			t.Fatalf("op %d is to %s %v, which is not there", i, o.Kind, o.ItemRef)
		}
		kinds[o.Kind]++
	}
	if len(kinds) != 3 || back == 0 {
		t.Errorf("kinds %v, %d times the same bytes were put back", kinds, back)
	}
}

// TestEvents checks that the short form and a long run contain each kind of fault.
func TestEvents(t *testing.T) {
	all := []converge.Fault{converge.Kill, converge.Freeze, converge.Pause, converge.Unavailable, converge.ClockStep,
		converge.PutBack, converge.Lose,
		converge.LoseAndGuess, converge.LoseAndPutBack, converge.KillCopier, converge.RemoveStore,
		converge.Restore, converge.Empty, converge.Decide, converge.CorruptRecord, converge.LoseSpace}
	for name, events := range map[string][]converge.Event{"short": converge.Short(names()),
		"long": converge.Events(1, names(), time.Hour)} {
		for _, f := range all {
			if !slices.ContainsFunc(events, func(e converge.Event) bool { return e.Fault == f }) {
				t.Errorf("%s: there is no event %q", name, f)
			}
		}
		if !slices.IsSortedFunc(events, func(a, b converge.Event) int { return int(a.At - b.At) }) {
			t.Errorf("%s: events are not in the order of time", name)
		}
	}
}
