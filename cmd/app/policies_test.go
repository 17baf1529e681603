package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/incident"
	"github.com/millrace/millrace/streams/kafka/deadletter"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/storage"
)

// to returns a policy that copies store 1 to another.
func to(store string) string {
	return fmt.Sprintf("defaultPolicies:\n  - {srcStoreId: 1, destStoreId: %s}\n", store)
}

// withPolicies adds accounts acme and bell, and a folder of policies, to the site.
func (s *site) withPolicies() (write func(name, content string)) {
	bell := config.Account{ID: "bell"}
	for _, id := range []string{"1", "2"} {
		bell.Stores = append(bell.Stores,
			config.Store{ID: id, Driver: "file", Root: filepath.Join(s.t.TempDir(), id), Primary: id == "1"})
	}
	folder := s.t.TempDir()
	cfg := *s.cfg // others may be running with it
	cfg.Accounts = append(slices.Clip(cfg.Accounts), bell)
	cfg.Policies.Folder = folder
	s.cfg = &cfg
	return func(name, content string) {
		s.t.Helper()
		// Not in place: the folder may be read meanwhile.
		whole := filepath.Join(s.t.TempDir(), filepath.Base(name))
		err := errors.Join(os.WriteFile(whole, []byte(content), 0o600), os.Rename(whole, filepath.Join(folder, name)))
		if err != nil {
			s.t.Fatal(err)
		}
	}
}

// inForce waits until the active policy of an account copies store 1 to a store.
func (s *site) inForce(a *App, account, store string) {
	s.t.Helper()
	s.until(func() error {
		rules, _ := a.policyRegistry.Rules(account, "photos")
		if len(rules.Pairs) != 1 || rules.Pairs[0].Destination != store {
			return fmt.Errorf("in force for %s: %+v, want store %s", account, rules.Pairs, store)
		}
		return nil
	})
}

// While a document is refused, the process is live and not ready, and reports the file, line and
// cause. The other documents are active meanwhile.
func TestRefusedPolicyShowsInReadiness(t *testing.T) {
	s := newSite(t)
	write := s.withPolicies()
	write("duplication-accounts.json", `["acme", "bell"]`)
	write("acme-duplication-policy.yaml", to("2"))
	write("bell-duplication-policy.yaml", "# of bell\n"+to("7"))
	a := s.run(schemas.RolePlanner)
	file := filepath.Join(s.cfg.Policies.Folder, "bell-duplication-policy.yaml")
	s.await("/readyz", 503, "policy refused: "+file+`:3: defaultPolicies[0].destStoreId: `+
		`unknown store \"7\"; the account has 1, 2`)
	s.await("/startupz", 200)
	s.await("/livez", 200)
	s.await("/metrics", 200, "millrace_policy_refused 1")
	s.inForce(a, "acme", "2")
	logged := `msg="refuse policy: ` +
		`the account has no active one, and the file is read again until it is corrected" account=bell file=` +
		file + ":3 err="
	if n := s.said.with(logged); n != 1 {
		t.Errorf("the log has %q %d times, want once", logged, n)
	}

	// A new fault replaces the reported one. An active document is not read again.
	write("acme-duplication-policy.yaml", to("3"))
	write("bell-duplication-policy.yaml", "default: 1\n")
	s.await("/readyz", 503, file+":1: default: unknown key")
	write("bell-duplication-policy.yaml", to("2"))
	s.await("/readyz", 200)
	s.await("/metrics", 200, "millrace_policy_refused 0")
	s.inForce(a, "bell", "2")
	s.inForce(a, "acme", "2")
	if n := s.said.with("accept policy"); n != 1 {
		t.Errorf("the log has %d lines \"accept policy\", want 1", n)
	}
}

