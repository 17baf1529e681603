package policy

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"
)

const complete = `account: acme
defaults:
  copy:
    - {from: 1, to: [2, 3]}
  deletes: approve
  exclude: ["**/*.tmp"]
  maxSize: 5GiB
  brake:
    deletes: {maxShare: 5%, maxCount: 500}
  hold:
    - {until: 2035-01-01, reason: of all spaces}
ignore: [scratch]
spaces:
  photos:
    copy:
      - {from: 1, to: 2}
      - {from: 2, to: [3]}
    deletes: keep
    exclude: []
    excludeLists:
      - {url: "https://lists.example/a.txt?key=b", of: ids,
         sha256: E3B0C44298FC1C149AFBF4C8996FB92427AE41E4649B934CA495991B7852B855}
    maxSize: 0
    minSize: 1
    priority: low
    start: 2026-01-31
    hold:
      - {prefix: trials/, until: 2030-06-01T12:00:00+02:00, reason: a lawsuit}
    brake:
      deletes: {maxCount: 10}
      rewrites: {maxShare: 1}
  papers: {minSize: 7}
`

func utc(text string) time.Time {
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		panic(err)
	}
	return t.UTC()
}

// Our form is another way to write the keys of the older one, with options for all spaces.
func TestOurForm(t *testing.T) {
	d := mustParse(t, complete)
	if d.Account != "acme" {
		t.Errorf("got account %q", d.Account)
	}
	if err := d.Validate(stores); err != nil {
		t.Errorf("validate: %v", err)
	}
	all := Hold{Until: utc("2035-01-01T00:00:00Z"), Reason: "of all spaces"}
	list := ExcludeList{"https://lists.example/a.txt?key=b",
		"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", OfIDs}
	want := map[string]Rules{
		"photos": {
			Pairs: []Pair{{"1", "2"}, {"2", "3"}}, Deletes: KeepCopy, Exclude: []string{}, ExcludeLists: []ExcludeList{list},
			MinSize: 1, Low: true, Start: utc("2026-01-31T00:00:00Z"),
			Holds: []Hold{all, {"trials/", utc("2030-06-01T10:00:00Z"), "a lawsuit"}},
			Brake: Brake{Deletes: Limits{0.05, 10}, Rewrites: Limits{MaxShare: 1}},
		},
		"papers": {
			Pairs: []Pair{{"1", "2"}, {"1", "3"}}, Deletes: Approve, Exclude: []string{"**/*.tmp"}, MaxSize: 5 << 30,
			MinSize: 7, Holds: []Hold{all}, Brake: Brake{Deletes: Limits{0.05, 500}},
		},
		"others": {
			Pairs: []Pair{{"1", "2"}, {"1", "3"}}, Deletes: Approve, Exclude: []string{"**/*.tmp"}, MaxSize: 5 << 30,
			Holds: []Hold{all}, Brake: Brake{Deletes: Limits{0.05, 500}},
		},
		"scratch":  {Deletes: Propagate},
		"x-photos": {Deletes: Propagate},
	}
	for space, want := range want {
		if got := d.Rules(space); !reflect.DeepEqual(got, want) {
			t.Errorf("%s:\ngot  %+v\nwant %+v", space, got, want)
		}
	}
	if got := d.ExcludeLists(); !reflect.DeepEqual(got, []ExcludeList{list}) {
		t.Errorf("got lists %v", got)
	}
}

// A document in our form equals the same one with the older keys, and is encoded with those.
func TestFormsAreEqual(t *testing.T) {
	const ours = `{"defaults": {"copy": [{"from": "1", "to": ["2", "3"]}]}, "ignore": ["a"],
		"spaces": {"b": {"copy": [{"from": "1", "to": "2"}]}, "c": {"copy": [{"from": "1", "to": "2"}], "maxSize": "1kB"}}}`
	const canonical = `{"spaceDuplicationStorePolicies":{"b":[{"srcStoreId":"1","destStoreId":"2"}],` +
		`"c":[{"srcStoreId":"1","destStoreId":"2"}]},"defaultPolicies":[{"srcStoreId":"1","destStoreId":"2"},` +
		`{"srcStoreId":"1","destStoreId":"3"}],"spacesToIgnore":["a"],"spaces":{"c":{"maxSize":1000}}}`
	d := mustParse(t, ours)
	if got, err := json.Marshal(d); string(got) != canonical || err != nil {
		t.Errorf("got  %s, %v\nwant %s", got, err, canonical)
	}
	if !reflect.DeepEqual(mustParse(t, canonical), d) {
		t.Error("the forms differ")
	}
}

