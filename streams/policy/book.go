package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// A Book holds the policies of all accounts, folded from the records of the topic policies in their order. It is safe
// for concurrent use.
//
// What is in force is a function of the records alone: every document that can be parsed comes into force, also one that
// names stores that this process does not know. Whether the stores exist is judged when a document is written.
type Book struct {
	stores func(account string) []string

	mu       sync.RWMutex
	accounts map[string]*page // guarded by mu
}

// A page is what a Book knows of one account.
type page struct {
	revisions []revision // the record of revision n is revisions[n-1]
	// gap is when the first record after the newest revision came that cannot be decoded; zero: there is none.
	gap    time.Time
	faults RecordFaults
}

// RecordFaults are what is wrong with the newest records of one account; each is nil if it does not apply.
type RecordFaults struct {
	Gap    error // a record after the newest revision cannot be decoded
	Unread error // the document of the newest revision cannot be parsed
	Stores error // the newest revision is in force, and this process would have refused to publish it
}

// Err returns all faults as one error; nil if there are none.
func (f RecordFaults) Err() error { return errors.Join(f.Unread, f.Stores, f.Gap) }

// A revision is a record whose base was the revision before it.
type revision struct {
	id, by string
	file   string    // the digest of the file of a policy folder that it was made of; empty: it was not
	time   time.Time // not before that of the revision before it
	// document is in force from time on; nil: none is. from is the revision that it is of.
	document *Document
	from     int64
	// unread: the record's own document cannot be parsed, and document is the last one that can be.
	unread bool
	// afterGap: a record between the last revision and this one cannot be decoded.
	afterGap bool
}

// NewBook returns an empty Book. stores returns the ids of an account's stores, as this process knows them; Faults
// reports the documents that name others.
func NewBook(stores func(account string) []string) *Book {
	return &Book{stores: stores, accounts: map[string]*page{}}
}

// Apply folds one record of the topic policies: its key, the time at which the broker appended it, its message. A record
// whose base is not the current revision is ignored; every other takes the next revision, even if its document cannot be
// parsed. Then the last document that can be parsed stays in force, but for its rule for deletes, which is KeepCopy
// until the next document. Apply reports whether the record is a revision now.
func (b *Book) Apply(key []byte, at time.Time, p *pb.Policy) bool {
	account := p.GetAccount()
	if p == nil || account == "" || account != string(key) {
		return false // every reader sees the same bytes, and ignores them alike
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	current := b.accounts[account]
	if current == nil {
		current = &page{}
	}
	if p.GetBase() != int64(len(current.revisions)) {
		return false
	}
	b.accounts[account] = current
	last := current.newest()
	next := revision{
		id: p.GetId(), by: p.GetBy(), file: p.GetFileSha256(), time: at, from: p.GetBase() + 1, afterGap: !current.gap.IsZero(),
	}
	if next.time.Before(last.time) {
		next.time = last.time // the clocks of brokers differ
	}
	current.faults, current.gap = RecordFaults{}, time.Time{}
	if !p.GetRemoved() {
		if d, err := Parse([]byte(p.GetDocument())); err != nil {
			current.faults.Unread = fmt.Errorf("revision %d cannot be read, and deletes are kept until the next revision: %w", next.from, err)
			next.document, next.from, next.unread = last.document, last.from, true
		} else {
			next.document = &d
			if err := d.Validate(b.stores(account)); err != nil {
				current.faults.Stores = fmt.Errorf("revision %d is in force with faults: %w", next.from, err)
			}
		}
	}
	current.revisions = append(current.revisions, next)
	return true
}

// Unreadable folds a record of the topic policies that cannot be decoded: its key, the time at which the broker appended it,
// the cause. It is no revision, since the one that it was made from is not known. The document in force stays, but its
// rule for deletes is KeepCopy until the next revision: the record may have said so.
func (b *Book) Unreadable(key []byte, at time.Time, cause error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.accounts[string(key)]
	if p == nil {
		p = &page{}
		b.accounts[string(key)] = p
	}
	if p.gap.IsZero() {
		p.gap = at
	}
	p.faults.Gap = fmt.Errorf("a record after revision %d cannot be decoded, and deletes are kept until the next revision: %w", len(p.revisions), cause)
}

// newest returns the last revision; the zero value if there is none.
func (p *page) newest() revision {
	if p == nil || len(p.revisions) == 0 {
		return revision{}
	}
	return p.revisions[len(p.revisions)-1]
}

// Rules returns what is in force for a space. If the account has no policy in force it returns false, and rules that
// copy nothing and keep what is there.
func (b *Book) Rules(account, space string) (Rules, bool) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	p := b.accounts[account]
	newest := p.newest()
	r := newest.rules(space)
	if newest.document == nil {
		return r, false
	}
	r.Revision = newest.from
	if len(r.Pairs) > 0 {
		p.date(&r, space)
	}
	if !p.gap.IsZero() && r.Deletes != KeepCopy {
		r.Deletes, r.Since = KeepCopy, p.gap
	}
	return r, true
}

