package policy

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/internal/need"
)

const older = `{
  "spaceDuplicationStorePolicies":{
    "spaceA":
      [
        {"srcStoreId":"1","destStoreId":"2"},
      ],
    "spaceB":
      [
        {"srcStoreId":"1","destStoreId":"2"},
        {"srcStoreId":"1","destStoreId":"3"}
      ],
    "empty": [],
    "x-snapshots": [ {"srcStoreId":"1","destStoreId":"2"} ]
  },
  "defaultPolicies": [ {"srcStoreId":"1","destStoreId":"3"} ],
  "spacesToIgnore": [ "scratch" ]
}`

const ours = `# of acme
defaultPolicies:
  - {srcStoreId: 1, destStoreId: 2}
  - srcStoreId: "2"
    destStoreId: "3"
spaces:
  photos:
    deletes: keep
    exclude: ["**/*.tmp", "thumbs/**"]
    maxSize: 1000
    priority: low
  papers: {deletes: keep}
`

var stores = []string{"1", "2", "3"}

func mustParse(t *testing.T, text string) Document {
	t.Helper()
	d, err := Parse([]byte(text))
	must(t, err)
	return d
}

func TestRules(t *testing.T) {
	one, two, three := []Pair{{"1", "2"}}, []Pair{{"1", "2"}, {"1", "3"}}, []Pair{{"1", "3"}}
	chain := []Pair{{"1", "2"}, {"2", "3"}}
	tests := map[string]struct {
		document, space string
		want            Rules
	}{
		"own":               {older, "spaceA", Rules{Pairs: one, Deletes: Propagate}},
		"own, two":          {older, "spaceB", Rules{Pairs: two, Deletes: Propagate}},
		"own but empty":     {older, "empty", Rules{Pairs: three, Deletes: Propagate}},
		"default":           {older, "anything", Rules{Pairs: three, Deletes: Propagate}},
		"ignored":           {older, "scratch", Rules{Deletes: Propagate}},
		"x- with own pairs": {older, "x-snapshots", Rules{Deletes: Propagate}},
		"x- without own":    {older, "x-other", Rules{Deletes: Propagate}},
		"options on default": {ours, "photos", Rules{Pairs: chain, Deletes: KeepCopy,
			Exclude: []string{"**/*.tmp", "thumbs/**"}, MaxSize: 1000, Low: true}},
		"keep":           {ours, "papers", Rules{Pairs: chain, Deletes: KeepCopy}},
		"empty document": {`{}`, "photos", Rules{Deletes: Propagate}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			d := mustParse(t, tt.document)
			if err := d.Validate(stores); err != nil {
				t.Errorf("validate: %v", err)
			}
			if got := d.Rules(tt.space); !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got  %+v\nwant %+v", got, tt.want)
			}
		})
	}
}

