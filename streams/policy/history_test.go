package policy

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// The history of an account has every record: also those that are ignored, unreadable or undecodable.
func TestHistory(t *testing.T) {
	b := NewRegistry(threeStores)
	first := record(t, 0, to2)
	first.By, first.From, first.Location, first.Reason = "ann", FromImport, "/srv/old", "moved"
	removal, err := Removal("acme", 3, "eve", at(9))
	if err != nil {
		t.Fatal(err)
	}
	removal.From = FromCLI
	d := mustParse(t, to2)
	cause := errors.New("garbage")
	for i, p := range []*pb.Policy{first, record(t, 0, to23), nil, record(t, 1, "{"), record(t, 2, to2), removal} {
		if p == nil {
			b.Unreadable([]byte("acme"), at(i), cause)
			continue
		}
		b.Apply([]byte("acme"), at(i), p)
	}
	got := b.History("acme")
	for i := range got {
		if got[i].State == EntryUnreadable && strings.Contains(got[i].Fault.Error(), "revision 2 cannot be read") {
			got[i].Fault = nil
		}
	}
	want := []Entry{
		{State: EntryRevision, Revision: 1, Time: at(0), By: "ann", From: FromImport, Location: "/srv/old", Reason: "moved",
			Document: &d},
		{State: EntryIgnored, Time: at(1), By: "me"},
		{State: EntryUndecodable, Time: at(2), Fault: cause},
		{State: EntryUnreadable, Revision: 2, Base: 1, Time: at(3)},
		{State: EntryRevision, Revision: 3, Base: 2, Time: at(4), By: "me", Document: &d},
		{State: EntryRemoval, Revision: 4, Base: 3, Time: at(5), By: "eve", From: FromCLI},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if e, ok := b.Active("acme"); ok {
		t.Errorf("active after the removal: %+v", e)
	}
	if got := b.Accounts(); !slices.Equal(got, []string{"acme"}) {
		t.Errorf("accounts: %v", got)
	}
	if got := b.History("other"); got != nil {
		t.Errorf("history of another account: %v", got)
	}
}

// The active entry is the last one that could be parsed.
func TestActiveBehindAnUnreadableRevision(t *testing.T) {
	b := NewRegistry(threeStores)
	b.Apply([]byte("acme"), at(1), record(t, 0, to2))
	b.Apply([]byte("acme"), at(2), record(t, 1, "{"))
	if e, ok := b.Active("acme"); !ok || e.Revision != 1 || b.Revision("acme") != 2 {
		t.Errorf("got %+v at revision %d, want revision 1 at 2", e, b.Revision("acme"))
	}
}

// Equal documents have the same canonical text, whatever their form, and it is parsed to the same document.
func TestCanonicalYAML(t *testing.T) {
	const yes = `{"spaceDuplicationStorePolicies": {"yes": [{"destStoreId":"2", "srcStoreId":"1"}], "a b: c": []},
		"spacesToIgnore": ["1", "#x", "é\n"], "defaultPolicies": [{"srcStoreId":"1","destStoreId":"02"}],
		"spaces": {"photos": {"exclude": ["**/*.tmp", "*"], "deletes": "keep", "maxSize": 107374182400}}}`
	for name, text := range map[string]string{"empty": "{}", "to 2": to2, "keep": to2keep, "ignored": ignored, "odd": yes} {
		t.Run(name, func(t *testing.T) {
			d := mustParse(t, text)
			canonical, err := d.YAML()
			if err != nil {
				t.Fatal(err)
			}
			again := mustParse(t, canonical)
			if !reflect.DeepEqual(again, d) {
				t.Errorf("parsed again: got %+v, want %+v\n%s", again, d, canonical)
			}
			if twice, err := again.YAML(); err != nil || twice != canonical {
				t.Errorf("canonical again: got %q (%v), want %q", twice, err, canonical)
			}
		})
	}
	const want = "defaultPolicies:\n- srcStoreId: \"1\"\n  destStoreId: \"2\"\n"
	if got, err := mustParse(t, "defaultPolicies: [{destStoreId: 2, srcStoreId: 1}]").YAML(); err != nil || got != want {
		t.Errorf("got %q (%v), want %q", got, err, want)
	}
}

func TestReadFile(t *testing.T) {
	stores := map[string][]Store{"acme": {{ID: "1"}, {ID: "2"}, {ID: "3", ReadOnly: true}}}
	for name, tt := range map[string]struct {
		file, account, content string
		stores                 map[string][]Store
		of                     string
		faults                 []string
	}{
		"old form":             {"p/acme-duplication-policy.json", "", to2, stores, "acme", nil},
		"ours":                 {"acme-duplication-policy.yaml", "", "defaultPolicies: []", stores, "acme", nil},
		"the caller knows":     {"p.yaml", "acme", to2, stores, "acme", nil},
		"without stores":       {"acme-duplication-policy.yaml", "", to9, nil, "acme", nil},
		"no account":           {"p.yaml", "", to2, stores, "", []string{"p.yaml: names no account: name the file"}},
		"the name is a suffix": {"-duplication-policy.yaml", "", to2, stores, "", []string{"names no account"}},
		"unknown account and key": {"acne-duplication-policy.json", "", "{\n\"defaultPolicys\": []}", stores, "acne", []string{
			`acne-duplication-policy.json: the configuration has no account "acne"; did you mean acme?`,
			`acne-duplication-policy.json:2: defaultPolicys: unknown key; did you mean defaultPolicies?`}},
		"syntax and meaning": {"a/acme-duplication-policy.yaml", "",
			"defaultPolicies:\n- {srcStoreId: 1, destStoreId: 3}\n- {srcStoreId: 1, destStoreId: 1}\nspacestoignore: []\n",
			stores, "acme", []string{
				`a/acme-duplication-policy.yaml:2: defaultPolicies[0].destStoreId: store "3" is read-only: its layout is plain`,
				`a/acme-duplication-policy.yaml:3: defaultPolicies[1]: source and destination are the same store "1"`,
				`a/acme-duplication-policy.yaml:4: spacestoignore: unknown key; did you mean spacesToIgnore?`}},
		"too large": {"acme-duplication-policy.yaml", "", strings.Repeat(" ", maxFile+1), stores, "acme",
			[]string{"has 1048577 bytes, more than 1048576"}},
	} {
		t.Run(name, func(t *testing.T) {
			of, d, err := ReadFile(tt.file, tt.account, []byte(tt.content), tt.stores)
			if of != tt.of {
				t.Errorf("account: got %q, want %q", of, tt.of)
			}
			var faults Faults
			if err == nil {
				want, err := Parse([]byte(tt.content))
				if err != nil || !reflect.DeepEqual(d, want) {
					t.Errorf("got %+v (%v), want %+v", d, err, want)
				}
			} else if !errors.As(err, &faults) {
				t.Fatalf("error %T: %v", err, err)
			}
			if len(faults) != len(tt.faults) {
				t.Fatalf("got %q, want %q", faults, tt.faults)
			}
			for i, f := range faults {
				if !strings.Contains(f.String(), tt.faults[i]) {
					t.Errorf("got %q, want %q", f, tt.faults[i])
				}
			}
		})
	}
}

// The accounts in the list are known if the list could be read, also those with faulty documents.
func TestListed(t *testing.T) {
	f := Folder{Documents: map[string]Document{"acme": {}}, Faults: Faults{{Account: "bell"}, {Account: "bell"}}}
	if got, want := f.Listed(), map[string]bool{"acme": true, "bell": true}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	f.Faults = append(f.Faults, Fault{File: accountsFile})
	if got := f.Listed(); got != nil {
		t.Errorf("of a faulty list: got %v, want nil", got)
	}
}
