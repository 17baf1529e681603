package converge_test

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/millrace/millrace/integration/converge"
)

// rules: a fan out, a chain, and a space whose copies are kept.
func rules() map[string]converge.Rule {
	return map[string]converge.Rule{
		"fan":   {Pairs: []converge.Pair{{From: "1", To: "2"}, {From: "1", To: "3"}}},
		"chain": {Pairs: []converge.Pair{{From: "1", To: "2"}, {From: "2", To: "3"}}},
		"kept":  {Pairs: []converge.Pair{{From: "1", To: "2"}, {From: "1", To: "4"}}, Keep: true},
	}
}

// A world is a model, and a sight in which all is as it must be.
type world struct {
	*converge.Model
	converge.Sight
}

func at(store, space, item string) converge.Copy {
	return converge.Copy{Store: store, Place: converge.Place{Space: space, Item: item}}
}

func content(sha string) converge.Content {
	return converge.Content{SHA256: sha, MediaType: "text/plain", User: map[string]string{"a": "b"}}
}

// newWorld has an item "live" and an item "gone" in each space. Copies of kept/gone stay.
func newWorld() *world {
	w := &world{converge.NewModel("1", rules(), "4"), converge.Sight{
		Copies: map[converge.Copy]converge.Content{}, Records: map[converge.Copy]converge.Record{},
	}}
	for space, rule := range rules() {
		w.act(converge.Act{Place: converge.Place{Space: space, Item: "live"}, Kind: converge.Put, User: "ann", Content: content("s-" + space)})
		w.act(converge.Act{Place: converge.Place{Space: space, Item: "gone"}, Kind: converge.Put, User: "ann", Content: content("g-" + space)})
		w.act(converge.Act{Place: converge.Place{Space: space, Item: "gone"}, Kind: converge.Delete, User: "ben"})
		w.put(at("1", space, "live"), "s-"+space)
		for _, p := range rule.Pairs {
			w.put(at(p.To, space, "live"), "s-"+space)
			if rule.Keep {
				w.Kept(at(p.To, space, "gone"))
				w.put(at(p.To, space, "gone"), "g-"+space)
			}
		}
	}
	return w
}

// act is recorded by the model and in the audit log.
func (w *world) act(a converge.Act) {
	w.Did(a)
	w.Audit = append(w.Audit, converge.Entry{Copy: converge.Copy{Store: "1", Place: a.Place}, Kind: a.Kind, User: a.User, Client: true, Content: a.Content})
}

// put has a store hold a copy that is on record.
func (w *world) put(at converge.Copy, sha string) {
	w.Copies[at] = content(sha)
	row := converge.Row{Live: true, SHA256: sha}
	w.Records[at] = converge.Record{Manifest: row, Audit: row}
}

// remove takes a copy away, and has that on record.
func (w *world) remove(at converge.Copy) {
	delete(w.Copies, at)
	w.Records[at] = converge.Record{}
}

func (w *world) incident(at converge.Copy) {
	w.Incidents = append(w.Incidents, converge.Incident{Copy: at, Kind: "content-missing"})
}

