package policy

import (
	"encoding/json"
	"errors"
	"os"
	"reflect"
	"strings"
	"testing"
	"testing/fstest"

	"pgregory.net/rapid"
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
    deletes: approve
    exclude: ["**/*.tmp", "thumbs/**"]
    maxSize: 1000
    priority: low
  papers: {deletes: keep}
`

var stores = []string{"1", "2", "3"}

func mustParse(t *testing.T, text string) Document {
	t.Helper()
	d, err := Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestRules(t *testing.T) {
	one, two, three := []Pair{{"1", "2"}}, []Pair{{"1", "2"}, {"1", "3"}}, []Pair{{"1", "3"}}
	chain := []Pair{{"1", "2"}, {"2", "3"}}
	tests := map[string]struct {
		document, space string
		want            Rules
	}{
		"own":                {older, "spaceA", Rules{Pairs: one, Deletes: Propagate}},
		"own, two":           {older, "spaceB", Rules{Pairs: two, Deletes: Propagate}},
		"own but empty":      {older, "empty", Rules{Pairs: three, Deletes: Propagate}},
		"default":            {older, "anything", Rules{Pairs: three, Deletes: Propagate}},
		"ignored":            {older, "scratch", Rules{Deletes: Propagate}},
		"x- before its own":  {older, "x-snapshots", Rules{Deletes: Propagate}},
		"x- without its own": {older, "x-other", Rules{Deletes: Propagate}},
		"options on default": {ours, "photos", Rules{Pairs: chain, Deletes: Approve, Exclude: []string{"**/*.tmp", "thumbs/**"}, MaxSize: 1000, Low: true}},
		"keep":               {ours, "papers", Rules{Pairs: chain, Deletes: KeepCopy}},
		"nothing said":       {`{}`, "photos", Rules{Deletes: Propagate}},
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

func TestExcludes(t *testing.T) {
	r := mustParse(t, ours).Rules("photos")
	tests := map[string]struct {
		item string
		size int64
		want bool
	}{
		"plain":            {"a/b.jpg", 1000, false},
		"too large":        {"a/b.jpg", 1001, true},
		"glob":             {"a/b/c.tmp", 1, true},
		"glob, first part": {"c.tmp", 1, true},
		"below a folder":   {"thumbs/a/b", 1, true},
		"not below it":     {"a/thumbs/b", 1, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := r.Excludes(tt.item, tt.size); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

func TestFaultsOfReading(t *testing.T) {
	tests := map[string]struct {
		document string
		want     Faults
	}{
		"empty":       {" \n", Faults{"the document is empty"}},
		"not UTF-8":   {"{\xff}", Faults{"the document is not UTF-8"}},
		"not closed":  {"{\n\"spacesToIgnore\": [", Faults{"line 2: unexpected end of JSON input"}},
		"lone commas": {"{\"spacesToIgnore\": [\"a\",,]}", Faults{"line 1: invalid character ',' looking for beginning of value"}},
		"only commas": {"{\"spacesToIgnore\": [,]}", Faults{"line 1: invalid character ',' looking for beginning of value"}},
		"not object":  {"[]", Faults{"line 1: document: found a list where an object belongs"}},
		"every fault at once": {`{
  "spacestoIgnore": [],
  "defaultPolicies": [
    {"srcStoreID": "1", "destStoreId": true},
    7
  ],
  "spaces": {"photos": {"maxSize": "1", "exclude": "*.tmp"},
             "papers": {"maxSize": 1.5},
             "photos": {}}
}`, Faults{
			`line 2: document: unknown key "spacestoIgnore"`,
			`line 4: defaultPolicies: unknown key "srcStoreID"`,
			`line 4: destStoreId: found something else where text belongs`,
			`line 5: defaultPolicies: found a number where an object belongs`,
			`line 7: maxSize: found text where a number belongs`,
			`line 7: exclude: found text where a list belongs`,
			`line 8: maxSize: 1.5 is no whole number of 64 bits`,
			`line 9: spaces: key "photos" stands there twice, first in line 7`,
		}},
		"YAML": {"defaultPolicies:\n- src: 1\n  destStoreId: [2]\nspaces:\n  a: 1\n  a: 2\n", Faults{
			`line 2: defaultPolicies: unknown key "src"`,
			`line 3: destStoreId: found a list where text belongs`,
			`line 5: a: found a number where an object belongs`,
			`line 6: spaces: key "a" stands there twice, first in line 5`,
		}},
		"YAML alias":    {"spacesToIgnore: &a [x]\ndefaultPolicies: *a\n", Faults{"line 1: anchors, aliases, merges and tags are not read"}},
		"YAML, two":     {"spacesToIgnore: []\n---\nspacesToIgnore: []\n", Faults{"found 2 documents where one belongs"}},
		"nested deeply": {strings.Repeat("[", 40) + strings.Repeat("]", 40), Faults{"line 1: nested too deep"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := Parse([]byte(tt.document))
			var got Faults
			if !errors.As(err, &got) || !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got:\n%v\nwant:\n%v", err, tt.want)
			}
		})
	}
}

func TestValidate(t *testing.T) {
	d := mustParse(t, `{
  "spaceDuplicationStorePolicies": {
    "a": [ {"srcStoreId":"1","destStoreId":"9"}, {"srcStoreId":"1"} ],
    "b": [ {"srcStoreId":"2","destStoreId":"2"}, {"srcStoreId":"1","destStoreId":"2"}, {"srcStoreId":"1","destStoreId":"2"} ],
    "c": [ {"srcStoreId":"1","destStoreId":"2"}, {"srcStoreId":"2","destStoreId":"3"}, {"srcStoreId":"3","destStoreId":"1"} ]
  },
  "spaces": {
    "a": {"copies": {"min": 2, "among": ["1", "2"]}, "deletes": "never", "priority": "urgent"},
    "b": {"exclude": ["ok/*", "[", ""], "maxSize": -1}
  }
}`)
	want := Faults{
		`spaceDuplicationStorePolicies of space "a": pair 1: destStoreId: unknown store "9"`,
		`spaceDuplicationStorePolicies of space "a": pair 2: destStoreId is missing`,
		`spaceDuplicationStorePolicies of space "b": pair 1: source and destination are the same store "2"`,
		`spaceDuplicationStorePolicies of space "b": pair 3: 1 to 2 stands there twice`,
		`spaceDuplicationStorePolicies of space "c": changes would go round in a cycle: 1 to 2 to 3 to 1`,
		`spaces: "a": copies: is not implemented yet; name pairs instead`,
		`spaces: "a": deletes: "never" is none of propagate, keep, approve`,
		`spaces: "a": priority: "urgent" is none of high, low`,
		`spaces: "b": exclude: malformed glob "["`,
		`spaces: "b": exclude: malformed glob ""`,
		`spaces: "b": maxSize: -1 is negative`,
	}
	var got Faults
	if err := d.Validate(stores); !errors.As(err, &got) || !reflect.DeepEqual(got, want) {
		t.Errorf("got:\n%v\nwant:\n%v", got, want)
	}
	if got := d.Rules("a").Deletes; got != "never" {
		t.Errorf("rules of a document that was not validated: got %q", got)
	}
}

func document(t *rapid.T) Document {
	store := rapid.SampledFrom([]string{"1", "2", "3", "é", `"`})
	pairs := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Pair { return Pair{store.Draw(t, "s"), store.Draw(t, "d")} }), 1, 3)
	space := rapid.StringN(1, 8, 30)
	return Document{
		Spaces:  rapid.MapOfN(space, pairs, 1, 3).Draw(t, "spaces"),
		Default: pairs.Draw(t, "default"),
		Ignore:  rapid.SliceOfN(space, 1, 3).Draw(t, "ignore"),
		Options: rapid.MapOfN(space, rapid.Custom(func(t *rapid.T) Options {
			return Options{
				Deletes: rapid.SampledFrom([]Deletes{"", Propagate, KeepCopy, Approve}).Draw(t, "deletes"),
				Exclude: rapid.SliceOfN(rapid.StringN(1, 5, 20), 1, 2).Draw(t, "exclude"),
				MaxSize: rapid.Int64().Draw(t, "size"), Priority: rapid.String().Draw(t, "priority"),
			}
		}), 1, 3).Draw(t, "options"),
	}
}