func TestExcluded(t *testing.T) {
	r := mustParse(t, ours).Rules("photos")
	tests := map[string]struct {
		item string
		size int64
		want string
	}{
		"plain":            {"a/b.jpg", 1000, ""},
		"too large":        {"a/b.jpg", 1001, "1001 bytes are more than maxSize 1kB"},
		"size unknown":     {"a/b.jpg", -1, ""},
		"glob":             {"a/b/c.tmp", 1, `exclude "**/*.tmp"`},
		"glob, first part": {"c.tmp", 1, `exclude "**/*.tmp"`},
		"below a folder":   {"thumbs/a/b", 1, `exclude "thumbs/**"`},
		"not below it":     {"a/thumbs/b", 1, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got, _ := r.Excluded(tt.item, Content{Size: tt.size}, nil); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestFaultsOfReading(t *testing.T) {
	tests := map[string]struct {
		document string
		want     []string
	}{
		"empty":      {" \n", []string{"is empty"}},
		"not UTF-8":  {"{\xff}", []string{"is not text in UTF-8"}},
		"binary":     {"a\x00b", []string{"is not text in UTF-8"}},
		"not closed": {"{\n\"spacesToIgnore\": [", []string{"line 2:19: sequence end token ']' not found"}},
		"two commas": {"{\"spacesToIgnore\": [\"a\",,]}", []string{"line 1:25: unexpected scalar value type"}},
		"not object": {"[]", []string{"line 1:1: want an object, got a list"}},
		"every fault at once": {`{
  "spacestoIgnore": [],
  "defaultPolicies": [
    {"srcStoreID": "1", "destStoreId": true},
    7
  ],
  "spaces": {"photos": {"maxSize": "1 G", "exclude": "*.tmp"},
             "papers": {"maxSize": 1.5},
             "photos": {}}
}`, []string{
			`line 2:3: spacestoIgnore: unknown key; did you mean spacesToIgnore?`,
			`line 4:6: defaultPolicies[0].srcStoreID: unknown key; did you mean srcStoreId?`,
			`line 4:40: defaultPolicies[0].destStoreId: want text, got something else`,
			`line 5:5: defaultPolicies[1]: want an object, got a number`,
			`line 7:36: spaces.photos.maxSize: want a number of bytes, with or without a unit, such as 5GiB; got "1 G"`,
			`line 7:54: spaces.photos.exclude: want a list, got text`,
			`line 8:36: spaces.papers.maxSize: want a whole number of 64 bits, got 1.5`,
			`line 9:14: spaces.photos: is there twice, first in line 7`,
		}},
		"YAML": {"defaultPolicies:\n- src: 1\n  destStoreId: [2]\nspaces:\n  a b: 1\n  a b: 2\n  c: {colour: red}\n",
			[]string{
				`line 2:3: defaultPolicies[0].src: unknown key; known here: destStoreId, srcStoreId`,
				`line 3:3: defaultPolicies[0].destStoreId: want text, got a list`,
				`line 5:8: spaces."a b": want an object, got a number`,
				`line 6:3: spaces."a b": is there twice, first in line 5`,
				`line 7:7: spaces.c.colour: unknown key; known here: brake, copies, copy, deletes, exclude, excludeLists, ` +
					`hold, maxSize, minSize, priority, start`,
			}},
		"YAML alias": {"spacesToIgnore: &a [x]\ndefaultPolicies: *a\n",
			[]string{
				"line 1:17: spacesToIgnore: anchors, aliases, merges and tags are not supported",
				"line 2:18: defaultPolicies: anchors, aliases, merges and tags are not supported"}},
		"YAML, two":     {"spacesToIgnore: []\n---\nspacesToIgnore: []\n", []string{"want one YAML document, got 2"}},
		"nested deeply": {strings.Repeat("[", 1e6), []string{"is nested too deep"}},
		"no comma":      {`{"account": "a" "ignore": []}`, []string{"line 1:17: ',' or '}' must be specified"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := Parse([]byte(tt.document))
			if want := strings.Join(tt.want, "\n"); err == nil || err.Error() != want {
				t.Errorf("got:\n%v\nwant:\n%v", err, want)
			}
		})
	}
}

func TestValidate(t *testing.T) {
	d := mustParse(t, `{
  "spaceDuplicationStorePolicies": {
    "a": [ {"srcStoreId":"1","destStoreId":"9"}, {"srcStoreId":"1"} ],
    "b": [ {"srcStoreId":"2","destStoreId":"2"}, {"srcStoreId":"1","destStoreId":"2"},
           {"srcStoreId":"1","destStoreId":"2"} ],
    "c": [ {"srcStoreId":"1","destStoreId":"2"}, {"srcStoreId":"2","destStoreId":"3"},
           {"srcStoreId":"3","destStoreId":"1"} ],
    "d": [ {"srcStoreId":"1","destStoreId":"3"}, {"srcStoreId":"2","destStoreId":"3"},
           {"srcStoreId":"3","destStoreId":"2"}, {"srcStoreId":"2","destStoreId":"1"} ]
  },
  "spaces": {
    "a": {"copies": {"min": 2, "among": ["1", "2"]}, "deletes": "never", "priority": "urgent"},
    "b": {"exclude": ["ok/*", "[", ""], "maxSize": -1}
  }
}`)
	want := strings.Join([]string{
		`spaceDuplicationStorePolicies.a[0].destStoreId: unknown store "9"; the account has 1, 2, 3`,
		`spaceDuplicationStorePolicies.a[1]: destStoreId is missing`,
		`spaceDuplicationStorePolicies.b[0]: source and destination are the same store "2"`,
		`spaceDuplicationStorePolicies.b[2]: is there twice: 1 to 2`,
		`spaceDuplicationStorePolicies.c: the pairs form a cycle: 1 to 2 to 3 to 1`,
		`spaceDuplicationStorePolicies.d[1]: store "3" has two sources: "1" in [0], and "2"`,
		`spaceDuplicationStorePolicies.d: the pairs form a cycle: 3 to 2 to 3`,
		`spaceDuplicationStorePolicies.d: the pairs form a cycle: 1 to 3 to 2 to 1`,
		`spaces.a.copies: is not implemented; name the stores in copy instead`,
		`spaces.a.deletes: want propagate, keep or approve, got "never"`,
		`spaces.a.priority: want high or low, got "urgent"`,
		`spaces.b.exclude[1]: malformed glob "["`,
		`spaces.b.exclude[2]: malformed glob ""`,
		`spaces.b.maxSize: want 0, for no bound, or more, got -1`,
	}, "\n")
	if err := d.Validate(stores); err == nil || err.Error() != want {
		t.Errorf("got:\n%v\nwant:\n%v", err, want)
	}
	if got := d.Rules("a").Deletes; got != KeepCopy {
		t.Errorf("rules of a word that is not known: got %q, want %q", got, KeepCopy)
	}
}

func document(t *rapid.T) Document {
	store := rapid.SampledFrom([]string{"1", "2", "3", "é", `"`})
	pairs := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Pair { return Pair{store.Draw(t, "s"), store.Draw(t, "d")} }),
		0, 3)
	space := rapid.StringN(1, 8, 30)
	d := Document{
		Account: rapid.SampledFrom([]string{"", "acme", "ä b"}).Draw(t, "account"),
		Spaces:  rapid.MapOfN(space, pairs, 0, 3).Draw(t, "spaces"),
		Default: pairs.Draw(t, "default"),
		Ignore:  rapid.SliceOfN(space, 0, 3).Draw(t, "ignore"),
		Options: rapid.MapOfN(space, rapid.Custom(someOptions), 0, 3).Draw(t, "options"),
	}
	if rapid.Bool().Draw(t, "with defaults") {
		d.Defaults = new(someOptions(t))
	}
	return d
}

func someOptions(t *rapid.T) options {
	size, words := rapid.Ptr(rapid.Int64(), true), rapid.StringN(1, 5, 20)
	times := rapid.Custom(func(t *rapid.T) time.Time {
		if rapid.Bool().Draw(t, "none") {
			return time.Time{}
		}
		return time.Unix(rapid.Int64Range(-2e9, 2e11).Draw(t, "time"), rapid.Int64Range(0, 999_999_999).Draw(t, "ns")).UTC()
	})
	// Not a number is no JSON.
	limits := rapid.Custom(func(t *rapid.T) brakeLimits {
		return brakeLimits{rapid.Ptr(rapid.Float64(), true).Draw(t, "share"), size.Draw(t, "count")}
	})
	list := rapid.Custom(func(t *rapid.T) ExcludeList {
		return ExcludeList{words.Draw(t, "url"), rapid.StringMatching("[0-9a-f]{0,64}").Draw(t, "sum"), words.Draw(t, "of")}
	})
	hold := rapid.Custom(func(t *rapid.T) Hold {
		return Hold{words.Draw(t, "prefix"), times.Draw(t, "until"), words.Draw(t, "reason")}
	})
	return options{
		Deletes: rapid.SampledFrom([]Deletes{"", Propagate, KeepCopy, Approve}).Draw(t, "deletes"),
		Exclude: rapid.SliceOfN(words, 0, 2).Draw(t, "exclude"), ExcludeLists: rapid.SliceOfN(list, 0, 2).Draw(t, "lists"),
		MaxSize: size.Draw(t, "max"), MinSize: size.Draw(t, "min"), Priority: rapid.String().Draw(t, "priority"),
		Start: times.Draw(t, "start"), Holds: rapid.SliceOfN(hold, 0, 2).Draw(t, "holds"),
		Brake: rapid.Ptr(rapid.Custom(func(t *rapid.T) brake {
			return brake{limits.Draw(t, "deletes"), limits.Draw(t, "rewrites")}
		}), true).Draw(t, "brake"),
	}
}

// A document is equal to itself after encoding and parsing. Otherwise each start would publish it again.
func TestDocumentsSurviveTheirRecord(t *testing.T) {
	need.Check(t, func(t *rapid.T) {
		written, err := json.Marshal(document(t))
		if err != nil {
			t.Fatal(err)
		}
		want, err := Parse(written)
		if err != nil {
			t.Fatalf("%s: %v", written, err)
		}
		record, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		got, err := Parse(record)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("%s: got %+v, %v\nwant %+v", record, got, err, want)
		}
		for space := range want.Options {
			if !reflect.DeepEqual(got.Rules(space), want.Rules(space)) {
				t.Fatalf("%s: other rules of %q", record, space)
			}
		}
	})
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{older, ours, complete, "{}", "a: [b\nspaces: {}\n",
		"{\"spaces\": {\"a\": {\"hold\": [{", "[,]", "a: &b [1]", "\"", "{\"a\":\"\\", "- - - x", "? a\n: b",
		"a: |\n  x\n"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := Parse(b)
		var faults Faults
		if err != nil && (!errors.As(err, &faults) || len(faults) == 0) {
			t.Errorf("an error that is not Faults: %v", err)
		}
		d.Validate(stores) // must not panic
		d.Rules("a").Excluded("b", Content{Size: 1}, nil)
		file := ReadFile("acme-duplication-policy.yaml", b, accounts("acme"))
		if err != nil && len(file.Faults) == 0 {
			t.Errorf("%v, and the file has no fault", err)
		}
		if err != nil {
			return
		}
		record, err := json.Marshal(d)
		must(t, err)
		if again, err := Parse(record); err != nil || !reflect.DeepEqual(again, d) {
			t.Errorf("%s: got %+v, %v, want %+v", record, again, err, d)
		}
	})
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
