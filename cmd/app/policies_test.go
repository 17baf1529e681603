package app

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/policy"
)

// to is a policy that copies store 1 to another.
func to(store string) string {
	return fmt.Sprintf("defaultPolicies:\n  - {srcStoreId: 1, destStoreId: %s}\n", store)
}

// withPolicies gives the site accounts acme and bell, and a folder of policies.
func (s *site) withPolicies() (write func(name, content string)) {
	bell := config.Account{ID: "bell"}
	for _, id := range []string{"1", "2"} {
		bell.Stores = append(bell.Stores, config.Store{ID: id, Driver: "file", Root: filepath.Join(s.t.TempDir(), id), Primary: id == "1"})
	}
	s.cfg.Accounts = append(s.cfg.Accounts, bell)
	folder := s.t.TempDir()
	s.cfg.Policies.Folder = folder
	return func(name, content string) {
		s.t.Helper()
		if err := WriteFile(filepath.Join(folder, name), []byte(content)); err != nil {
			s.t.Fatal(err)
		}
	}
}

// inForce waits until a copies store 1 of an account to a store.
func (s *site) inForce(a *App, account, store string) {
	s.t.Helper()
	s.until(func() error {
		rules, _ := a.book.Rules(account, "photos")
		if len(rules.Pairs) != 1 || rules.Pairs[0].Destination != store {
			return fmt.Errorf("in force for %s: %+v, want store %s", account, rules.Pairs, store)
		}
		return nil
	})
}

// A document that is refused leaves the process live and not ready, with the file, line and cause, until it is mended;
// the other documents are in force meanwhile.
func TestRefusedPolicyShowsInReadiness(t *testing.T) {
	s := newSite(t)
	write := s.withPolicies()
	write("duplication-accounts.json", `["acme", "bell"]`)
	write("acme-duplication-policy.yaml", to("2"))
	write("bell-duplication-policy.yaml", "# of bell\n"+to("7"))
	a := s.run(schemas.RolePlanner)
	file := filepath.Join(s.cfg.Policies.Folder, "bell-duplication-policy.yaml")
	s.await("/readyz", 503, "policy refused: "+file+`:3: defaultPolicies[0].destStoreId: unknown store \"7\"; the account has 1, 2`)
	s.await("/startupz", 200)
	s.await("/livez", 200)
	s.await("/metrics", 200, "millrace_policy_refused 1")
	s.inForce(a, "acme", "2")
	logged := `msg="refuse policy: its account has none in force, and the file is read again until it is mended" account=bell file=` +
		file + ":3 err="
	if n := s.said.with(logged); n != 1 {
		t.Errorf("the log has %q %d times, want once", logged, n)
	}

	// Another fault in it is reported in place of the first. A document that was read is not read again.
	write("acme-duplication-policy.yaml", to("3"))
	write("bell-duplication-policy.yaml", "default: 1\n")
	s.await("/readyz", 503, file+":1: default: unknown key")
	write("bell-duplication-policy.yaml", to("2"))
	s.await("/readyz", 200)
	s.await("/metrics", 200, "millrace_policy_refused 0")
	s.inForce(a, "bell", "2")
	s.inForce(a, "acme", "2")
	if n := s.said.with("policy is no longer refused"); n != 1 {
		t.Errorf("the log says %d times that the policy is no longer refused, want once", n)
	}
}

// While anything is refused, what was not taken at the start is published when it can be: also of an account that the
// list of accounts did not name.
func TestMendedListOfAccounts(t *testing.T) {
	s := newSite(t)
	write := s.withPolicies()
	write("duplication-accounts.json", `["acne", "bell"]`)
	write("acme-duplication-policy.yaml", to("2"))
	write("bell-duplication-policy.yaml", to("2"))
	a := s.run(schemas.RolePlanner)
	s.await("/readyz", 503, `the configuration has no account \"acne\"; did you mean acme?`)
	s.inForce(a, "bell", "2")
	if _, ok := a.book.Document("acme"); ok {
		t.Error("acme has a policy, and is not in the list")
	}
	write("bell-duplication-policy.yaml", "default: 1\n") // it is taken, and not read again
	write("duplication-accounts.json", `["acme", "bell"]`)
	s.await("/readyz", 200)
	if _, ok := a.book.Document("acme"); !ok {
		t.Error("the process is ready, and the policy of acme is not in force")
	}
	s.inForce(a, "bell", "2")
}

// The log says whether a policy stays in force when a document is refused.
func TestRefusedPolicyLeavesTheLastOneInForce(t *testing.T) {
	s := newSite(t)
	write := s.withPolicies()
	write("duplication-accounts.json", `["bell"]`)
	write("bell-duplication-policy.yaml", to("2"))
	a := s.run(schemas.RolePlanner)
	s.inForce(a, "bell", "2")
	write("bell-duplication-policy.yaml", to("7"))
	again := newPolicyFolder(a)
	f := again.read()
	if err := again.publish(t.Context(), f.Documents, f.Faults); err != nil {
		t.Fatal(err)
	}
	if n := s.said.with("refuse policy: the last good one stays in force"); n != 1 {
		t.Errorf("the log says %d times that the last one stays, want once", n)
	}
}

