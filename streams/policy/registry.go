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

// A Registry holds the policies of all accounts. It is built by applying the records of the topic policies in order. It
// is safe for concurrent use.
//
// The policies in force depend only on the records: every document that can be parsed takes effect, even if it names
// stores that this process does not know. The stores are validated before a document is published.
type Registry struct {
	stores func(account string) []string

	mu       sync.RWMutex
	accounts map[string]*history // guarded by mu
}

// A history holds the revisions of one account.
type history struct {
	revisions []revision // revision n is revisions[n-1]
	// gap is the time of the first record after the newest revision that cannot be decoded; zero if there is none.
	gap     time.Time
	faults  RecordFaults
	entries []Entry // of all records, in the order of the topic
}

// RecordFaults are the faults of the newest records of one account. An error is nil if it does not apply.
type RecordFaults struct {
	Gap    error // a record after the newest revision cannot be decoded
	Unread error // the document of the newest revision cannot be parsed
	Stores error // the newest revision is in force, but this process, with the stores it knows, would not publish it
	Lists  error // this process cannot read an exclusion list; a Registry does not set it
}

// Err returns all faults as one error; nil if there are none.
func (f RecordFaults) Err() error { return errors.Join(f.Unread, f.Stores, f.Lists, f.Gap) }

// A revision is a record that was based on the previous revision.
type revision struct {
	id, by string
	file   string    // digest of the file in a policy folder that it was read from; empty if it is from elsewhere
	sent   string    // the interface that it was published with; empty in records of older programs
	time   time.Time // not before the time of the previous revision
	// document is in force from time on; nil if none is. from is the revision that it belongs to.
	document *Document
	from     int64
	// unread reports that the document of this record cannot be parsed. document is then the last one that could be.
	unread bool
	// afterGap reports that a record between the previous revision and this one cannot be decoded.
	afterGap bool
}

// NewRegistry returns an empty Registry. stores returns the ids of the stores of an account that this process knows.
// Faults reports documents that name other stores.
func NewRegistry(stores func(account string) []string) *Registry {
	return &Registry{stores: stores, accounts: map[string]*history{}}
}

// Apply applies one record of the topic policies: its key, the time at which the broker appended it, and its message.
// It ignores a record with a base other than the current revision. Every other record becomes the next revision, even
// if its document cannot be parsed. In that case the last parsed document stays in force, with KeepCopy as its rule for
// deletes until the next document. Apply reports whether the record has become a revision.
func (b *Registry) Apply(key []byte, at time.Time, p *pb.Policy) bool {
	account := p.GetAccount()
	if p == nil || account == "" || account != string(key) {
		return false // all readers ignore the same records, since they read the same bytes
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	current := b.accounts[account]
	if current == nil {
		current = &history{}
		b.accounts[account] = current
	}
	if p.GetBase() != int64(len(current.revisions)) {
		current.entries = append(current.entries, entryOf(p, at, nil))
		return false
	}
	last := current.newest()
	next := revision{
		id: p.GetId(), by: p.GetBy(), file: p.GetFileSha256(), sent: p.GetFrom(), time: at,
		from: p.GetBase() + 1, afterGap: !current.gap.IsZero(),
	}
	if next.time.Before(last.time) {
		next.time = last.time // the clocks of brokers differ
	}
	current.faults, current.gap = RecordFaults{}, time.Time{}
	if !p.GetRemoved() {
		if d, err := Parse([]byte(p.GetDocument())); err != nil {
			current.faults.Unread = fmt.Errorf(
				"revision %d cannot be read, and deletes are kept until the next revision: %w", next.from, err)
			next.document, next.from, next.unread = last.document, last.from, true
		} else {
			next.document = &d
			if err := d.Validate(b.stores(account)); err != nil {
				current.faults.Stores = fmt.Errorf("revision %d is in force with faults: %w", next.from, err)
			}
		}
	}
	entry := entryOf(p, at, &next)
	entry.Fault = current.faults.Unread
	current.revisions, current.entries = append(current.revisions, next), append(current.entries, entry)
	return true
}

// Unreadable applies a record of the topic policies that cannot be decoded: its key, the time at which the broker
// appended it, and the decoding error. Such a record is not a revision, because its base is unknown. The document in
// force stays, but its rule for deletes is KeepCopy until the next revision, because the record may have requested
// that.
func (b *Registry) Unreadable(key []byte, at time.Time, cause error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.accounts[string(key)]
	if p == nil {
		p = &history{}
		b.accounts[string(key)] = p
	}
	if p.gap.IsZero() {
		p.gap = at
	}
	p.entries = append(p.entries, Entry{State: EntryUndecodable, Time: at, Fault: cause})
	p.faults.Gap = fmt.Errorf(
		"a record after revision %d cannot be decoded, and deletes are kept until the next revision: %w",
		len(p.revisions), cause)
}

// newest returns the last revision; the zero value if there is none.
func (p *history) newest() revision {
	if p == nil || len(p.revisions) == 0 {
		return revision{}
	}
	return p.revisions[len(p.revisions)-1]
}

// Rules returns the rules in force for a space. If the account has no policy in force, it returns false and rules
// without pairs that keep copies.
func (b *Registry) Rules(account, space string) (Rules, bool) {
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
		p.setTimes(&r, space)
	}
	if !p.gap.IsZero() && r.Deletes != KeepCopy {
		r.Deletes, r.Since = KeepCopy, p.gap
	}
	return r, true
}

