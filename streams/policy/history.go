package policy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// Interfaces that publish policies: the field from of a record.
const (
	FromCLI    = "cli"
	FromFolder = "folder"
	FromImport = "import"
)

// EntryState is what a record of the topic policies has become.
type EntryState string

// The states of an Entry.
const (
	EntryRevision    EntryState = "revision"    // a revision with a document
	EntryRemoval     EntryState = "removal"     // a revision that removes the policy
	EntryUnreadable  EntryState = "unreadable"  // a revision with a document that this version cannot parse
	EntryIgnored     EntryState = "ignored"     // not a revision: its base was not the current revision
	EntryUndecodable EntryState = "undecodable" // not a revision: the record cannot be decoded
)

// An Entry is one record of an account in the topic policies.
type Entry struct {
	State    EntryState
	Revision int64 // 0 if the record is not a revision
	Base     int64
	Time     time.Time // of a revision, when it took effect; else when the record was appended
	By       string
	From     string // the interface: FromCLI, FromFolder, FromImport; empty in records of older versions
	Location string // the path or URL of the folder that the document was read from; may be empty
	Reason   string
	Document *Document // of EntryRevision; else nil
	Fault    error     // why the record is unreadable or undecodable; else nil
}

// Origin returns the interface and the location as one text; empty if the record has neither.
func (e Entry) Origin() string { return strings.TrimSpace(e.From + " " + e.Location) }

// entryOf returns the entry of a decoded record. next is the revision that it has become; nil if it is ignored.
func entryOf(p *pb.Policy, at time.Time, next *revision) Entry {
	e := Entry{
		State: EntryIgnored, Base: p.GetBase(), Time: at, By: p.GetBy(), From: p.GetFrom(), Location: p.GetLocation(),
		Reason: p.GetReason(),
	}
	if next == nil {
		return e
	}
	e.Revision, e.Time = p.GetBase()+1, next.time
	switch {
	case next.unread:
		e.State = EntryUnreadable
	case next.document == nil:
		e.State = EntryRemoval
	default:
		e.State, e.Document = EntryRevision, next.document
	}
	return e
}

// Accounts returns the accounts that have records, sorted.
func (b *Registry) Accounts() []string {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return slices.Sorted(maps.Keys(b.accounts))
}

// History returns all records of an account in the order of the topic, also those that are ignored.
func (b *Registry) History(account string) []Entry {
	b.mu.RLock()
	defer b.mu.RUnlock()
	if p := b.accounts[account]; p != nil {
		return slices.Clone(p.entries)
	}
	return nil
}

// Active returns the entry of the document in force, or false if there is none. Its revision is not the current one
// while a newer document cannot be parsed.
func (b *Registry) Active(account string) (Entry, bool) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	p := b.accounts[account]
	newest := p.newest()
	if newest.document == nil {
		return Entry{}, false
	}
	i := slices.IndexFunc(p.entries, func(e Entry) bool { return e.Revision == newest.from })
	return p.entries[i], true
}

// YAML returns the canonical form of a document: the same text for equal documents. Parse reads it.
func (d Document) YAML() (string, error) {
	content, err := json.Marshal(d)
	if err != nil {
		return "", fmt.Errorf("encode policy: %w", err)
	}
	text, err := yaml.JSONToYAML(content)
	if err != nil {
		return "", fmt.Errorf("encode policy: %w", err)
	}
	return string(bytes.TrimSpace(text)) + "\n", nil
}
