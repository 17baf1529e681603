// Package revision holds documents of accounts that are changed by compare-and-set over a topic.
//
// Every record names the revision that its writer edited, its base. A record with another base than the current
// revision is ignored. Readers ignore the same records, because they decide from the records alone: a document that one
// reader cannot parse is still a revision. A writer reads its record back, and so knows whether another writer was
// first.
package revision

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/millrace/millrace/schemas"
)

// Interfaces that publish documents: the field from of a record.
const (
	FromCLI    = "cli"
	FromFolder = "folder"
	FromImport = "import"
)

// A Record is a message that publishes or removes the document of an account.
type Record interface {
	schemas.Body
	change
	author
}

type change interface {
	GetId() string
	GetAccount() string
	GetBase() int64
	GetDocument() string
	GetRemoved() bool
}

type author interface {
	GetBy() string
	GetReason() string
	GetFrom() string
}

// A Registry holds the documents of all accounts. It is built by applying the records of a topic in order. It is safe
// for concurrent use.
type Registry[D any] struct {
	noun      string // what a document is, for errors
	meanwhile string // the effect of a record that cannot be read, until the next revision
	parse     func(account, document string) (D, error)

	mu   sync.RWMutex
	logs map[string]*Log[D] // by account; guarded by mu
}

// A Log holds the records of one account.
type Log[D any] struct {
	Revisions []Revision[D] // revision n is Revisions[n-1]
	Entries   []Entry[D]    // of all records, in the order of the topic
	// Gap is the time of the first record after the newest revision that cannot be decoded; zero if there is none.
	Gap    time.Time
	Faults Faults
}

// Faults are the faults of the newest records of one account. An error is nil if it does not apply.
type Faults struct {
	Gap    error // a record after the newest revision cannot be decoded
	Unread error // the document of the newest revision cannot be parsed
}

// A Revision is a record that was based on the previous revision.
type Revision[D any] struct {
	ID, By string
	Time   time.Time // not before the time of the previous revision
	// Document is in force from Time on; nil if none is. Of is the revision that it belongs to.
	Document *D
	Of       int64
	// Unread reports that the document of this record cannot be parsed. Document is then the last one that could be.
	Unread bool
	// AfterGap reports that a record between the previous revision and this one cannot be decoded.
	AfterGap bool
}

// NewRegistry returns an empty Registry. For errors, noun names a document, such as "policy of account", and meanwhile
// says what a record that cannot be read has as its effect, until the next revision. parse returns the document of an
// account.
func NewRegistry[D any](noun, meanwhile string, parse func(account, document string) (D, error)) *Registry[D] {
	return &Registry[D]{noun: noun, meanwhile: meanwhile, parse: parse, logs: map[string]*Log[D]{}}
}

// Apply applies one record: its key, the time at which the broker appended it, and its message. It ignores a record
// with a base other than the current revision. Every other record becomes the next revision, even if its document
// cannot be parsed. In that case the last parsed document stays in force. Apply reports whether the record has become a
// revision.
func (r *Registry[D]) Apply(key []byte, at time.Time, rec Record) bool {
	account := rec.GetAccount()
	if account == "" || account != string(key) {
		return false // all readers ignore the same records, since they read the same bytes
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.log(account)
	if rec.GetBase() != int64(len(l.Revisions)) {
		l.Entries = append(l.Entries, entryOf[D](rec, at, nil))
		return false
	}
	last := l.Newest()
	next := Revision[D]{ID: rec.GetId(), By: rec.GetBy(), Time: at, Of: rec.GetBase() + 1, AfterGap: !l.Gap.IsZero()}
	if next.Time.Before(last.Time) {
		next.Time = last.Time // the clocks of brokers differ
	}
	l.Faults, l.Gap = Faults{}, time.Time{}
	if !rec.GetRemoved() {
		if d, err := r.parse(account, rec.GetDocument()); err != nil {
			l.Faults.Unread = fmt.Errorf(
				"revision %d cannot be read, and %s until the next revision: %w", next.Of, r.meanwhile, err)
			next.Document, next.Of, next.Unread = last.Document, last.Of, true
		} else {
			next.Document = &d
		}
	}
	entry := entryOf(rec, at, &next)
	entry.Fault = l.Faults.Unread
	l.Revisions, l.Entries = append(l.Revisions, next), append(l.Entries, entry)
	return true
}

// Unreadable applies a record that cannot be decoded: its key, the time at which the broker appended it, and the
// decoding error. Such a record is not a revision, because its base is unknown. The document in force stays.
func (r *Registry[D]) Unreadable(key []byte, at time.Time, cause error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.log(string(key))
	if l.Gap.IsZero() {
		l.Gap = at
	}
	l.Entries = append(l.Entries, Entry[D]{State: EntryUndecodable, Time: at, Fault: cause})
	l.Faults.Gap = fmt.Errorf("a record after revision %d cannot be decoded, and %s until the next revision: %w",
		len(l.Revisions), r.meanwhile, cause)
}

// log returns the log of an account. The caller holds mu.
func (r *Registry[D]) log(account string) *Log[D] {
	l := r.logs[account]
	if l == nil {
		l = &Log[D]{}
		r.logs[account] = l
	}
	return l
}

// Newest returns the last revision; the zero value if there is none.
func (l *Log[D]) Newest() Revision[D] {
	if l == nil || len(l.Revisions) == 0 {
		return Revision[D]{}
	}
	return l.Revisions[len(l.Revisions)-1]
}

// View calls do with the log of an account, nil if it has no records. The log does not change before do returns; do
// must not keep it.
func (r *Registry[D]) View(account string, do func(*Log[D])) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	do(r.logs[account])
}