func TestDocumentsSurviveTheirRecord(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := document(t)
		b, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		got, err := Parse(b)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("got %+v, %v\nwant %+v", got, err, want)
		}
	})
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{older, ours, "{}", "[,]", "a: &b [1]", "\"", "{\"a\":\"\\", "- - - x", "? a\n: b", "a: |\n  x\n"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := Parse(b)
		var faults Faults
		if err != nil && !errors.As(err, &faults) {
			t.Errorf("an error that is no Faults: %v", err)
		}
		d.Validate(stores) // must not panic
		d.Rules("a").Excludes("b", 1)
	})
}

func TestReadFolder(t *testing.T) {
	file := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s)} }
	folder := fstest.MapFS{
		AccountsFile:                       file(`["acme", "bad", "none", "both", "yaml", "acme", "../up", "dir"]`),
		"acme-duplication-policy.json":     file(older),
		"bad-duplication-policy.json":      file(`{"x": 1}`),
		"both-duplication-policy.json":     file(`{}`),
		"both-duplication-policy.yaml":     file(`{}`),
		"yaml-duplication-policy.yaml":     file(ours),
		"unlisted-duplication-policy.json": file(`{}`),
		"dir-duplication-policy.json/x":    file(``),
	}
	got, err := ReadFolder(folder)
	want := map[string]Document{"acme": mustParse(t, older), "yaml": mustParse(t, ours)}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	bad := map[string]bool{}
	for _, e := range err.(interface{ Unwrap() []error }).Unwrap() {
		var a *AccountError
		if !errors.As(e, &a) {
			t.Fatalf("no AccountError: %v", e)
		}
		bad[a.Account] = true
	}
	if want := (map[string]bool{"bad": true, "none": true, "both": true, "../up": true, "dir": true}); !reflect.DeepEqual(bad, want) {
		t.Errorf("accounts with faults: got %v, want %v", bad, want)
	}
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the account without a document: got %v", err)
	}
	delete(folder, AccountsFile)
	if got, err := ReadFolder(folder); got != nil || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a list: got %v, %v", got, err)
	}
}