// Each kind of deviation is found, and nothing is in a world without one.
func TestCompare(t *testing.T) {
	find := func(f converge.Finding, at converge.Copy) map[converge.Copy]converge.Finding {
		return map[converge.Copy]converge.Finding{at: f}
	}
	for name, tt := range map[string]struct {
		change func(w *world)
		want   map[converge.Copy]converge.Finding // without an excuse
	}{
		"all is well": {func(*world) {}, nil},

		"the source is gone": {func(w *world) { w.remove(at("1", "fan", "live")) }, find(converge.SourceChanged, at("1", "fan", "live"))},
		"the source is gone, and an incident says so": {func(w *world) {
			w.remove(at("1", "fan", "live"))
			w.incident(at("1", "fan", "live"))
		}, find(converge.SourceChanged, at("1", "fan", "live"))},
		"the source has other bytes": {func(w *world) { w.put(at("1", "fan", "live"), "x") }, find(converge.SourceChanged, at("1", "fan", "live"))},
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
		"the source came back": {func(w *world) { w.put(at("1", "fan", "gone"), "g-fan") }, map[converge.Copy]converge.Finding{
			at("1", "fan", "gone"): converge.SourceChanged,
		}},
		"the source was lost": {func(w *world) {
			w.Lost(at("1", "fan", "live"))
			w.remove(at("1", "fan", "live"))
		}, find(converge.CopyMissing, at("1", "fan", "live"))},
		"the source was lost, and an incident says so": {func(w *world) {
			w.Lost(at("1", "fan", "live"))
			w.remove(at("1", "fan", "live"))
			w.incident(at("1", "fan", "live"))
		}, nil},

		"a copy is missing": {func(w *world) { w.remove(at("3", "fan", "live")) }, find(converge.CopyMissing, at("3", "fan", "live"))},
		"a copy is missing, and an incident says so": {func(w *world) {
			w.remove(at("3", "fan", "live"))
			w.incident(at("3", "fan", "live"))
		}, nil},
		"a copy is missing, and an incident of another says so": {func(w *world) {
			w.remove(at("3", "fan", "live"))
			w.incident(at("2", "fan", "live"))
			w.incident(at("3", "chain", "live"))
		}, find(converge.CopyMissing, at("3", "fan", "live"))},
		"a copy at the end of a chain is missing, and an incident upstream says so": {func(w *world) {
			w.remove(at("3", "chain", "live"))
			w.incident(at("2", "chain", "live"))
		}, nil},
		"a copy in the middle of a chain is missing, and an incident downstream says so": {func(w *world) {
			w.remove(at("2", "chain", "live"))
			w.incident(at("3", "chain", "live"))
		}, find(converge.CopyMissing, at("2", "chain", "live"))},
		"a copy has the bytes of before": {func(w *world) {
			w.act(converge.Act{Place: converge.Place{Space: "fan", Item: "live"}, Kind: converge.Put, User: "ann", Content: content("new")})
			w.put(at("1", "fan", "live"), "new")
			w.put(at("2", "fan", "live"), "new")
		}, find(converge.CopyDiffers, at("3", "fan", "live"))},
		"a copy has other properties": {func(w *world) {
			c := content("s-fan")
			c.User = map[string]string{"a": "c"}
			w.Copies[at("3", "fan", "live")] = c
		}, find(converge.CopyDiffers, at("3", "fan", "live"))},
		"a copy stays":                     {func(w *world) { w.put(at("3", "fan", "gone"), "g-fan") }, find(converge.CopyLeft, at("3", "fan", "gone"))},
		"a copy has bytes that nobody put": {func(w *world) { w.put(at("3", "fan", "live"), "x") }, find(converge.NeverPut, at("3", "fan", "live"))},
		"a copy is of nothing":             {func(w *world) { w.put(at("3", "fan", "new"), "x") }, find(converge.NeverPut, at("3", "fan", "new"))},

		"a kept copy is gone": {func(w *world) { w.remove(at("2", "kept", "gone")) }, find(converge.KeptGone, at("2", "kept", "gone"))},
		"a kept copy is gone, and an incident says so": {func(w *world) {
			w.remove(at("2", "kept", "gone"))
			w.incident(at("2", "kept", "gone"))
		}, find(converge.KeptGone, at("2", "kept", "gone"))},
		"a kept copy was lost": {func(w *world) {
			w.Lost(at("2", "kept", "gone"))
			w.remove(at("2", "kept", "gone"))
		}, find(converge.CopyMissing, at("2", "kept", "gone"))},
		"a kept copy is that of before": {func(w *world) {
			w.act(converge.Act{Place: converge.Place{Space: "kept", Item: "gone"}, Kind: converge.Put, User: "ann", Content: content("new")})
			w.act(converge.Act{Place: converge.Place{Space: "kept", Item: "gone"}, Kind: converge.Delete, User: "ann"})
			w.Kept(at("2", "kept", "gone"))
		}, find(converge.CopyDiffers, at("2", "kept", "gone"))},
		"a copy that was not there when its source went stays away": {func(w *world) {
			w.act(converge.Act{Place: converge.Place{Space: "kept", Item: "gone"}, Kind: converge.Put, User: "ann", Content: content("new")})
			w.act(converge.Act{Place: converge.Place{Space: "kept", Item: "gone"}, Kind: converge.Delete, User: "ann"})
			w.remove(at("2", "kept", "gone"))
		}, nil},

		"the last copy is gone": {func(w *world) {
			for _, store := range []string{"1", "2"} {
				w.Lost(at(store, "chain", "live"))
				w.incident(at(store, "chain", "live"))
			}
			for _, store := range []string{"1", "2", "3"} {
				w.remove(at(store, "chain", "live"))
			}
		}, find(converge.LastCopyGone, at("1", "chain", "live"))},
		"all copies were lost": {func(w *world) {
			for _, store := range []string{"1", "2", "3"} {
				w.Lost(at(store, "chain", "live"))
				w.incident(at(store, "chain", "live"))
				w.remove(at(store, "chain", "live"))
			}
		}, nil},
		"two were lost, and a guess says that the source is gone": {func(w *world) {
			for _, store := range []string{"1", "2"} {
				w.Lost(at(store, "fan", "live"))
				w.remove(at(store, "fan", "live"))
			}
			w.Guessed(converge.Place{Space: "fan", Item: "live"})
			w.incident(at("2", "fan", "live"))
		}, nil},
		"a copy was deleted on a guess": {func(w *world) {
			w.Lost(at("1", "fan", "live"))
			w.Guessed(converge.Place{Space: "fan", Item: "live"})
			w.remove(at("1", "fan", "live"))
			w.remove(at("3", "fan", "live"))
			w.incident(at("3", "fan", "live"))
		}, find(converge.DeletedOnAGuess, at("3", "fan", "live"))},

		"the manifest says that a copy is gone": {func(w *world) {
			w.Records[at("2", "fan", "live")] = converge.Record{Audit: converge.Row{Live: true, SHA256: "s-fan"}}
		}, find(converge.ManifestWrong, at("2", "fan", "live"))},
		"the manifest says that a copy is there": {func(w *world) {
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
		"the manifest is wrong, and an incident says so": {func(w *world) {
			w.Records[at("2", "fan", "live")] = converge.Record{Audit: converge.Row{Live: true, SHA256: "s-fan"}}
			w.incident(at("2", "fan", "live"))
		}, nil},

		"an act is not on record": {func(w *world) {
			w.Did(converge.Act{Place: converge.Place{Space: "fan", Item: "live"}, Kind: converge.SetProperties, User: "ann", Content: content("")})
		}, find(converge.ActUnrecorded, at("1", "fan", "live"))},
		"one of two equal acts is not on record": {func(w *world) {
			w.Did(converge.Act{Place: converge.Place{Space: "fan", Item: "live"}, Kind: converge.Put, User: "ann", Content: content("s-fan")})
		}, find(converge.ActUnrecorded, at("1", "fan", "live"))},
		"an act is on record twice": {func(w *world) {
			w.Audit = append(w.Audit, w.Audit[0])
		}, nil},
		"an act is on record under nobody": {func(w *world) {
			i := slices.IndexFunc(w.Audit, func(e converge.Entry) bool { return e.Copy == at("1", "fan", "live") })
			w.Audit[i].User = ""
		}, find(converge.ActByAnother, at("1", "fan", "live"))},
		"an act is on record as one of ours": {func(w *world) {
			i := slices.IndexFunc(w.Audit, func(e converge.Entry) bool { return e.Copy == at("1", "fan", "live") })
			w.Audit[i].Client = false
		}, find(converge.ActUnrecorded, at("1", "fan", "live"))},
		"an act is on record that was none": {func(w *world) {
			w.Audit = append(w.Audit, converge.Entry{Copy: at("1", "fan", "live"), Kind: converge.Delete, User: "ann", Client: true})
		}, find(converge.ActInvented, at("1", "fan", "live"))},
		"a client's act is on record in another store": {func(w *world) {
			w.Audit = append(w.Audit, converge.Entry{Copy: at("2", "fan", "live"), Kind: converge.Put, User: "ann", Client: true, Content: content("s-fan")})
		}, find(converge.ActInvented, at("2", "fan", "live"))},
		"an act of ours is on record": {func(w *world) {
			w.Audit = append(w.Audit, converge.Entry{Copy: at("2", "fan", "live"), Kind: converge.Put, Content: content("s-fan")})
		}, nil},
		"a record without digests of an act that had none": {func(w *world) {
			p := converge.Place{Space: "fan", Item: "bare"}
			w.Did(converge.Act{Place: p, Kind: converge.Put, User: "dan", Bare: true, Content: content("b")})
			w.Audit = append(w.Audit, converge.Entry{Copy: converge.Copy{Store: "1", Place: p}, Kind: converge.Put, User: "dan", Client: true})
			for _, store := range []string{"1", "2", "3"} {
				w.put(converge.Copy{Store: store, Place: p}, "b")
			}
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			tt.change(w)
			got := map[converge.Copy]converge.Finding{}
			for _, d := range w.Compare(w.Sight) {
				if d.Excuse == "" {
					if got[d.Copy] != "" && got[d.Copy] != d.Finding {
						t.Errorf("also %v", d)
					}
					got[d.Copy] = d.Finding
				}
			}
			if !maps.Equal(got, tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

func places() (all []converge.Place) {
	for _, space := range []string{"fan", "chain", "kept"} {
		for _, item := range []string{"a", "b", "c", "d"} {
			all = append(all, converge.Place{Space: space, Item: item})
		}
	}
	return all
}

func names() converge.Names {
	return converge.Names{Processes: []string{"p", "q", "r"}, Roles: []string{"checker"}, Stores: []string{"2", "3"}, Clock: "2", Out: "4", Engine: "clickhouse", Spaces: []string{"fan", "chain"}}
}

// A seed makes the same run each time, another seed another.
func TestSeed(t *testing.T) {
	l := converge.Load{Places: places(), Length: time.Minute, Every: 100 * time.Millisecond}
	same := func(a, b []converge.Op) bool {
		return slices.EqualFunc(a, b, func(a, b converge.Op) bool {
			return a.At == b.At && a.Place == b.Place && a.Kind == b.Kind && a.User == b.User && a.Body == b.Body && maps.Equal(a.Props, b.Props)
		})
	}
	if !same(converge.Ops(7, l), converge.Ops(7, l)) || same(converge.Ops(7, l), converge.Ops(8, l)) {
		t.Error("ops are not a function of the seed")
	}
	if !same(converge.First(7, l.Places), converge.First(7, l.Places)) || same(converge.First(7, l.Places), converge.First(8, l.Places)) {
		t.Error("the first ops are not a function of the seed")
	}
	if a := converge.Events(7, names(), time.Minute); !slices.Equal(a, converge.Events(7, names(), time.Minute)) || slices.Equal(a, converge.Events(8, names(), time.Minute)) {
		t.Error("events are not a function of the seed")
	}
}

// Clients only delete what is there, and only set properties of that. They do each kind of thing.
func TestOps(t *testing.T) {
	l := converge.Load{Places: places(), Length: 2 * time.Minute, Every: 50 * time.Millisecond}
	live, kinds, back := map[converge.Place]string{}, map[converge.Kind]int{}, 0
	dead := map[converge.Place]string{}
	for i, o := range append(converge.First(3, l.Places), converge.Ops(3, l)...) {
		_, there := live[o.Place]
		switch o.Kind {
		case converge.Put:
			if o.Body == dead[o.Place] {
				back++
			}
			live[o.Place] = o.Body
		case converge.Delete:
			dead[o.Place] = live[o.Place]
			delete(live, o.Place)
		}
		if o.Kind != converge.Put && !there {
			t.Fatalf("op %d is to %s %v, which is not there", i, o.Kind, o.Place)
		}
		kinds[o.Kind]++
	}
	if len(kinds) != 3 || back == 0 {
		t.Errorf("kinds %v, %d times the same bytes were put back", kinds, back)
	}
}

// Each kind of fault is in the short form, and in a long run.
func TestEvents(t *testing.T) {
	all := []converge.Fault{converge.Kill, converge.Freeze, converge.Pause, converge.Away, converge.Step, converge.PutBack, converge.Lose,
		converge.LoseAndGuess, converge.LoseAndBack, converge.KillCopier, converge.TakeOut,
		converge.Restore, converge.Empty}
	for name, events := range map[string][]converge.Event{"short": converge.Short(names()), "long": converge.Events(1, names(), time.Hour)} {
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