// While documents are refused, other documents are published as soon as possible, also those of
// accounts that the list of accounts lacked.
func TestMendedListOfAccounts(t *testing.T) {
	s := newSite(t)
	write := s.withPolicies()
	write("duplication-accounts.json", `["acne", "bell"]`)
	write("acme-duplication-policy.yaml", to("2"))
	write("bell-duplication-policy.yaml", to("2"))
	a := s.run(schemas.RolePlanner)
	s.await("/readyz", 503, `the configuration has no account \"acne\"; did you mean acme?`)
	s.inForce(a, "bell", "2")
	if _, ok := a.policyRegistry.Document("acme"); ok {
		t.Error("acme has a policy, and is not in the list")
	}
	write("bell-duplication-policy.yaml", "default: 1\n") // it is taken, and not read again
	write("duplication-accounts.json", `["acme", "bell"]`)
	s.await("/readyz", 200)
	if _, ok := a.policyRegistry.Document("acme"); !ok {
		t.Error("the process is ready, and the policy of acme is not in force")
	}
	s.inForce(a, "bell", "2")
}

// The log says whether a policy stays active when a document is refused.
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
	if err := again.publish(t.Context(), f); err != nil {
		t.Fatal(err)
	}
	if n := s.said.with("refuse policy: the last good one stays active"); n != 1 {
		t.Errorf("the log says %d times that the last one stays, want once", n)
	}
}

// The process waits for a missing folder and then reads all of it. A role that applies no policies
// is ready meanwhile.
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

