package policy

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/revision"
)

// The history of an account has every record: also those that are ignored, unreadable or undecodable.
func TestHistory(t *testing.T) {
	b := NewRegistry(threeStores)
	first := record(t, 0, to2)
	first.By, first.From, first.Location, first.Reason = "ann", FromImport, "/srv/old", "moved"
	removal, err := Removal("acme", 3, "eve", at(9))
	must(t, err)
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
	faults := map[int]error{}
	for i := range got {
		if got[i].Fault != nil {
			faults[i], got[i].Fault = got[i].Fault, nil
		}
	}
	if len(faults) != 2 || !errors.Is(faults[2], cause) ||
		!strings.Contains(faults[3].Error(), "revision 2 cannot be read") {
		t.Errorf("faults: %v", faults)
	}
	want := []Entry{
		{State: EntryRevision, Revision: 1, Time: at(0), By: "ann", From: FromImport, Location: "/srv/old", Reason: "moved",
			Document: &d},
		{State: revision.EntryIgnored, Time: at(1), By: "me"},
		{State: revision.EntryUndecodable, Time: at(2)},
		{State: revision.EntryUnreadable, Revision: 2, Base: 1, Time: at(3)},
		{State: EntryRevision, Revision: 3, Base: 2, Time: at(4), By: "me", Document: &d},
		{State: EntryRemoval, Revision: 4, Base: 3, Time: at(5), By: "eve", From: FromCLI},
	}
	if !slices.EqualFunc(got, want, func(a, b Entry) bool {
		documents := reflect.DeepEqual(a.Document, b.Document)
		a.Document, b.Document = nil, nil
		return documents && a == b
	}) {
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
	for name, text := range map[string]string{
		"empty": "{}", "to 2": to2, "keep": to2keep, "ignored": ignored, "odd": yes,
	} {
		t.Run(name, func(t *testing.T) {
			d := mustParse(t, text)
			canonical, err := d.YAML()
			must(t, err)
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

// The caller may know the account; the document must not name another one.
func TestReadFileOf(t *testing.T) {
	stores := map[string][]Store{"acme": {{ID: "1"}, {ID: "2"}}, "bell": nil}
	for name, tt := range map[string]struct {
		account, file, content string
		faults                 []string
	}{
		"any name":            {"acme", "p/new.json", to2, nil},
		"of its account":      {"acme", "p.yaml", "account: acme\nignore: [scratch]\n", nil},
		"the name of another": {"acme", "bell-duplication-policy.json", to2, nil},
		"of another account": {"acme", "p.yaml", "account: bell\ndefaultPolicys: []\n", []string{
			`p.yaml:1:1: account: is "bell", and the document is one of account "acme"`,
			`p.yaml:2:1: defaultPolicys: unknown key; did you mean defaultPolicies?`}},
		"unknown": {"acne", "p.json", to2, []string{
			`p.json: the configuration has no account "acne"; did you mean acme?`}},
	} {
		t.Run(name, func(t *testing.T) {
			f := ReadFileOf(tt.account, tt.file, []byte(tt.content), stores)
			var got []string
			for _, fault := range f.Faults {
				got = append(got, fault.String())
			}
			if !slices.Equal(got, tt.faults) || f.Account != tt.account {
				t.Errorf("account %q: got %q, want %q", f.Account, got, tt.faults)
			}
		})
	}
}

func TestEqualDocuments(t *testing.T) {
	a, b := mustParse(t, to2), mustParse(t, "account: acme\ndefaultPolicies: [{srcStoreId: 1, destStoreId: 2}]\n")
	if !a.Equal(b) || !b.Equal(a) || a.Equal(mustParse(t, to23)) {
		t.Errorf("got %t, %t, %t, want true, true, false", a.Equal(b), b.Equal(a), a.Equal(mustParse(t, to23)))
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
