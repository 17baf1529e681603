package folder

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/internal/logtest"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/incident"
	"github.com/millrace/millrace/streams/policy"
)

// to returns a policy that copies store 1 to others.
func to(stores ...string) (text string) {
	text = "defaultPolicies:\n"
	for _, store := range stores {
		text += fmt.Sprintf("  - {srcStoreId: 1, destStoreId: %s}\n", store)
	}
	return text
}

func document(t *testing.T, text string) policy.Document {
	t.Helper()
	doc, err := policy.Parse([]byte(text))
	must(t, err)
	return doc
}

// A site has the topics policies and incidents, in memory, and the processes that read them. It is used in a synctest
// bubble.
type site struct {
	t *testing.T

	mu        sync.Mutex
	records   []record // of both topics
	calls     int      // of Publish with policies
	interval  time.Duration
	processes []*process // those that follow the topics
}

type record struct {
	at  time.Time
	msg schemas.Message
}

// Publish appends to the topics.
func (s *site) Publish(_ context.Context, msgs ...schemas.Message) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(msgs) > 0 && msgs[0].Topic == schemas.Policies {
		s.calls++
	}
	for _, m := range msgs {
		r := record{time.Now(), m}
		s.records = append(s.records, r)
		for _, p := range s.processes {
			p.receive(r)
		}
	}
	return nil
}

// policies returns the number of records of the topic policies.
func (s *site) policies() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.records {
		if r.msg.Topic == schemas.Policies {
			n++
		}
	}
	return n
}

// A process has read all records, if it follows the topics.
type process struct {
	*Folder
	site     *site
	registry *policy.Registry
	board    *incident.Board
	log      logtest.Lines
	unread   error // of exclusion lists
}

func (p *process) receive(r record) {
	switch b := r.msg.Body.(type) {
	case *pb.Policy:
		p.registry.Apply([]byte(b.GetAccount()), r.at, b)
	case *pb.Incident:
		p.board.Apply([]byte(schemas.IncidentKey(b)), b)
	}
}

// follow has a process read the topics.
func (p *process) follow() {
	p.site.mu.Lock()
	defer p.site.mu.Unlock()
	for _, r := range p.site.records {
		p.receive(r)
	}
	p.site.processes = append(p.site.processes, p)
}

// defaultAccounts returns the accounts acme, with the stores 1 to 3, and bell, with the stores 1 and 2.
func defaultAccounts() map[string][]policy.Store {
	return map[string][]policy.Store{"acme": {{ID: "1"}, {ID: "2"}, {ID: "3"}}, "bell": {{ID: "1"}, {ID: "2"}}}
}

// late returns a process that does not follow the topics yet.
func (s *site) late(dir string, accounts map[string][]policy.Store) *process {
	p := &process{site: s}
	p.registry = policy.NewRegistry(func(account string) (ids []string) {
		for _, st := range accounts[account] {
			ids = append(ids, st.ID)
		}
		return ids
	})
	p.board = incident.NewBoard(s, slog.New(slog.DiscardHandler))
	known := func() map[string][]policy.Store { return accounts }
	c := Config{Location: dir, Files: os.DirFS(dir), Accounts: known, Follow: s.interval}
	p.Folder = New(c, Deps{Registry: p.registry, Board: p.board, Publisher: s,
		Unreadable: func(string) []incident.Subject { return nil },
		Lists:      func(string) error { return p.unread }, Log: p.log.Log()})
	return p
}

// process returns a process that follows the topics.
func (s *site) process(dir string) *process {
	p := s.late(dir, defaultAccounts())
	p.follow()
	return p
}

// run runs a process with a folder until the end of the test, and waits until it has read the folder.
func (s *site) run(dir string) *process {
	s.t.Helper()
	p := s.process(dir)
	ended := make(chan error, 1)
	go func() { ended <- p.Run(s.t.Context()) }()
	s.t.Cleanup(func() {
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			s.t.Error(err)
		}
	})
	<-p.Published()
	return p
}

// inForce checks that the active policy of an account copies store 1 to others.
func (p *process) inForce(account string, stores ...string) {
	p.site.t.Helper()
	rules, _ := p.registry.Rules(account, "photos")
	is := func(pair policy.Pair, store string) bool { return pair.Destination == store }
	if !slices.EqualFunc(rules.Pairs, stores, is) {
		p.site.t.Errorf("in force for %s: %+v, want stores %s", account, rules.Pairs, stores)
	}
}

// revision checks the revision of an account.
func (p *process) revision(account string, want int64) {
	p.site.t.Helper()
	if got := p.registry.Revision(account); got != want {
		p.site.t.Errorf("account %s is at revision %d, want %d", account, got, want)
	}
}

// incident checks whether an incident of acme is open.
func (p *process) incident(kind string, open bool) {
	p.site.t.Helper()
	if got := p.board.IsOpen(incident.Subject{Account: "acme", Kind: kind}); got != open {
		p.site.t.Errorf("incident %s is open: %v, want %v", kind, got, open)
	}
}

// later waits until the processes have read their folders again, also after a document had to wait.
func later() {
	time.Sleep(weakerTime + 30*time.Second)
	synctest.Wait()
}

// folderOf makes a folder with files.
func folderOf(t *testing.T, files map[string]string) (dir string, write func(name, content string)) {
	t.Helper()
	dir = t.TempDir()
	write = func(name, content string) {
		t.Helper()
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	for name, content := range files {
		write(name, content)
	}
	return dir, write
}

// ofAcme is a folder with a policy of acme.
func ofAcme(t *testing.T, content string) (dir string, write func(content string)) {
	dir, writeFile := folderOf(t, map[string]string{
		"duplication-accounts.json": `["acme"]`, "acme-duplication-policy.yaml": content})
	return dir, func(content string) { writeFile("acme-duplication-policy.yaml", content) }
}

// logged checks how often the log has a text.
func (p *process) logged(text string, n int) {
	p.site.t.Helper()
	if got := p.log.Count(text); got != n {
		p.site.t.Errorf("the log has %q %d times, want %d", text, got, n)
	}
}

// refuses checks what a process does not follow.
func (p *process) refuses(want ...string) {
	p.site.t.Helper()
	got := p.Refused()
	if !slices.EqualFunc(got, want, strings.Contains) {
		p.site.t.Errorf("refused: %q, want %q", got, want)
	}
}

// must fails the test with an error.
func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