// An unreadable record is reported until a document of the folder replaces it, unless its account
// is not configured.
func TestRefusedRecordShowsInReadiness(t *testing.T) {
	s := newSite(t)
	write := s.withPolicies()
	folder := s.cfg.Policies.Folder
	s.cfg.Policies.Folder = ""
	a := s.run(schemas.RolePlanner)
	s.await("/readyz", 200)
	for _, account := range []string{"acme", "elsewhere"} {
		if err := a.producer.Publish(t.Context(), schemas.Message{Topic: schemas.Policies, Body: &pb.Policy{
			Id: schemas.ID(account), Account: account, Document: "{"}}); err != nil {
			t.Fatal(err)
		}
	}
	s.await("/readyz", 503, "policy refused: account acme: revision 1 cannot be read")
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

// Each row is a case of a document of the folder.
func TestStepOf(t *testing.T) {
	for name, tt := range map[string]struct {
		published, same, gap bool
		want                 folderStep
	}{
		"new bytes":                                 {false, false, false, folderPublish},
		"new bytes, the same document":              {false, true, false, folderPublish},
		"in force":                                  {true, true, false, folderNothing},
		"another revision came after it":            {true, false, false, folderDiverged},
		"new bytes, over a gap":                     {false, false, true, folderDiverged},
		"new bytes, the same document, over a gap":  {false, true, true, folderDiverged},
		"the same, over a gap":                      {true, true, true, folderDiverged},
		"another revision came after it, and a gap": {true, false, true, folderDiverged},
	} {
		t.Run(name, func(t *testing.T) {
			if got := folderStepOf(tt.published, tt.same, tt.gap); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

// diverged waits until the incident about acme's policy is open or closed.
func (s *site) diverged(a *App, open bool) {
	s.t.Helper()
	s.until(func() error {
		if got := a.incidentBoard.IsOpen(incident.Subject{Account: "acme", Kind: incident.PolicyDiverged}); got != open {
			return fmt.Errorf("incident %s is open: %v, want %v", incident.PolicyDiverged, got, open)
		}
		return nil
	})
}

// restarted runs another process with another folder of policies, and waits until it has read that.
func (s *site) restarted(folder string) *App {
	s.t.Helper()
	cfg := *s.cfg // others are running with it
	cfg.Policies.Folder = folder
	s.cfg = &cfg
	a := s.another(schemas.RolePlanner)
	select {
	case <-s.t.Context().Done():
	case <-a.folder.published:
	}
	return a
}

// A restarted process with an older folder does not publish the older document, and no process
// reverts a policy that a person has published. An incident is open until the file or the policy
// changes.
func TestRestartRevertsNoPolicy(t *testing.T) {
	s := newSite(t)
	write := s.withPolicies()
	older := s.cfg.Policies.Folder
	write("duplication-accounts.json", `["acme"]`)
	write("acme-duplication-policy.yaml", to("2"))
	s.restarted(older)
	writeNewer := s.withPolicies()
	newer := s.cfg.Policies.Folder
	writeNewer("duplication-accounts.json", `["acme"]`)
	writeNewer("acme-duplication-policy.yaml", to("3"))
	a := s.restarted(newer)
	s.inForce(a, "acme", "3")

	late := s.restarted(older)
	s.await("/readyz", 200)
	s.inForce(late, "acme", "3")
	s.diverged(late, true)
	if got := late.policyRegistry.Revision("acme"); got != 2 {
		t.Errorf("revision %d, want 2", got)
	}
	late = s.restarted(older) // once more, as when it is killed
	if got := late.policyRegistry.Revision("acme"); got != 2 {
		t.Errorf("revision %d, want 2", got)
	}
	write("acme-duplication-policy.yaml", to("3"))
	s.diverged(late, false)

	if err := a.SetPolicy(t.Context(), "acme", document(t, "{}"), "ann"); err != nil {
		t.Fatal(err)
	}
	late = s.restarted(newer)
	if doc, ok := late.policyRegistry.Document("acme"); !ok || len(doc.Default) != 0 {
		t.Errorf("in force: %v, want what ann has published", doc)
	}
	s.diverged(late, true)
	writeNewer("acme-duplication-policy.yaml", "# again\n"+to("3"))
	s.inForce(late, "acme", "3")
	s.diverged(late, false)
}

// Many policies are published together. The next start publishes only the changed ones.
func TestManyPolicies(t *testing.T) {
	s := newSite(t)
	write := s.withPolicies()
	n := need.Amount(200, 2000, 2000)
	names, root := make([]string, n), t.TempDir()
	for i := range names {
		names[i] = fmt.Sprintf(`"a%d"`, i)
		account := config.Account{ID: fmt.Sprintf("a%d", i)}
		for _, id := range []string{"1", "2"} {
			account.Stores = append(account.Stores,
				config.Store{ID: id, Driver: "file", Root: filepath.Join(root, account.ID, id)})
		}
		s.cfg.Accounts = append(s.cfg.Accounts, account)
		if err := os.WriteFile(filepath.Join(s.cfg.Policies.Folder, fmt.Sprintf("a%d-duplication-policy.yaml", i)),
			[]byte(to("2")), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("duplication-accounts.json", "["+strings.Join(names, ",")+"]")
	a := s.run(schemas.RolePlanner)
	s.await("/readyz", 200)
	for i := range n {
		if got := a.policyRegistry.Revision(fmt.Sprintf("a%d", i)); got != 1 {
			t.Fatalf("account a%d is at revision %d, want 1", i, got)
		}
	}
	write("a7-duplication-policy.yaml", "{}")
	again := newPolicyFolder(a)
	if err := again.publish(t.Context(), again.read()); err != nil {
		t.Fatal(err)
	}
	for account, want := range map[string]int64{"a6": 1, "a7": 2} {
		if got := a.policyRegistry.Revision(account); got != want {
			t.Errorf("account %s is at revision %d, want %d", account, got, want)
		}
	}
}

// An invalid document is an error of the caller and is not published.
func TestSetPolicyRefuses(t *testing.T) {
	s := newSite(t)
	a := s.run(schemas.RoleDelayer)
	doc, err := policy.Parse([]byte(to("9")))
	if err != nil {
		t.Fatal(err)
	}
	for _, account := range []string{"acme", "nobody"} {
		var faults policy.Faults
		if err := a.SetPolicy(t.Context(), account, doc, "test"); !errors.As(err, &faults) ||
			a.policyRegistry.Revision(account) != 0 {
			t.Errorf("%s: got %v, revision %d", account, err, a.policyRegistry.Revision(account))
		}
	}
}

// late opens a process that follows the policies only after follow is called.
func (s *site) late() (a *App, follow func()) {
	s.t.Helper()
	a, err := Open(s.t.Context(), s.cfg, Options{Log: s.said.log(), Drain: time.Second})
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(s.t.Context())
	ended := make(chan error, 1)
	ended <- nil
	s.t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			s.t.Error(err)
		}
		a.Close()
	})
	return a, func() {
		<-ended
		go func() { ended <- a.policies.Run(ctx) }()
	}
}

// published waits until the topic policies has n records.
func (s *site) published(a *App, n int64) {
	s.t.Helper()
	s.until(func() error {
		ends, err := a.admin.EndOffsets(s.t.Context(), schemas.Policies)
		var got int64
		for _, end := range ends {
			got += end
		}
		if err == nil && got != n {
			err = fmt.Errorf("the topic policies has %d records, want %d", got, n)
		}
		return err
	})
}

func document(t *testing.T, text string) policy.Document {
	t.Helper()
	doc, err := policy.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

// Of two writers that publish on top of the same revision, the second gets an error that names the
// first, unless their documents are equal.
func TestWriterThatLostIsTold(t *testing.T) {
	for name, tt := range map[string]struct {
		second string
		lost   bool
	}{
		"another document":  {"3", true},
		"the same document": {"2", false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			first := s.run(schemas.RoleDelayer)
			if err := first.SetPolicy(t.Context(), "acme", document(t, to("2")), "first"); err != nil {
				t.Fatal(err)
			}
			second, follow := s.late()
			told := make(chan error, 1)
			go func() {
				told <- second.publishPolicies(t.Context(), map[string]policy.Document{"acme": document(t, to(tt.second))}, nil,
					"second")
			}()
			s.published(first, 2)
			follow()
			var lost *policy.LostError
			switch err := <-told; {
			case !tt.lost && err != nil:
				t.Errorf("got %v", err)
			case tt.lost && (!errors.As(err, &lost) || lost.Account != "acme" || lost.Revision != 1 || lost.By != "first"):
				t.Errorf("got %v, want that first published revision 1", err)
			}
			if got := first.policyRegistry.Revision("acme"); got != 1 {
				t.Errorf("revision %d, want 1", got)
			}
			s.inForce(first, "acme", "2")
		})
	}
}

// The document of a folder is published again on top of one that another writer published
// meanwhile.
func TestFolderThatLostPublishesOnTop(t *testing.T) {
	s := newSite(t)
	write := s.withPolicies()
	folder := s.cfg.Policies.Folder
	s.cfg.Policies.Folder = ""
	first := s.run(schemas.RoleDelayer)
	if err := first.SetPolicy(t.Context(), "acme", document(t, to("2")), "first"); err != nil {
		t.Fatal(err)
	}
	s.cfg.Policies.Folder = folder
	write("duplication-accounts.json", `["acme"]`)
	write("acme-duplication-policy.yaml", to("3"))
	second, follow := s.late()
	done := make(chan error, 1)
	go func() {
		f := second.folder.read()
		done <- second.folder.publish(t.Context(), f)
	}()
	s.published(first, 2)
	follow()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	s.inForce(first, "acme", "3")
	if got := first.policyRegistry.Revision("acme"); got != 2 {
		t.Errorf("revision %d, want 2", got)
	}
	if n := s.said.with("publish policies again: another writer was first"); n != 1 {
		t.Errorf("the log says %d times that another was first, want once", n)
	}
}

// A document whose publisher died before reading it back is not published again.
func TestPolicyIsPublishedOnce(t *testing.T) {
	s := newSite(t)
	a := s.run(schemas.RoleDelayer)
	if err := ready(t.Context(), a.policies); err != nil {
		t.Fatal(err)
	}
	killed, _ := s.late()
	ctx, kill := context.WithCancel(t.Context())
	told := make(chan error, 1)
	acme, sums := map[string]policy.Document{"acme": document(t,
		to("2"))}, map[string]string{"acme": "5d41402abc4b2a76b9719d911017c592"}
	go func() {
		told <- killed.publishPolicies(ctx, acme, sums, "test")
	}()
	s.published(a, 1)
	kill()
	if err := <-told; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want that it was cancelled", err)
	}
	s.inForce(a, "acme", "2")
	if err := a.SetPolicy(t.Context(), "acme", document(t, to("2")), "test"); err != nil {
		t.Fatal(err)
	}
	if err := a.publishPolicies(t.Context(), acme, sums, "test"); err != nil {
		t.Fatal(err)
	}
	s.published(a, 1)
}

// Pairs with an unknown store have no effect: their commands become dead letters with the reason,
// and other pairs continue.
func TestPairWithAnUnknownStoreIsInert(t *testing.T) {
	s := newSite(t)
	s.hasSpace(1)
	a := s.run(schemas.RolePlanner, schemas.RoleCopier, schemas.RoleDelayer)
	s.await("/startupz", 200)
	doc := document(t, "defaultPolicies:\n- {srcStoreId: 1, destStoreId: 2}\n- {srcStoreId: 1, destStoreId: 9}\n")
	if err := a.publishPolicies(t.Context(), map[string]policy.Document{"acme": doc}, nil, "test"); err != nil {
		t.Fatal(err)
	}
	store, err := a.EmittingStore("acme", "1", "test")
	if err != nil {
		t.Fatal(err)
	}
	if err := store.CreateSpace(t.Context(), storage.Space{Name: "photos"}); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Put(t.Context(), "photos", "a", strings.NewReader("bytes"),
		storage.PutOptions{Size: 5}); err != nil {
		t.Fatal(err)
	}
	copied, _ := a.Stores().Store("acme", "2")
	s.until(func() error {
		_, err := copied.Stat(t.Context(), "photos", "a")
		return err
	})
	dead, err := deadletter.New(a.kafka)
	if err != nil {
		t.Fatal(err)
	}
	defer dead.Close()
	s.until(func() error {
		about := map[string]string{} // item: destination
		err := dead.Each(t.Context(),
			deadletter.Query{Role: schemas.RoleCopier, Cause: `stores "1" and "9" of account "acme"`},
			func(l *deadletter.Letter) error {
				body, err := l.Decode()
				if c, ok := body.(*pb.DuplicationCommand); ok {
					about[c.GetItem()] = c.GetDestinationStore()
				}
				return err
			})
		if want := map[string]string{"": "9", "a": "9"}; err == nil && !maps.Equal(about, want) { // the space, and the item
			err = fmt.Errorf("dead letters of %v, want %v", about, want)
		}
		return err
	})
	if got := a.folder.refused(); len(got) != 0 {
		t.Errorf("/readyz names %q: the process would never be ready", got)
	}
	s.until(func() error {
		if !a.incidentBoard.IsOpen(incident.Subject{Account: "acme", Kind: incident.PolicyRefused}) {
			return errors.New("no incident is open")
		}
		return nil
	})
}

// After an undecodable record of policies, deletes are kept until the next revision.
func TestPolicyRecordThatCannotBeDecoded(t *testing.T) {
	b := kafkatest.New(t, kafkatest.Options{Loopback: true, NoTopics: true})
	s := newSite(t)
	s.cfg.Kafka.Brokers = b.Config().Brokers
	a := s.run(schemas.RolePlanner)
	keeps := func(want policy.Deletes) {
		t.Helper()
		s.until(func() error {
			rules, _ := a.policyRegistry.Rules("acme", "photos")
			if rules.Deletes != want || len(rules.Pairs) != 1 {
				return fmt.Errorf("in force: deletes %s, %v; want %s and a pair", rules.Deletes, rules.Pairs, want)
			}
			return nil
		})
	}
	if err := a.SetPolicy(t.Context(), "acme", document(t, to("2")), "test"); err != nil {
		t.Fatal(err)
	}
	keeps(policy.Propagate)
	b.Write(kafkatest.Record{Record: schemas.Record{Topic: schemas.Policies, Key: []byte("acme"),
		Value: []byte("garbage")}, Partition: -1})
	keeps(policy.KeepCopy)
	s.await("/readyz", 503, "policy refused: account acme: "+
		"a record after revision 1 cannot be decoded, and deletes are kept until the next revision: ")
	if err := a.SetPolicy(t.Context(), "acme", document(t, to("2")), "test"); err != nil {
		t.Fatal(err)
	}
	keeps(policy.Propagate)
	s.await("/readyz", 200)
}

// Nothing is published after an undecodable record until a person accepts its loss. Then the
// process is ready too.
func TestFolderPublishesOverNoGap(t *testing.T) {
	b := kafkatest.New(t, kafkatest.Options{Loopback: true, NoTopics: true})
	s := newSite(t)
	s.cfg.Kafka.Brokers = b.Config().Brokers
	write := s.withPolicies()
	write("duplication-accounts.json", `["acme"]`)
	write("acme-duplication-policy.yaml", to("2"))
	folder := s.cfg.Policies.Folder
	s.restarted(folder)
	b.Write(kafkatest.Record{Record: schemas.Record{Topic: schemas.Policies, Key: []byte("acme"),
		Value: []byte("garbage")}, Partition: -1})
	write("acme-duplication-policy.yaml", to("3"))
	a := s.restarted(folder)
	s.diverged(a, true)
	s.await("/readyz", 503, "a record after revision 1 cannot be decoded")
	if rules, _ := a.policyRegistry.Rules("acme", "photos"); a.policyRegistry.Revision("acme") != 1 ||
		rules.Deletes != policy.KeepCopy {
		t.Errorf("revision %d, deletes %s, want 1 and keep", a.policyRegistry.Revision("acme"), rules.Deletes)
	}
	about := openUnreadable(s, a, 1)[0]
	if err := a.CloseIncident(t.Context(), about.Incident(),
		Actor{Who: "eve", Reason: "of a tool of ours", From: "cli"}); err != nil {
		t.Fatal(err)
	}
	s.inForce(a, "acme", "3")
	s.diverged(a, false)
	s.await("/readyz", 200)
}

// A gap that a person has accepted does not make a process unready, and its incident stays closed.
func TestAcceptedGap(t *testing.T) {
	b := kafkatest.New(t, kafkatest.Options{Loopback: true, NoTopics: true})
	s := newSite(t)
	s.cfg.Kafka.Brokers = b.Config().Brokers
	a := s.run(schemas.RolePlanner)
	if err := a.SetPolicy(t.Context(), "acme", document(t, to("2")), "test"); err != nil {
		t.Fatal(err)
	}
	b.Write(kafkatest.Record{Record: schemas.Record{Topic: schemas.Policies, Key: []byte("acme"),
		Value: []byte("garbage")}, Partition: -1})
	refused := incident.Subject{Account: "acme", Kind: incident.PolicyRefused}
	is := func(open bool) func() error {
		return func() error {
			if got := a.incidentBoard.IsOpen(refused); got != open {
				return fmt.Errorf("incident %s is open: %v, want %v", refused.Key(), got, open)
			}
			return nil
		}
	}
	s.until(is(true))
	about := openUnreadable(s, a, 1)[0]
	if err := a.CloseIncident(t.Context(), about.Incident(),
		Actor{Who: "eve", Reason: "of a tool of ours", From: "cli"}); err != nil {
		t.Fatal(err)
	}
	s.await("/readyz", 200)
	s.until(is(false))
	if rules, _ := a.policyRegistry.Rules("acme", "photos"); rules.Deletes != policy.KeepCopy {
		t.Errorf("deletes %s, want keep until the next revision", rules.Deletes)
	}
	if err := a.SetPolicy(t.Context(), "acme", document(t, to("2")), "test"); err != nil ||
		a.policyRegistry.Revision("acme") != 2 {
		t.Errorf("published the same document over the gap: %v, revision %d", err, a.policyRegistry.Revision("acme"))
	}
}

// After a person has accepted a gap, the document of a folder still equals the active one.
func TestAcceptedGapOfAFolder(t *testing.T) {
	b := kafkatest.New(t, kafkatest.Options{Loopback: true, NoTopics: true})
	s := newSite(t)
	s.cfg.Kafka.Brokers = b.Config().Brokers
	write := s.withPolicies()
	write("duplication-accounts.json", `["acme"]`)
	write("acme-duplication-policy.yaml", to("2"))
	s.restarted(s.cfg.Policies.Folder)
	b.Write(kafkatest.Record{Record: schemas.Record{Topic: schemas.Policies, Key: []byte("acme"),
		Value: []byte("garbage")}, Partition: -1})
	a := s.restarted(s.cfg.Policies.Folder)
	s.diverged(a, true)
	about := openUnreadable(s, a, 1)[0]
	if err := a.CloseIncident(t.Context(), about.Incident(),
		Actor{Who: "eve", Reason: "of a tool of ours", From: "cli"}); err != nil {
		t.Fatal(err)
	}
	s.diverged(a, false)
	if got := a.policyRegistry.Revision("acme"); got != 1 {
		t.Errorf("revision %d, want 1", got)
	}
}

// A record that the policies ignore, such as that of a losing writer, does not supersede an
// undecodable one: that stays for a person to accept, also in a process that starts later.
func TestGapBeforeAnIgnoredRecord(t *testing.T) {
	b := kafkatest.New(t, kafkatest.Options{Loopback: true, NoTopics: true})
	s := newSite(t)
	s.cfg.Kafka.Brokers = b.Config().Brokers
	a := s.run(schemas.RolePlanner)
	if err := a.SetPolicy(t.Context(), "acme", document(t, to("2")), "test"); err != nil {
		t.Fatal(err)
	}
	b.Write(kafkatest.Record{Record: schemas.Record{Topic: schemas.Policies, Key: []byte("acme"),
		Value: []byte("garbage")}, Partition: -1})
	about := openUnreadable(s, a, 1)[0]
	loser, err := policy.Record("acme", 0, document(t, to("3")), "loser", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if err := a.producer.Publish(t.Context(), schemas.Message{Topic: schemas.Policies, Body: loser}); err != nil {
		t.Fatal(err)
	}
	b.Write(kafkatest.Record{Record: schemas.Record{Topic: schemas.Policies, Key: []byte("acme")}, Partition: -1})
	if err := a.policies.CatchUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	late := s.another(schemas.RolePlanner)
	s.await("/readyz", 503, "a record after revision 1 cannot be decoded")
	for _, p := range []*App{a, late} {
		if err := p.reportUnreadable(t.Context()); err != nil || !p.incidentBoard.IsOpen(about) || !p.hasOpenGap("acme") {
			t.Fatalf("the incident is open: %t, the gap: %t (%v)", p.incidentBoard.IsOpen(about), p.hasOpenGap("acme"), err)
		}
	}
	if err := a.CloseIncident(t.Context(), about.Incident(),
		Actor{Who: "eve", Reason: "of a tool of ours", From: "cli"}); err != nil {
		t.Fatal(err)
	}
	s.await("/readyz", 200)
	if late.hasOpenGap("acme") || late.policyRegistry.Revision("acme") != 1 {
		t.Errorf("the gap is open: %t, at revision %d", late.hasOpenGap("acme"), late.policyRegistry.Revision("acme"))
	}
}

// A document that an older version published without a digest reverts nothing at a start. It is
// published when its file changes, even to the same content, also after a restart before the
// change.
func TestFolderOfAnOlderProgramIsPublished(t *testing.T) {
	s := newSite(t)
	write := s.withPolicies()
	folder := s.cfg.Policies.Folder
	write("duplication-accounts.json", `["acme"]`)
	write("acme-duplication-policy.yaml", to("2"))
	s.cfg.Policies.Folder = ""
	old := s.run(schemas.RolePlanner)
	for _, store := range []string{"2", "3"} {
		if err := old.SetPolicy(t.Context(), "acme", document(t, to(store)), "older"); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // at each start
		a := s.restarted(folder)
		s.inForce(a, "acme", "3")
		s.diverged(a, true)
	}
	write("acme-duplication-policy.yaml", "# again\n"+to("2"))
	s.inForce(old, "acme", "2")
	s.diverged(old, false)
	if got := old.policyRegistry.Revision("acme"); got != 3 { // of the two processes one comes first
		t.Errorf("revision %d, want 3", got)
	}
}

// incidentRecords are the incidents that a folder publishes.
type incidentRecords struct {
	published []string // state and detail
	err       error    // of the next one
}

func (r *incidentRecords) Publish(_ context.Context, msgs ...schemas.Message) error {
	if err := r.err; err != nil {
		r.err = nil
		return err
	}
	for _, m := range msgs {
		i := m.Body.(*pb.Incident)
		word := "open: "
		if i.GetState() == pb.IncidentState_INCIDENT_STATE_CLOSED {
			word = "closed: "
		}
		r.published = append(r.published, word+i.GetSteps()[len(i.GetSteps())-1].GetDetail())
	}
	return nil
}

// Two processes with different folders open one incident, however long they run. Each logs its
// reason when it starts.
func TestFoldersThatDifferOpenOneIncident(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var records incidentRecords
		var log lines
		a := &App{log: log.log(), incidentBoard: incident.NewBoard(&records, slog.New(slog.DiscardHandler))}
		one, two := newPolicyFolder(a), newPolicyFolder(a)
		acme := policy.Folder{Documents: map[string]policy.Document{"acme": {}}}
		for range 30 {
			one.reportDiverged(t.Context(), acme, map[string]string{"acme": "file 1"})
			time.Sleep(policyRetryInterval)
			two.reportDiverged(t.Context(), acme, map[string]string{"acme": "file 2"})
			time.Sleep(time.Minute)
		}
		if want := []string{"open: file 1"}; !slices.Equal(records.published, want) {
			t.Errorf("published %q, want %q", records.published, want)
		}
		if n := log.with("do not publish diverged policy"); n != 2 {
			t.Errorf("%d errors, want one of each", n)
		}
	})
}

// The incident of a diverged document is closed when the divergence ends, also after failed
// publications.
func TestDivergedPolicyIsOver(t *testing.T) {
	acme := policy.Folder{Documents: map[string]policy.Document{"acme": {}}}
	faulty := policy.Folder{Faults: policy.Faults{{Account: "acme", Reason: "syntax"}}}
	for name, tt := range map[string]struct {
		then []policy.Folder
		err  error
		want string // the newest record; empty: the incident stays open
	}{
		"refused":                   {[]policy.Folder{faulty}, nil, ""},
		"the folder cannot be read": {[]policy.Folder{{Faults: policy.Faults{{Reason: "no such folder"}}}}, nil, ""},
		"refused, and in force": {[]policy.Folder{faulty, acme}, nil,
			"closed: the document of the folder is active"},
		"refused, and removed": {[]policy.Folder{faulty, {}}, nil,
			"closed: the folder has no document of the account"},
		"in force, and Kafka fails once": {[]policy.Folder{acme, {}}, errors.New("away"),
			"closed: the document of the folder is active"},
		"removed, and Kafka fails once": {[]policy.Folder{{}, {}}, errors.New("away"),
			"closed: the folder has no document of the account"},
		"in force, and Kafka fails still": {[]policy.Folder{acme}, errors.New("away"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			var records incidentRecords
			a := &App{log: slog.New(slog.DiscardHandler),
				incidentBoard: incident.NewBoard(&records, slog.New(slog.DiscardHandler))}
			p := newPolicyFolder(a)
			p.reportDiverged(t.Context(), acme, map[string]string{"acme": "another"})
			records.err = tt.err
			for _, f := range tt.then {
				for account := range f.Documents {
					p.active[account] = true
				}
				p.reportDiverged(t.Context(), f, nil)
			}
			last := records.published[len(records.published)-1]
			if tt.want == "" && (last != "open: another" || !p.open["acme"]) || tt.want != "" &&
				(last != tt.want || len(p.open) > 0) {
				t.Errorf("published %q, still to close %v, want %q", records.published, p.open, tt.want)
			}
		})
	}
}