// rules returns what the revision puts in force for a space.
func (r revision) rules(space string) Rules {
	if r.document == nil {
		return Rules{Deletes: KeepCopy}
	}
	rules := r.document.rules(space)
	if r.unread {
		rules.Deletes = KeepCopy
	}
	return rules
}

// date sets when the rule for deletes, and each pair, came into force: the start of
// the unbroken run of revisions that say the same.
func (p *page) date(r *Rules, space string) {
	r.Added = make(map[Pair]time.Time, len(r.Pairs))
	rule := true
	running := slices.Clone(r.Pairs)
	for _, e := range slices.Backward(p.revisions) {
		then := e.rules(space)
		if rule = rule && len(then.Pairs) > 0 && then.Deletes == r.Deletes; rule {
			r.Since = e.time
			rule = !e.afterGap
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
		return int64(len(p.revisions))
	}
	return 0
}

// Document returns the document that is in force; false if none is.
func (b *Book) Document(account string) (Document, bool) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	if d := b.accounts[account].newest().document; d != nil {
		return *d, true
	}
	return Document{}, false
}

// Faults returns what is wrong with the newest records of an account.
func (b *Book) Faults(account string) RecordFaults {
	b.mu.RLock()
	defer b.mu.RUnlock()
	if p := b.accounts[account]; p != nil {
		return p.faults
	}
	return RecordFaults{}
}

// Published reports whether a revision of the account was made of a file of a policy folder, whose digest is file and
// whose document is d. Revisions before the first one with a digest are those of programs that recorded none: if only one
// of them has the document, older is true, and the file may be another one.
func (b *Book) Published(account, file string, d Document) (made, older bool) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	p := b.accounts[account]
	if p == nil {
		return false, false
	}
	digests := false
	for _, r := range p.revisions {
		if digests = digests || r.file != ""; r.file == file {
			return true, false
		}
		older = older || !digests && r.document != nil && reflect.DeepEqual(*r.document, d)
	}
	return false, older
}

// A LostError reports that another record took the revision that a published record asked for. The published record is
// ignored by every reader.
type LostError struct {
	Account  string
	Revision int64     // that the other record took
	By       string    // the writer of the other record; may be empty
	Time     time.Time // at which the other record came into force
}

// Error implements error.
func (e *LostError) Error() string {
	by := e.By
	if by == "" {
		by = "another writer"
	}
	return fmt.Sprintf("policy of account %q: %s published revision %d first, at %s: this one is not in force",
		e.Account, by, e.Revision, e.Time.UTC().Format(time.RFC3339))
}

// Settled reports whether the revision that a published record asked for is taken. The error is a *LostError if another
// record has it.
func (b *Book) Settled(p *pb.Policy) (bool, error) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	current := b.accounts[p.GetAccount()]
	if current == nil || p.GetBase() >= int64(len(current.revisions)) {
		return false, nil
	}
	if r := current.revisions[p.GetBase()]; r.id != p.GetId() {
		return true, &LostError{Account: p.GetAccount(), Revision: p.GetBase() + 1, By: r.by, Time: r.time}
	}
	return true, nil
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