// Records that older programs have written are read for ever, with the same rules.
func TestOlderRecords(t *testing.T) {
	const record = `{"spaceDuplicationStorePolicies":{"a":[],"b":[{"srcStoreId":"1","destStoreId":"2"}]},` +
		`"defaultPolicies":[{"srcStoreId":"1","destStoreId":"3"}],"spacesToIgnore":["c"],"spaces":{` +
		`"a":{"deletes":"approve"},"b":{"deletes":"later","exclude":["["],"maxSize":-1,"priority":"x"},"d":{},` +
		`"e":{"copies":{"min":2,"among":["1","2"]}}}}`
	d := mustParse(t, record)
	if got, err := json.Marshal(d); string(got) != record || err != nil {
		t.Errorf("got  %s, %v\nwant %s", got, err, record)
	}
	for space, want := range map[string]Rules{
		"a": {Pairs: []Pair{{"1", "3"}}, Deletes: Approve},
		"b": {Pairs: []Pair{{"1", "2"}}, Deletes: KeepCopy, Exclude: []string{"["}, MaxSize: -1},
		"c": {Deletes: Propagate},
		"d": {Pairs: []Pair{{"1", "3"}}, Deletes: Propagate},
	} {
		if got := d.Rules(space); !reflect.DeepEqual(got, want) {
			t.Errorf("%s:\ngot  %+v\nwant %+v", space, got, want)
		}
	}
	// What has no effect makes no difference to a record that lacks it.
	same := strings.Replace(record, `"d":{}`, `"d":{"maxSize":0,"exclude":[]}`, 1)
	if !reflect.DeepEqual(mustParse(t, same), d) {
		t.Error("a size of 0 makes another document")
	}
}

// faultsOfFile returns the faults of a file of account acme, which has stores 1, 2 and archive.
func faultsOfFile(name, content string) (File, string) {
	f := ReadFile(name, []byte(content), map[string][]Store{
		"acme": {{ID: "1"}, {ID: "2"}, {ID: "archive"}}, "museum": {{ID: "1"}},
	})
	return f, f.Faults.Error()
}

