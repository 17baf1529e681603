package policy

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
)

func file(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s)} }

// accounts returns configured accounts with three stores each.
func accounts(names ...string) map[string][]Store {
	all := map[string][]Store{}
	for _, name := range names {
		all[name] = []Store{{ID: "1"}, {ID: "2"}, {ID: "3"}}
	}
	return all
}

// Every fault of a folder has its file and line, and invalidates only the document of its account.
func TestReadFolder(t *testing.T) {
	folder := fstest.MapFS{
		accountsFile: file(
			"[\"acme\", \"bad\",\n\"none\", \"both\", \"yaml\", \"acme\", \"../up\",\n\"dir\", \"acmee\", \"large\", \"\"]"),
		"acme-duplication-policy.json": file(older),
		"bad-duplication-policy.json": file(
			"{\n\"x\": 1,\n\"defaultPolicies\": [\n{\"srcStoreID\": \"1\", \"destStoreId\": \"2\"},\n{\"srcStoreId\": \"1\", " +
				"\"destStoreId\": \"9\"}]}"),
		"both-duplication-policy.json":    file(`{}`),
		"both-duplication-policy.yaml":    file(`{}`),
		"yaml-duplication-policy.yaml":    file(ours),
		"yaml-duplication-policy.yml":     file(ours),
		"other-duplication-policy.json":   file(`{}`),
		"dir-duplication-policy.json/x":   file(``),
		"large-duplication-policy.json":   file(`{"spacesToIgnore": ["` + strings.Repeat("x", maxDocument) + `"]}`),
		"README.md":                       file(``),
		"no-duplication-policy-here.json": file(``),
	}
	got := ReadFolder(folder, accounts("acme", "bad", "none", "both", "yaml", "dir", "large"))
	want := map[string]Document{"acme": mustParse(t, older), "yaml": mustParse(t, ours)}
	if !reflect.DeepEqual(got.Documents, want) {
		t.Errorf("got  %+v\nwant %+v", got.Documents, want)
	}
	const list = "duplication-accounts.json:"
	faults := strings.Join([]string{
		`bad-duplication-policy.json:2:1: x: unknown key; known here: account, defaultPolicies, defaults, ignore, ` +
			`spaceDuplicationStorePolicies, spaces, spacesToIgnore`,
		`bad-duplication-policy.json:4:2: defaultPolicies[0].srcStoreID: unknown key; did you mean srcStoreId?`,
		`bad-duplication-policy.json:5:21: defaultPolicies[1].destStoreId: unknown store "9"; the account has 1, 2, 3`,
		`none-duplication-policy.json: is missing, as is none-duplication-policy.yaml: duplication-accounts.json names ` +
			`account "none"`,
		`both-duplication-policy.yaml: is a second document of account "both", beside both-duplication-policy.json: ` +
			`remove one of them`,
		list + `2:33: "../up" is not a name of an account`,
		`dir-duplication-policy.json: is a directory, not a file`,
		list + `3:8: the configuration has no account "acmee"; did you mean acme?`,
		fmt.Sprintf(`large-duplication-policy.json: has %d bytes as JSON, more than %d`,
			maxDocument+len(`{"spacesToIgnore":[""]}`), maxDocument),
		list + `3:26: "" is not a name of an account`,
	}, "\n")
	if got.Faults.Error() != faults {
		t.Errorf("got:\n%v\nwant:\n%v", got.Faults, faults)
	}
	wantUnread := []string{"other-duplication-policy.json", "yaml-duplication-policy.yml"}
	if !reflect.DeepEqual(got.Ignored, wantUnread) {
		t.Errorf("unread: got %q, want %q", got.Ignored, wantUnread)
	}
}

// Without configured accounts, an account may have any stores.
func TestReadFolderForm(t *testing.T) {
	got := ReadFolder(fstest.MapFS{
		accountsFile:                   file(`["acme", "b"]`),
		"acme-duplication-policy.json": file(to9),
		"b-duplication-policy.json":    file(`{"spaces": 1}`),
	}, nil)
	if want := map[string]Document{"acme": mustParse(t, to9)}; !reflect.DeepEqual(got.Documents, want) {
		t.Errorf("got %+v, want %+v", got.Documents, want)
	}
	if want := `b-duplication-policy.json:1:12: spaces: want an object, got a number`; got.Faults.Error() != want {
		t.Errorf("got %v, want %s", got.Faults, want)
	}
}

