package app

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/incident"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/storage/s3/s3test"
)

// follow calls do with Policies of their own, as a command does.
func (s *site) follow(do func(context.Context, *Policies) error) {
	s.t.Helper()
	if err := WithPolicies(s.t.Context(), s.cfg, s.said.Log(), do); err != nil {
		s.t.Error(err)
	}
}

func (s *site) set(account, text string) {
	s.t.Helper()
	d := document(s.t, text)
	s.follow(func(ctx context.Context, p *Policies) error {
		_, _, err := p.Publish(ctx, PolicyChange{Account: account, Base: AnyBase, Document: &d, By: Actor{Who: "ann"}})
		return err
	})
}

// A policy that a command has set is in force in the planners of all processes within a second.
func TestPolicyIsInForceEverywhere(t *testing.T) {
	s := newSite(t)
	planners := []*App{s.run(schemas.RolePlanner), s.another(schemas.RolePlanner)}
	s.set("acme", to("2")) // every table is read
	for _, a := range planners {
		s.inForce(a, "acme", "2")
	}
	for _, store := range []string{"3", "2"} {
		s.set("acme", to(store))
		s.within(time.Second, func() error {
			for i, a := range planners {
				rules, _ := a.policyRegistry.Rules("acme", "photos")
				if len(rules.Pairs) != 1 || rules.Pairs[0].Destination != store {
					return fmt.Errorf("process %d does not follow: %+v, want store %s", i, rules.Pairs, store)
				}
			}
			return nil
		})
	}
}

// Of many writers on one base, exactly one wins. The others learn who.
func TestOneWriterWins(t *testing.T) {
	s := newSite(t)
	s.run(schemas.RolePlanner)
	s.set("acme", to("2"))
	const writers = 5
	var (
		ready, done sync.WaitGroup
		mu          sync.Mutex
		won         []string
		lost        []*policy.LostError
	)
	ready.Add(writers)
	for i := range writers {
		done.Go(func() {
			d := document(t, fmt.Sprintf("spacesToIgnore: [s%d]\n", i))
			who := fmt.Sprintf("writer %d", i)
			s.follow(func(ctx context.Context, p *Policies) error {
				ready.Done()
				ready.Wait() // all have read revision 1
				revision, changed, err := p.Publish(ctx,
					PolicyChange{Account: "acme", Base: 1, Document: &d, By: Actor{Who: who, From: policy.FromCLI}})
				mu.Lock()
				defer mu.Unlock()
				var l *policy.LostError
				switch {
				case errors.As(err, &l):
					lost = append(lost, l)
				case err != nil:
					return err
				case !changed || revision != 2:
					return fmt.Errorf("%s: revision %d, changed %t", who, revision, changed)
				default:
					won = append(won, who)
				}
				return nil
			})
		})
	}
	done.Wait()
	if len(won) != 1 || len(lost) != writers-1 {
		t.Fatalf("won: %q, lost: %d", won, len(lost))
	}
	for _, l := range lost {
		if l.By != won[0] || l.Revision != 2 {
			t.Errorf("lost against %s, revision %d; want %s, revision 2", l.By, l.Revision, won[0])
		}
	}
	s.follow(func(_ context.Context, p *Policies) error {
		revisions := 0
		for _, e := range p.History("acme") {
			if e.Revision > 0 {
				revisions++
			}
		}
		if i := p.Info("acme"); revisions != 2 || i.Active == nil || i.Active.By != won[0] {
			t.Errorf("%d revisions, active: %+v", revisions, i.Active)
		}
		return nil
	})
}

// The changes of commands and of a policy folder: a restart of a process with the folder reverts neither a policy that
// a person has set nor one that a person has removed.
func TestFolderRevertsNoPerson(t *testing.T) {
	s := newSite(t)
	write := s.withPolicies()
	write("duplication-accounts.json", `["acme"]`)
	write("acme-duplication-policy.yaml", to("2"))
	folder := s.cfg.Policies.Folder
	s.restarted(folder)
	s.set("acme", to("3"))
	a := s.restarted(folder)
	s.diverged(a, true)
	s.inForce(a, "acme", "3")
	s.follow(func(ctx context.Context, p *Policies) error {
		_, _, err := p.Publish(ctx, PolicyChange{Account: "acme", Base: AnyBase, By: Actor{Who: "ann"}})
		return err
	})
	b := s.restarted(folder)
	if rules, ok := b.policyRegistry.Rules("acme", "photos"); ok || b.policyRegistry.Revision("acme") != 3 {
		t.Errorf("in force after the removal: %+v, revision %d", rules, b.policyRegistry.Revision("acme"))
	}
	if !b.incidentBoard.IsOpen(incident.Subject{Account: "acme", Kind: incident.PolicyDiverged}) {
		t.Error("no incident is open")
	}
	s.follow(func(_ context.Context, p *Policies) error {
		if e := p.History("acme")[0]; e.From != policy.FromFolder || e.Location != folder {
			t.Errorf("of the folder: got %q, want %q", e.Origin(), folder)
		}
		return nil
	})
}

// A command publishes over a record that cannot be decoded, even if the document is the same.
func TestPublishOverAnUnreadableRevision(t *testing.T) {
	s := newSite(t)
	s.run(schemas.RolePlanner)
	s.set("acme", to("2"))
	s.follow(func(ctx context.Context, p *Policies) error {
		rec, err := policy.Record("acme", 1, policy.Document{}, "later", time.Now())
		if err != nil {
			return err
		}
		rec.Document = "{"
		return p.producer.Publish(ctx, schemas.Message{Topic: schemas.Policies, Body: rec})
	})
	s.set("acme", to("2"))
	s.follow(func(_ context.Context, p *Policies) error {
		if i := p.Info("acme"); i.Revision != 3 || i.Active.Revision != 3 || i.Fault != nil {
			t.Errorf("revision %d, active %+v, fault %v", i.Revision, i.Active, i.Fault)
		}
		return nil
	})
}