// All faults of a file are reported at once, of syntax and of meaning, each with line, column and path in the file.
func TestFaultsOfAFile(t *testing.T) {
	tests := map[string]struct {
		content string
		want    []string
	}{
		"of meaning, in our form": {`account: acme
defaults:
  copy:
    - {from: 1, to: [2, archiv]}
    - {from: archive, to: 1}
    - {from: 1, to: archive}
  deletes: aprove
  minSize: 2kB
ignore: [""]
spaces:
  photos:
    copy:
      - {from: 1, to: [2, 2]}
      - from: archive
        to: 2
    maxSize: 1kB
    excludeLists:
      - {url: "http://lists/a", sha256: 12, of: id}
      - {url: "https://me:secret@lists/a", sha256: 12, of: digests}
      - {url: "file://lists/a"}
    hold:
      - {prefix: a}
      - {until: 2030-01-01, reason: " "}
    brake:
      deletes: {maxShare: 1.5, maxCount: 0}
      rewrites: {maxShare: 0}
`, []string{
			`4:25: defaults.copy[0].to[1]: unknown store "archiv"; did you mean archive?`,
			`3:3: defaults.copy: the pairs form a cycle: 1 to archive to 1`,
			`7:3: defaults.deletes: want propagate, keep or approve, got "aprove"; did you mean approve?`,
			`9:10: ignore[0]: the space has no name`,
			`13:27: spaces.photos.copy[0].to[1]: is there twice: 1 to 2`,
			`15:9: spaces.photos.copy[1].to: store "2" has two sources: "1" in spaces.photos.copy[0].to[0], and "archive"`,
			`16:5: spaces.photos.maxSize: minSize 2kB is above maxSize 1kB: nothing would be copied`,
			`18:10: spaces.photos.excludeLists[0].url: want a URL that begins with https:// or file:///, got "http://lists/a"`,
			`18:33: spaces.photos.excludeLists[0].sha256: want the SHA-256 of the list as 64 hex digits, got "12"`,
			`18:45: spaces.photos.excludeLists[0].of: want ids or digests, got "id"; did you mean ids?`,
			`19:10: spaces.photos.excludeLists[1].url: the URL has a password; policies can be read by all roles`,
			`19:44: spaces.photos.excludeLists[1].sha256: want the SHA-256 of the list as 64 hex digits, got "12"`,
			`20:9: spaces.photos.excludeLists[2].sha256: want the SHA-256 of the list as 64 hex digits, got ""`,
			`20:10: spaces.photos.excludeLists[2].url: want an absolute path, as in file:///srv/lists/list.txt, ` +
				`got "file://lists/a"`,
			`20:9: spaces.photos.excludeLists[2].of: want ids or digests, got ""`,
			`22:9: spaces.photos.hold[0]: until is missing`,
			`22:9: spaces.photos.hold[0]: reason is missing`,
			`23:9: spaces.photos.hold[1]: reason is missing`,
			`25:17: spaces.photos.brake.deletes.maxShare: want a share above 0 and at most 1, such as 10% or 0.1, got 1.5`,
			`25:32: spaces.photos.brake.deletes.maxCount: want 1 or more, got 0; to approve each delete, write deletes: approve`,
			`26:18: spaces.photos.brake.rewrites.maxShare: want a share above 0 and at most 1, such as 10% or 0.1, got 0`,
		}},
		"of form, and of meaning beside it": {`account: acme
defaults:
  copy:
    - {from: 1}
    - {to: 2}
    - {from: 9, to: 2}
    - {from: [1], to: 2}
    - 1
  maxsize: 1
  start: 31.1.2026
  minSize: 1 G
  brake: {deletes: {maxShare: ten%}}
spaces:
  a: {copy: [], start: 2026-02-30, hold: [{until: 0001-01-01, reason: x}]}
  b: {copy: {from: 1, to: 2}}
`, []string{
			`4:7: defaults.copy[0]: to is missing`,
			`5:7: defaults.copy[1]: from is missing`,
			`6:8: defaults.copy[2].from: unknown store "9"; the account has 1, 2, archive`,
			`7:8: defaults.copy[3].from: want text, got a list`,
			`8:7: defaults.copy[4]: want an object, got a number`,
			`9:3: defaults.maxsize: unknown key; did you mean maxSize?`,
			`10:10: defaults.start: want a date such as 2026-01-31, or a time such as 2026-01-31T12:00:00Z, got "31.1.2026"`,
			`11:12: defaults.minSize: want a number of bytes, with or without a unit, such as 5GiB; got "1 G"`,
			`12:31: defaults.brake.deletes.maxShare: want a share such as 10% or 0.1, got "ten%"`,
			`14:7: spaces.a.copy: has no stores; to copy nothing, add the space to ignore`,
			`14:24: spaces.a.start: want a date such as 2026-01-31, or a time such as 2026-01-31T12:00:00Z, got "2026-02-30"`,
			`14:51: spaces.a.hold[0].until: want a date such as 2026-01-31, or a time such as 2026-01-31T12:00:00Z, ` +
				`got "0001-01-01"`,
			`15:7: spaces.b.copy: want a list, got an object`,
		}},
		"both forms": {`{"account": "acme", "defaultPolicies": [], "defaults": {"copy": [{"from": "1", "to": "9"}]},
 "spaces": {"a": {"copy": [{"from": "1", "to": "2"}]}, "b": {"maxSize": 1}},
 "spaceDuplicationStorePolicies": {"a": [{"srcStoreId": "1", "destStoreId": "2"}],
   "b": [{"srcStoreId": "1", "destStoreId": "2"}]},
 "ignore": [], "spacesToIgnore": []}`, []string{
			`1:57: defaults.copy: is in line 1 too, as defaultPolicies: remove one of them`,
			`3:36: spaceDuplicationStorePolicies.a: is in line 2 too, as spaces.a.copy: remove one of them`,
			`5:16: spacesToIgnore: is in line 5 too, as ignore: remove one of them`,
		}},
		"of syntax": {"account: acme\nignor: []\ndefaults:\n  copy: [{from: 1, to: 9}]\nignore: [a\n\nspaces: {}\n",
			[]string{`7:1: ',' or ']' must be specified`}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			want := make([]string, len(tt.want))
			for i, line := range tt.want {
				want[i] = "acme.yaml:" + line
			}
			f, got := faultsOfFile("acme.yaml", tt.content)
			for i, fault := range f.Faults {
				if i > 0 && (fault.Line < f.Faults[i-1].Line ||
					fault.Line == f.Faults[i-1].Line && fault.Column < f.Faults[i-1].Column) {
					t.Errorf("not in the order of the file: %v", fault)
				}
			}
			lines := strings.Split(got, "\n")
			if !sameLines(lines, want) {
				t.Errorf("got:\n%s\nwant:\n%s", got, strings.Join(want, "\n"))
			}
		})
	}
}

func sameLines(a, b []string) bool {
	count := map[string]int{}
	for _, l := range a {
		count[l]++
	}
	for _, l := range b {
		count[l]--
	}
	for _, n := range count {
		if n != 0 {
			return false
		}
	}
	return true
}