// A pair with a read-only destination, or with a source that lacks the space, is a fault.
func TestUnusablePairs(t *testing.T) {
	got := ReadFolder(fstest.MapFS{
		accountsFile: file(`["acme"]`),
		"acme-duplication-policy.yaml": file(
			"defaultPolicies:\n- {srcStoreId: 2, destStoreId: 1}\nspaceDuplicationStorePolicies:\n" +
				"  films: [{srcStoreId: 1, destStoreId: 2}]\n  photos: [{srcStoreId: 1, destStoreId: 2}]\n"),
	}, map[string][]Store{"acme": {{ID: "1", ReadOnly: true, Space: "photos"}, {ID: "2"}}})
	want := "acme-duplication-policy.yaml:2:19: defaultPolicies[0].destStoreId: store \"1\" is read-only: its layout " +
		"is plain\n" +
		"acme-duplication-policy.yaml:4:12: spaceDuplicationStorePolicies.films[0].srcStoreId: store \"1\" has no space " +
		"\"films\": its only space is \"photos\""
	if got.Faults.Error() != want {
		t.Errorf("got:\n%v\nwant:\n%v", got.Faults, want)
	}
}

// An unreadable list of accounts, or an unreadable folder, is one fault.
func TestUnreadableFolder(t *testing.T) {
	tests := map[string]struct{ list, want string }{
		"empty":      {"", "duplication-accounts.json: is empty"},
		"not closed": {"[\"a\",\n", "duplication-accounts.json:1:1: sequence end token ']' not found"},
		"not a list": {"{}", "duplication-accounts.json:1:1: want a list, got an object"},
		"not names":  {"[\"a\",\n{}]", "duplication-accounts.json:2:1: [1]: want text, got an object"},
		"extra commas": {"[\"a\",]",
			"a-duplication-policy.json: is missing, as is a-duplication-policy.yaml: duplication-accounts.json names " +
				"account \"a\""},
		"no account yet": {"[]", ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := ReadFolder(fstest.MapFS{accountsFile: file(tt.list)}, nil); got.Faults.Error() != tt.want ||
				len(got.Documents) > 0 {
				t.Errorf("got %v, %v, want %s", got.Faults, got.Documents, tt.want)
			}
		})
	}
	const missing = `duplication-accounts.json: is missing: it lists the accounts that have a policy here, such ` +
		`as ["acme"]`
	if got := ReadFolder(fstest.MapFS{}, nil).Faults.Error(); got != missing {
		t.Errorf("an empty folder: got %s", got)
	}
	dir := t.TempDir()
	none := os.DirFS(filepath.Join(dir, "none"))
	if got := ReadFolder(none, nil).Faults.Error(); got != "read the folder: no such file or directory" {
		t.Errorf("an absent folder: got %s", got)
	}
}

// Symbolic links are followed, which a mounted ConfigMap requires; a pipe is not opened.
func TestFilesOfAFolder(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for name, content := range map[string]string{accountsFile: `["a", "b", "c"]`, "..data": to2} {
		must(t, os.WriteFile(at(name), []byte(content), 0o644))
	}
	for link, target := range map[string]string{"a-duplication-policy.json": "..data",
		"c-duplication-policy.yaml": "c-duplication-policy.yaml"} {
		must(t, os.Symlink(target, at(link)))
	}
	must(t, syscall.Mkfifo(at("b-duplication-policy.json"), 0o644))
	got := ReadFolder(os.DirFS(dir), nil)
	if want := map[string]Document{"a": mustParse(t, to2)}; !reflect.DeepEqual(got.Documents, want) {
		t.Errorf("got %+v, want %+v", got.Documents, want)
	}
	want := "b-duplication-policy.json: is not a regular file\nc-duplication-policy.yaml: too many levels of " +
		"symbolic links"
	if got.Faults.Error() != want {
		t.Errorf("got:\n%v\nwant:\n%v", got.Faults, want)
	}
}