// Every source of an import is read alike, and the records name it.
func TestPolicyImportSources(t *testing.T) {
	s := newSite(t)
	s.run(schemas.RolePlanner)
	files := map[string]string{
		"duplication-accounts.json":    `["acme"]`,
		"acme-duplication-policy.json": `{"defaultPolicies": [{"srcStoreId":"1","destStoreId":"2"},]}`,
	}
	dir := t.TempDir()
	s.hasSpace(0)
	server := s3test.New(s3test.Options{})
	t.Cleanup(server.Close)
	t.Setenv("AWS_ACCESS_KEY_ID", "key")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	for name, content := range files {
		store := filepath.Join(s.cfg.Accounts[0].Stores[0].Root, "photos", "old")
		must(t, errors.Join(os.MkdirAll(store, 0o755), os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600),
			os.WriteFile(filepath.Join(store, name), []byte(content), 0o600)))
	}
	// Keys policies/old/... of the bucket archive, and of the bucket millrace.
	put := func(path, content string) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, server.URL()+path, strings.NewReader(content))
		must(t, err)
		resp, err := http.DefaultClient.Do(req)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("put %s: %v, %v", path, resp, err)
		}
		_ = resp.Body.Close()
	}
	for _, bucket := range []string{"/archive", "/millrace"} {
		put(bucket, "")
		for name, content := range files {
			put(bucket+"/policies/old/"+name, content)
		}
	}
	bucket := func(address string) func() (*PolicySource, error) {
		return func() (*PolicySource, error) { return PolicyBucket(t.Context(), address, server.URL()) }
	}
	for name, tt := range map[string]struct {
		open     func() (*PolicySource, error)
		location string
		fault    string
	}{
		"directory": {func() (*PolicySource, error) { return PolicyDirectory(dir) }, dir, ""},
		"no directory": {func() (*PolicySource, error) { return PolicyDirectory(dir + "/none") }, "",
			"read the folder: no such file or directory"},
		"store": {func() (*PolicySource, error) {
			return PolicyStore(t.Context(), s.cfg, s.said.Log(), StoreName{"acme", "1"}, "/photos/old/")
		}, "store/acme/1/photos/old", ""},
		"bucket": {bucket("s3://archive/policies/old/"), "s3://archive/policies/old at " + server.URL(), ""},
		"bucket with the name of ours": {bucket("s3://millrace/policies/old"),
			"s3://millrace/policies/old at " + server.URL(), ""},
		"no prefix": {bucket("s3://archive"), "", "duplication-accounts.json: is missing"},
		"no bucket": {bucket("s3://nothing/policies"), "", "space is absent"},
		"no space": {func() (*PolicySource, error) {
			return PolicyStore(t.Context(), s.cfg, s.said.Log(), StoreName{"acme", "1"}, "none")
		}, "", "space is absent"},
	} {
		t.Run(name, func(t *testing.T) { s.imports(tt.open, tt.location, tt.fault) })
	}
	// A process follows a folder in a bucket.
	cfg := *s.cfg
	cfg.Policies = config.Policies{Endpoint: server.URL(), Interval: time.Second}
	s.cfg = &cfg
	a := s.restarted("s3://archive/policies/old")
	put("/archive/policies/old/acme-duplication-policy.json",
		`{"defaultPolicies": [{"srcStoreId":"1","destStoreId":"2"}], "spaces": {"photos": {"deletes": "keep"}}}`)
	s.untilTrue("the changed file is in force", func() bool {
		rules, _ := a.policyRegistry.Rules("acme", "photos")
		return rules.Deletes == policy.KeepCopy && len(rules.Pairs) == 1
	})
}

// imports imports the policy of acme from a source, again, and then not at all since it is unchanged.
func (s *site) imports(open func() (*PolicySource, error), location, fault string) {
	s.t.Helper()
	s.follow(func(ctx context.Context, p *Policies) error {
		from, err := open()
		if err != nil {
			return err
		}
		defer func() { _ = from.Close() }()
		before := p.registry.Revision("acme")
		if _, _, err := p.Publish(ctx, PolicyChange{Account: "acme", Base: AnyBase, By: Actor{Who: "ann"}}); err != nil {
			return err
		}
		r, err := p.Import(ctx, from, ImportOptions{By: Actor{Who: "ann", Reason: "moved"}})
		if fault != "" {
			if err == nil || !strings.Contains(err.Error(), fault) {
				s.t.Errorf("got %+v, %v, want %q", r, err, fault)
			}
			return nil
		}
		if err != nil || len(r.Policies) != 1 || r.Policies[0].Result != PolicyPublished || r.Policies[0].Revision <= before {
			s.t.Errorf("got %+v, %v", r, err)
		}
		e := p.Info("acme").Active
		if e == nil || e.From != policy.FromImport || e.Location != location || e.Reason != "moved" || e.By != "ann" ||
			!reflect.DeepEqual(*e.Document, document(s.t, to("2"))) {
			s.t.Errorf("active: %+v, want one of %s", e, location)
		}
		r, err = p.Import(ctx, from, ImportOptions{})
		if err != nil || len(r.Policies) != 1 || r.Policies[0].Result != PolicyUnchanged {
			s.t.Errorf("again: got %+v, %v", r, err)
		}
		return nil
	})
}