// A folder that is not there is waited for, and then read whole. A role that applies no policy is ready meanwhile.
func TestPolicyFolderComesLate(t *testing.T) {
	s := newSite(t)
	write := s.withPolicies()
	folder := s.cfg.Policies.Folder
	s.cfg.Policies.Folder = filepath.Join(folder, "late")
	a := s.run(schemas.RolePlanner)
	s.await("/readyz", 503, "policy refused: "+s.cfg.Policies.Folder+": read the folder: no such file or directory")
	s.await("/startupz", 200)
	if err := os.Mkdir(s.cfg.Policies.Folder, 0o755); err != nil {
		t.Fatal(err)
	}
	s.await("/readyz", 503, "duplication-accounts.json: is missing")
	write("late/acme-duplication-policy.yaml", to("2"))
	write("late/duplication-accounts.json", `["acme"]`)
	s.await("/readyz", 200)
	s.inForce(a, "acme", "2")

	other := newSite(t)
	other.cfg.Policies.Folder = filepath.Join(folder, "none")
	other.run(schemas.RoleDelayer)
	other.await("/readyz", 200)
	other.await("/metrics", 200, "millrace_policy_refused 1")
}

// A record with a fault shows too, until a document of the folder takes its place. One for an
// account of another configuration does not.
func TestRefusedRecordShowsInReadiness(t *testing.T) {
	s := newSite(t)
	write := s.withPolicies()
	folder := s.cfg.Policies.Folder
	s.cfg.Policies.Folder = ""
	a := s.run(schemas.RolePlanner)
	s.await("/readyz", 200)
	for _, account := range []string{"acme", "elsewhere"} {
		doc, err := policy.Parse([]byte(to("9")))
		if err != nil {
			t.Fatal(err)
		}
		if err := a.publishPolicies(t.Context(), map[string]policy.Document{account: doc}, "test"); err != nil {
			t.Fatal(err)
		}
	}
	s.await("/readyz", 503, "policy refused: account acme: revision 1 is in force with faults: ")
	s.await("/metrics", 200, "millrace_policy_refused 1")

	write("duplication-accounts.json", `["acme"]`)
	write("acme-duplication-policy.yaml", to("2"))
	mended := &site{t: t, cfg: s.cfg, url: "http://" + free(t)}
	mended.cfg.HTTP.Listen = strings.TrimPrefix(mended.url, "http://")
	mended.cfg.Policies.Folder = folder
	mended.run(schemas.RolePlanner)
	mended.await("/readyz", 200)
	s.await("/readyz", 200)
	s.inForce(a, "acme", "2")
}

// Many policies are published together, and by the next start only those that have changed.
func TestManyPolicies(t *testing.T) {
	s := newSite(t)
	write := s.withPolicies()
	n := need.Amount(200, 2000, 2000)
	names, root := make([]string, n), t.TempDir()
	for i := range names {
		names[i] = fmt.Sprintf(`"a%d"`, i)
		account := config.Account{ID: fmt.Sprintf("a%d", i)}
		for _, id := range []string{"1", "2"} {
			account.Stores = append(account.Stores, config.Store{ID: id, Driver: "file", Root: filepath.Join(root, account.ID, id)})
		}
		s.cfg.Accounts = append(s.cfg.Accounts, account)
		if err := os.WriteFile(filepath.Join(s.cfg.Policies.Folder, fmt.Sprintf("a%d-duplication-policy.yaml", i)), []byte(to("2")), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("duplication-accounts.json", "["+strings.Join(names, ",")+"]")
	a := s.run(schemas.RolePlanner)
	s.await("/readyz", 200)
	for i := range n {
		if got := a.book.Revision(fmt.Sprintf("a%d", i)); got != 1 {
			t.Fatalf("account a%d is at revision %d, want 1", i, got)
		}
	}
	write("a7-duplication-policy.yaml", "{}")
	f := a.folder.read()
	if err := a.publishPolicies(t.Context(), f.Documents, "test"); err != nil {
		t.Fatal(err)
	}
	for account, want := range map[string]int64{"a6": 1, "a7": 2} {
		if got := a.book.Revision(account); got != want {
			t.Errorf("account %s is at revision %d, want %d", account, got, want)
		}
	}
}

// A document that does not fit is an error of whoever publishes it, and is not published.
func TestSetPolicyRefuses(t *testing.T) {
	s := newSite(t)
	a := s.run(schemas.RoleDelayer)
	doc, err := policy.Parse([]byte(to("9")))
	if err != nil {
		t.Fatal(err)
	}
	for _, account := range []string{"acme", "nobody"} {
		var faults policy.Faults
		if err := a.SetPolicy(t.Context(), account, doc, "test"); !errors.As(err, &faults) || a.book.Revision(account) != 0 {
			t.Errorf("%s: got %v, revision %d", account, err, a.book.Revision(account))
		}
	}
}
