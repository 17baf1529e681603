package app

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/cmd/config"
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
		must(s.t, err)
	}
}

// inForce waits until the active policy of an account copies store 1 to a store, and deletes that are dated now are
// newer than its rule for deletes.
func (s *site) inForce(a *App, account, store string) {
	s.t.Helper()
	s.until(func() error {
		rules, _ := a.policyRegistry.Rules(account, "photos")
		if len(rules.Pairs) != 1 || rules.Pairs[0].Destination != store {
			return fmt.Errorf("in force for %s: %+v, want store %s", account, rules.Pairs, store)
		}
		if time.Since(rules.Since) < time.Millisecond { // times of records are in ms
			return fmt.Errorf("in force for %s since %v", account, rules.Since)
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
	s.await("/readyz", 503, "policy refused: "+file+`:3:21: defaultPolicies[0].destStoreId: `+
		`unknown store \"7\"; the account has 1, 2`)
	s.await("/startupz", 200)
	s.await("/livez", 200)
	s.await("/metrics", 200, "millrace_policy_refused 1")
	s.inForce(a, "acme", "2")
	write("bell-duplication-policy.yaml", to("2"))
	s.await("/readyz", 200)
	s.await("/metrics", 200, "millrace_policy_refused 0")
	s.inForce(a, "bell", "2")
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
	must(t, os.Mkdir(s.cfg.Policies.Folder, 0o755))
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
		must(t, a.producer.Publish(t.Context(), schemas.Message{Topic: schemas.Policies, Body: &pb.Policy{
			Id: schemas.ID(account), Account: account, Document: "{"}}))
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
	case <-a.folder.Published():
	}
	return a
}

func document(t *testing.T, text string) policy.Document {
	t.Helper()
	doc, err := policy.Parse([]byte(text))
	must(t, err)
	return doc
}

// Pairs with an unknown store have no effect: their commands become dead letters with the reason,
// and other pairs continue.
func TestPairWithAnUnknownStoreIsInert(t *testing.T) {
	s := newSite(t)
	s.hasSpace(1)
	a := s.run(schemas.RolePlanner, schemas.RoleCopier, schemas.RoleDelayer)
	s.await("/startupz", 200)
	doc := document(t, "defaultPolicies:\n- {srcStoreId: 1, destStoreId: 2}\n- {srcStoreId: 1, destStoreId: 9}\n")
	rec, err := policy.Record("acme", 0, doc, "test", time.Now())
	must(t, err)
	must(t, a.producer.Publish(t.Context(), schemas.Message{Topic: schemas.Policies, Body: rec}))
	store := s.client(a, "acme")
	must(t, store.CreateSpace(t.Context(), storage.Space{Name: "photos"}))
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
	must(t, err)
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
	if got := a.folder.Refused(); len(got) != 0 {
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
	must(t, a.SetPolicy(t.Context(), "acme", document(t, to("2")), "test"))
	keeps(policy.Propagate)
	b.Write(kafkatest.Record{Record: schemas.Record{Topic: schemas.Policies, Key: []byte("acme"),
		Value: []byte("garbage")}, Partition: -1})
	keeps(policy.KeepCopy)
	s.await("/readyz", 503, "policy refused: account acme: "+
		"a record after revision 1 cannot be decoded, and deletes are kept until the next revision: ")
	must(t, a.SetPolicy(t.Context(), "acme", document(t, to("2")), "test"))
	keeps(policy.Propagate)
	s.await("/readyz", 200)
}

// Nothing is published after an undecodable record until an operator accepts its loss. Then the
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
	write("acme-duplication-policy.yaml", to("2")+"spaces: {photos: {priority: low}}\n")
	a := s.restarted(folder)
	s.diverged(a, true)
	s.await("/readyz", 503, "a record after revision 1 cannot be decoded")
	if rules, _ := a.policyRegistry.Rules("acme", "photos"); a.policyRegistry.Revision("acme") != 1 ||
		rules.Deletes != policy.KeepCopy {
		t.Errorf("revision %d, deletes %s, want 1 and keep", a.policyRegistry.Revision("acme"), rules.Deletes)
	}
	about := openUnreadable(s, a, 1)[0]
	must(t, a.CloseIncident(t.Context(), about.Incident(), Actor{Who: "eve", Reason: "of a tool of ours", From: "cli"}))
	s.untilTrue("revision 2", func() bool { return a.policyRegistry.Revision("acme") == 2 })
	s.inForce(a, "acme", "2")
	s.diverged(a, false)
	s.await("/readyz", 200)
}

// A gap that an operator has accepted does not make a process unready, and its incident stays closed.
func TestAcceptedGap(t *testing.T) {
	b := kafkatest.New(t, kafkatest.Options{Loopback: true, NoTopics: true})
	s := newSite(t)
	s.cfg.Kafka.Brokers = b.Config().Brokers
	a := s.run(schemas.RolePlanner)
	must(t, a.SetPolicy(t.Context(), "acme", document(t, to("2")), "test"))
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
	must(t, a.CloseIncident(t.Context(), about.Incident(), Actor{Who: "eve", Reason: "of a tool of ours", From: "cli"}))
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

// After an operator has accepted a gap, the document of a folder still equals the active one.
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
	must(t, a.CloseIncident(t.Context(), about.Incident(), Actor{Who: "eve", Reason: "of a tool of ours", From: "cli"}))
	s.diverged(a, false)
	if got := a.policyRegistry.Revision("acme"); got != 1 {
		t.Errorf("revision %d, want 1", got)
	}
}

// A record that the policies ignore, such as that of a losing writer, does not supersede an
// undecodable one: that stays for an operator to accept, also in a process that starts later.
func TestGapBeforeAnIgnoredRecord(t *testing.T) {
	b := kafkatest.New(t, kafkatest.Options{Loopback: true, NoTopics: true})
	s := newSite(t)
	s.cfg.Kafka.Brokers = b.Config().Brokers
	a := s.run(schemas.RolePlanner)
	must(t, a.SetPolicy(t.Context(), "acme", document(t, to("2")), "test"))
	b.Write(kafkatest.Record{Record: schemas.Record{Topic: schemas.Policies, Key: []byte("acme"),
		Value: []byte("garbage")}, Partition: -1})
	about := openUnreadable(s, a, 1)[0]
	loser, err := policy.Record("acme", 0, document(t, to("3")), "loser", time.Now())
	must(t, err)
	must(t, a.producer.Publish(t.Context(), schemas.Message{Topic: schemas.Policies, Body: loser}))
	b.Write(kafkatest.Record{Record: schemas.Record{Topic: schemas.Policies, Key: []byte("acme")}, Partition: -1})
	must(t, a.policies.CatchUp(t.Context()))
	late := s.another(schemas.RolePlanner)
	s.await("/readyz", 503, "a record after revision 1 cannot be decoded")
	for _, p := range []*App{a, late} {
		err, refused := p.reportUnreadable(t.Context()), p.folder.Refused()
		if err != nil || !p.incidentBoard.IsOpen(about) || len(refused) == 0 {
			t.Fatalf("the incident is open: %t, refused: %q (%v)", p.incidentBoard.IsOpen(about), refused, err)
		}
	}
	must(t, a.CloseIncident(t.Context(), about.Incident(), Actor{Who: "eve", Reason: "of a tool of ours", From: "cli"}))
	s.await("/readyz", 200)
	if refused := late.folder.Refused(); len(refused) > 0 || late.policyRegistry.Revision("acme") != 1 {
		t.Errorf("refused: %q, at revision %d", refused, late.policyRegistry.Revision("acme"))
	}
}