// The account of a file is the one that it names, or that of its name; both must be the same, and configured.
func TestAccountOfAFile(t *testing.T) {
	tests := map[string]struct{ name, content, account, want string }{
		"the document says it": {"two.yaml", "account: acme\n", "acme", ""},
		"the name says it":     {"in/acme-duplication-policy.json", "{}", "acme", ""},
		"both":                 {"acme-duplication-policy.yaml", "account: acme\n", "acme", ""},
		"they differ": {"acme-duplication-policy.yaml", "# x\naccount: museum\n", "acme",
			`acme-duplication-policy.yaml:2:1: account: is "museum", and the name of the file says "acme"`},
		"neither": {"two.yaml", "{}", "", "two.yaml: has no account: write account: NAME, or name the file " +
			"NAME-duplication-policy.yaml"},
		"empty":  {"two.yaml", "account: ''\n", "", "two.yaml:1:1: account: is empty"},
		"a list": {"two.yaml", "account: [a]\n", "", "two.yaml:1:1: account: want text, got a list"},
		"unknown": {"two.yaml", "account: museun\n", "museun",
			`two.yaml:1:1: account: the configuration has no account "museun"; did you mean museum?`},
		"unknown by name": {"acne-duplication-policy.json", "{}", "acne",
			`acne-duplication-policy.json: the configuration has no account "acne"; did you mean acme?`},
		"stores of that account": {"two.yaml", "account: museum\ndefaults: {copy: [{from: 1, to: 2}]}\n", "museum",
			`two.yaml:2:29: defaults.copy[0].to: unknown store "2"; the account has 1`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			f, got := faultsOfFile(tt.name, tt.content)
			if f.Account != tt.account || got != tt.want || len(f.Sum) != 64 {
				t.Errorf("got account %q, sum %q, faults:\n%s\nwant %q:\n%s", f.Account, f.Sum, got, tt.account, tt.want)
			}
		})
	}
	d := mustParse(t, "account: acme")
	if err := d.Check("museum", nil); err == nil {
		t.Error("Check accepts a document of another account")
	}
	if _, err := Record("museum", 0, d, "me", time.Now()); err == nil {
		t.Error("Record accepts a document of another account")
	}
}

// What was valid once stays valid, and is reported if it can have no effect any more, or none yet.
func TestWarnings(t *testing.T) {
	const content = `account: acme
defaults:
  hold: [{until: 2000-01-01, reason: x}, {until: 2999-01-01, reason: x}]
spaces:
  a:
    start: 2999-01-01
    hold: [{until: 2999-01-01, reason: x}, {prefix: b, until: 2000-01-01, reason: x}]
`
	want := strings.Join([]string{
		"a.yaml:3:11: defaults.hold[0].until: the hold ended at 2000-01-01T00:00:00Z",
		"a.yaml:6:5: spaces.a.start: nothing is copied that was written before 2999-01-01T00:00:00Z",
		"a.yaml:7:56: spaces.a.hold[1].until: the hold ended at 2000-01-01T00:00:00Z",
	}, "\n")
	f, faults := faultsOfFile("a.yaml", content)
	if got := f.Warnings.Error(); got != want || faults != "" {
		t.Errorf("got:\n%s\nwant:\n%s\nfaults: %s", got, want, faults)
	}
	if got := f.Document.Warnings(utc("1999-01-01T00:00:00Z")); len(got) != 1 {
		t.Errorf("in 1999, when no hold has ended: got %v", got)
	}
}

func TestHold(t *testing.T) {
	now := utc("2026-01-01T00:00:00Z")
	short, long := Hold{"a/", now.Add(1), "short"}, Hold{"a/b", now.Add(2), "long"}
	ever := Hold{"a/b/c", time.Time{}, "ever"}
	r := Rules{Holds: []Hold{short, ever, long, {"", now, "ended"}}}
	for item, want := range map[string]Hold{"a/x": short, "a/b": long, "a/b/c": ever, "a": {}, "b/a/": {}} {
		got, ok := r.Hold(item, now)
		if got != want || ok != (want != Hold{}) {
			t.Errorf("%s: got %v, %v, want %v", item, got, ok, want)
		}
	}
}

// Without a configuration, all faults are found but those of stores that the account lacks.
func TestFaultsWithoutAConfiguration(t *testing.T) {
	const content = "account: acme\ndefaults:\n  copy: [{from: 1, to: 2}, {from: 2, to: 1}, {from: 3, to: 2}]\n" +
		"  deletes: never\n  exclude: ['[']\n  hold: [{reason: x}]\nspaces:\n" +
		"  photos: {minSize: 5, maxSize: 4, copies: {min: 2}, priority: urgent, copy: [{from: 1, to: 1}]}\n"
	want := ReadFile("a.yaml", []byte(content), accounts("acme")).Faults.Error()
	if n := strings.Count(want, "\n") + 1; n != 9 {
		t.Errorf("%d faults with a configuration, want 9:\n%s", n, want)
	}
	if got := ReadFile("a.yaml", []byte(content), nil).Faults.Error(); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
	if got := ReadFile("a.yaml", []byte("account: acme\ndefaults: {copy: [{from: 7, to: 8}]}"), nil).Faults; got != nil {
		t.Errorf("of unknown stores: got %v", got)
	}
}