// rules returns the rules for a space from this revision on.
func (r revision) rules(space string) Rules {
	if r.document == nil {
		return Rules{Deletes: KeepCopy}
	}
	rules := r.document.Rules(space)
	if r.unread {
		rules.Deletes = KeepCopy
	}
	return rules
}

// setTimes sets r.Since and r.Added: the time of the first revision in the unbroken sequence, up to the newest
// revision, that has the same rule for deletes or the same pair.
func (p *history) setTimes(r *Rules, space string) {
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

// Revision returns the current revision of an account, which must be the base of the next record; 0 if there is none.
func (b *Registry) Revision(account string) int64 {
	b.mu.RLock()
	defer b.mu.RUnlock()
	if p := b.accounts[account]; p != nil {
		return int64(len(p.revisions))
	}
	return 0
}

// Document returns the document in force, or false if there is none.
func (b *Registry) Document(account string) (Document, bool) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	if d := b.accounts[account].newest().document; d != nil {
		return *d, true
	}
	return Document{}, false
}

// Faults returns the faults of the newest records of an account.
func (b *Registry) Faults(account string) RecordFaults {
	b.mu.RLock()
	defer b.mu.RUnlock()
	if p := b.accounts[account]; p != nil {
		return p.faults
	}
	return RecordFaults{}
}

// Published reports whether a file of a policy folder has been published as a revision of the account. file is the
// digest of the file, and d its document. Older programs recorded neither digests nor interfaces: if only such a
// revision before the first one with a digest has the document d, made is false and older is true, since the revision
// may be from another file.
func (b *Registry) Published(account, file string, d Document) (made, older bool) {
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
		older = older || !digests && r.sent == "" && r.document != nil && r.document.Equal(d)
	}
	return false, older
}

// A LostError reports that a published record is ignored by all readers, because another record with the same base came
// first.
type LostError struct {
	Account  string
	Revision int64     // the revision of the other record
	By       string    // the writer of the other record; may be empty
	Time     time.Time // when the other record took effect
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

// Settled reports whether a published record has been applied or superseded by another record with the same base, in
// which case the error is a *LostError. It returns false if neither record has been read yet.
func (b *Registry) Settled(p *pb.Policy) (bool, error) {
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

// Record returns the message that publishes a document as the revision after base.
func Record(account string, base int64, d Document, by string, at time.Time) (*pb.Policy, error) {
	if d.Account != "" && d.Account != account {
		return nil, fmt.Errorf("the policy for account %q says that it is of account %q", account, d.Account)
	}
	content, err := json.Marshal(d)
	if err != nil {
		return nil, fmt.Errorf("encode policy of account %q: %w", account, err)
	}
	return withID(&pb.Policy{Account: account, Base: base, Document: string(content), By: by, Time: timestamppb.New(at)})
}

// Removal returns the message that removes the policy of an account as the revision after base.
func Removal(account string, base int64, by string, at time.Time) (*pb.Policy, error) {
	return withID(&pb.Policy{Account: account, Base: base, Removed: true, By: by, Time: timestamppb.New(at)})
}

// withID sets the id of a message.
func withID(p *pb.Policy) (*pb.Policy, error) {
	if p.Account == "" {
		return nil, errors.New("name the account of a policy")
	}
	p.Id = schemas.ID("policy", p.Account, strconv.FormatInt(p.Base, 10), p.Document, p.By,
		strconv.FormatInt(p.Time.AsTime().UnixMilli(), 10))
	return p, nil
}
