package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// A Book holds the policies of all accounts, folded from the records of the topic
// policies in their order. It is safe for concurrent use.
type Book struct {
	stores func(account string) []string

	mu       sync.RWMutex
	accounts map[string]*page // guarded by mu
}

// A page is what a Book knows of one account.
type page struct {
	revision int64 // counts records whose base was the revision before them
	fault    error // of the newest revision, if it is not in force
	// history holds what was put in force, oldest first; its last one is in force.
	history []edition
}

type edition struct {
	revision int64
	time     time.Time
	document *Document // nil: the policy was removed
}

// NewBook returns an empty Book. stores returns the ids of an account's stores; documents
// that name others do not come into force.
func NewBook(stores func(account string) []string) *Book {
	return &Book{stores: stores, accounts: map[string]*page{}}
}

// Apply folds one record of the topic policies: its key, its own time, its message. A
// record whose base is not the current revision is ignored; every other takes the next
// revision, even if its document cannot come into force: then the last good one
// stays, and Faults has the reason.
func (b *Book) Apply(key []byte, at time.Time, p *pb.Policy) {
	account := p.GetAccount()
	if p == nil || account == "" || account != string(key) {
		return // every reader sees the same bytes, and ignores them alike
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	current := b.accounts[account]
	if current == nil {
		current = &page{}
	}
	if p.GetBase() != current.revision {
		return
	}
	current.revision++
	b.accounts[account] = current
	e := edition{revision: current.revision, time: at}
	if !p.GetRemoved() {
		d, err := Parse([]byte(p.GetDocument()))
		if err == nil {
			err = d.Validate(b.stores(account))
		}
		if err != nil {
			current.fault = fmt.Errorf("revision %d is not in force: %w", current.revision, err)
			return
		}
		e.document = &d
	}
	current.fault = nil
	current.history = append(current.history, e)
}

func (p *page) inForce() *edition {
	if p == nil || len(p.history) == 0 || p.history[len(p.history)-1].document == nil {
		return nil
	}
	return &p.history[len(p.history)-1]
}

// Rules returns what is in force for a space; false if the account has no policy in force.
func (b *Book) Rules(account, space string) (Rules, bool) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	p := b.accounts[account]
	e := p.inForce()
	if e == nil {
		return Rules{}, false
	}
	r := e.document.rules(space)
	r.Revision = e.revision
	if len(r.Pairs) > 0 {
		p.date(&r, space)
	}
	return r, true
}

// date sets when the rule for deletes, and each pair, came into force: the start of
// the unbroken run of editions that say the same.
func (p *page) date(r *Rules, space string) {
	r.Added = make(map[Pair]time.Time, len(r.Pairs))
	rule := true
	running := slices.Clone(r.Pairs)
	for _, e := range slices.Backward(p.history) {
		var then Rules
		if e.document != nil {
			then = e.document.rules(space)
		}
		if rule = rule && len(then.Pairs) > 0 && then.Deletes == r.Deletes; rule {
			r.Since = e.time
		}
		running = slices.DeleteFunc(running, func(pair Pair) bool { return !slices.Contains(then.Pairs, pair) })
		for _, pair := range running {
			r.Added[pair] = e.time
		}
		if !rule && len(running) == 0 {
			return
		}
	}
}

// Revision returns the account's current revision, on which the next record must be
// based; 0 if there is none.
func (b *Book) Revision(account string) int64 {
	b.mu.RLock()
	defer b.mu.RUnlock()
	if p := b.accounts[account]; p != nil {
		return p.revision
	}
	return 0
}

// Document returns the document that is in force; false if none is.
func (b *Book) Document(account string) (Document, bool) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	if e := b.accounts[account].inForce(); e != nil {
		return *e.document, true
	}
	return Document{}, false
}

// Faults returns why the newest revision of each account is not in force, for those of which it is not.
func (b *Book) Faults() map[string]error {
	b.mu.RLock()
	defer b.mu.RUnlock()
	faults := map[string]error{}
	for account, p := range b.accounts {
		if p.fault != nil {
			faults[account] = p.fault
		}
	}
	return faults
}

// Record makes the message that puts a document in force on top of revision base.
func Record(account string, base int64, d Document, by string, at time.Time) (*pb.Policy, error) {
	if account == "" {
		return nil, errors.New("name the account of a policy")
	}
	content, err := json.Marshal(d)
	if err != nil {
		return nil, fmt.Errorf("encode policy of account %q: %w", account, err)
	}
	p := &pb.Policy{Account: account, Base: base, Document: string(content), By: by, Time: timestamppb.New(at)}
	p.Id = schemas.ID("policy", account, strconv.FormatInt(base, 10), p.Document, by, strconv.FormatInt(at.UnixMilli(), 10))
	return p, nil
}