// Revision returns the current revision of an account, which must be the base of the next record; 0 if there is none.
func (r *Registry[D]) Revision(account string) (n int64) {
	r.View(account, func(l *Log[D]) {
		if l != nil {
			n = int64(len(l.Revisions))
		}
	})
	return n
}

// Document returns the document in force, or false if there is none.
func (r *Registry[D]) Document(account string) (d D, ok bool) {
	r.View(account, func(l *Log[D]) {
		if in := l.Newest().Document; in != nil {
			d, ok = *in, true
		}
	})
	return d, ok
}

// Faults returns the faults of the newest records of an account.
func (r *Registry[D]) Faults(account string) (f Faults) {
	r.View(account, func(l *Log[D]) {
		if l != nil {
			f = l.Faults
		}
	})
	return f
}

// Err returns all faults as one error; nil if there are none.
func (f Faults) Err() error { return errors.Join(f.Unread, f.Gap) }

// Accounts returns the accounts that have records, sorted.
func (r *Registry[D]) Accounts() []string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return slices.Sorted(maps.Keys(r.logs))
}

// History returns all records of an account in the order of the topic, also those that are ignored.
func (r *Registry[D]) History(account string) (entries []Entry[D]) {
	r.View(account, func(l *Log[D]) {
		if l != nil {
			entries = slices.Clone(l.Entries)
		}
	})
	return entries
}

// Active returns the entry of the document in force, or false if there is none. Its revision is not the current one
// while a newer document cannot be parsed.
func (r *Registry[D]) Active(account string) (e Entry[D], ok bool) {
	r.View(account, func(l *Log[D]) {
		newest := l.Newest()
		if ok = newest.Document != nil; ok {
			e = l.Entries[slices.IndexFunc(l.Entries, func(e Entry[D]) bool { return e.Revision == newest.Of })]
		}
	})
	return e, ok
}

// A LostError reports that a published record is ignored by all readers, because another record with the same base came
// first.
type LostError struct {
	Noun     string // what the document is: "policy of account"
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
	return fmt.Sprintf("%s %q: %s published revision %d first, at %s: this one is not in force",
		e.Noun, e.Account, by, e.Revision, e.Time.UTC().Format(time.RFC3339))
}

// Settled reports whether a published record has been applied or superseded by another record with the same base, in
// which case the error is a *LostError. It returns false if neither record has been read yet.
func (r *Registry[D]) Settled(rec Record) (settled bool, err error) {
	r.View(rec.GetAccount(), func(l *Log[D]) {
		if l == nil || rec.GetBase() >= int64(len(l.Revisions)) {
			return
		}
		settled = true
		if l.Revisions[rec.GetBase()].ID != rec.GetId() {
			err = r.lost(rec.GetAccount(), l, rec.GetBase())
		}
	})
	return settled, err
}

func (r *Registry[D]) lost(account string, l *Log[D], base int64) error {
	first := l.Revisions[base]
	return &LostError{Noun: r.noun, Account: account, Revision: base + 1, By: first.By, Time: first.Time}
}

// CheckBase returns an error if base is not the current revision of an account: a *LostError if it was.
func (r *Registry[D]) CheckBase(account string, base int64) (err error) {
	r.View(account, func(l *Log[D]) {
		current := int64(0)
		if l != nil {
			current = int64(len(l.Revisions))
		}
		switch {
		case base > current || base < 0:
			err = fmt.Errorf("%s %q: there is no revision %d; the current one is %d", r.noun, account, base, current)
		case base < current:
			err = r.lost(account, l, base)
		}
	})
	return err
}

// EntryState is what a record has become.
type EntryState string

// The states of an Entry.
const (
	EntryRevision    EntryState = "revision"    // a revision with a document
	EntryRemoval     EntryState = "removal"     // a revision that removes the document
	EntryUnreadable  EntryState = "unreadable"  // a revision with a document that this version cannot parse
	EntryIgnored     EntryState = "ignored"     // not a revision: its base was not the current revision
	EntryUndecodable EntryState = "undecodable" // not a revision: the record cannot be decoded
)

// An Entry is one record of an account.
type Entry[D any] struct {
	State    EntryState
	Revision int64 // 0 if the record is not a revision
	Base     int64
	Time     time.Time // of a revision, when it took effect; else when the record was appended
	By       string
	From     string // the interface: FromCLI, FromFolder, FromImport; may be empty
	Location string // the path or URL of the folder that the document was read from; may be empty
	Reason   string
	Document *D    // of EntryRevision; else nil
	Fault    error // why the record is unreadable or undecodable; else nil
}

// Origin returns the interface and the location as one text; empty if the record has neither.
func (e Entry[D]) Origin() string { return strings.TrimSpace(e.From + " " + e.Location) }

// entryOf returns the entry of a decoded record. next is the revision that it has become; nil if it is ignored.
func entryOf[D any](rec Record, at time.Time, next *Revision[D]) Entry[D] {
	e := Entry[D]{
		State: EntryIgnored, Base: rec.GetBase(), Time: at, By: rec.GetBy(), From: rec.GetFrom(), Reason: rec.GetReason(),
	}
	if l, ok := rec.(interface{ GetLocation() string }); ok {
		e.Location = l.GetLocation()
	}
	if next == nil {
		return e
	}
	e.Revision, e.Time = rec.GetBase()+1, next.Time
	switch {
	case next.Unread:
		e.State = EntryUnreadable
	case next.Document == nil:
		e.State = EntryRemoval
	default:
		e.State, e.Document = EntryRevision, next.Document
	}
	return e
}
