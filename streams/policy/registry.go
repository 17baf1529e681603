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
	"github.com/millrace/millrace/streams/revision"
)

// A Registry holds the policies of all accounts. It is built by applying the records of the topic policies in order. It
// is safe for concurrent use.
//
// The policies in force depend only on the records: every document that can be parsed takes effect, even if it names
// stores that this process does not know. The stores are validated before a document is published.
type Registry struct {
	*revision.Registry[Document]
	stores func(account string) []string

	mu sync.RWMutex // guards the following, which are by account
	// files are the digests of the folder files that the revisions come from. times are those of the newest revision.
	files map[string][]string
	times map[string]times
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

// NewRegistry returns an empty Registry. stores returns the ids of the stores of an account that this process knows.
// Faults reports documents that name other stores.
func NewRegistry(stores func(account string) []string) *Registry {
	parse := func(_, document string) (Document, error) { return Parse([]byte(document)) }
	return &Registry{Registry: revision.NewRegistry("policy of account", "deletes are kept", parse), stores: stores,
		files: map[string][]string{}, times: map[string]times{}}
}

// Apply applies one record of the topic policies, as revision.Registry does. While its document cannot be parsed, the
// last parsed one stays in force, with KeepCopy as its rule for deletes.
func (b *Registry) Apply(key []byte, at time.Time, p *pb.Policy) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p == nil || !b.Registry.Apply(key, at, p) {
		return false
	}
	if p.GetFileSha256() != "" {
		b.files[p.GetAccount()] = append(b.files[p.GetAccount()], p.GetFileSha256())
	}
	b.View(p.GetAccount(), func(l *revision.Log[Document]) {
		b.times[p.GetAccount()] = b.times[p.GetAccount()].next(l.Newest())
	})
	return true
}

// Rules returns the rules in force for a space. If the account has no policy in force, it returns false and rules
// without pairs that keep copies. Its cost does not depend on the number of revisions.
func (b *Registry) Rules(account, space string) (r Rules, ok bool) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	b.View(account, func(l *revision.Log[Document]) {
		r, ok = rulesIn(l.Newest(), b.times[account], space)
		if ok && !l.Gap.IsZero() && r.Deletes != KeepCopy {
			r.Deletes, r.Since = KeepCopy, l.Gap
		}
	})
	return r, ok
}

// rulesIn returns the rules for a space of a revision, the newest one of its account, with their times.
func rulesIn(newest revision.Revision[Document], t times, space string) (Rules, bool) {
	r := rulesOf(newest, space)
	if newest.Document == nil {
		return r, false
	}
	r.Revision = newest.Of
	if len(r.Pairs) > 0 {
		own := t.of(space)
		r.Since, r.Propagated, r.Added = own.since, own.propagated, own.added
	}
	return r, true
}

// rulesOf returns the rules for a space from a revision on.
func rulesOf(r revision.Revision[Document], space string) Rules {
	if r.Document == nil {
		return Rules{Deletes: KeepCopy}
	}
	rules := r.Document.Rules(space)
	if r.Unread {
		rules.Deletes = KeepCopy
	}
	return rules
}

// Faults returns the faults of the newest records of an account.
func (b *Registry) Faults(account string) (f RecordFaults) {
	b.View(account, func(l *revision.Log[Document]) {
		if l == nil {
			return
		}
		f.Gap, f.Unread = l.Faults.Gap, l.Faults.Unread
		// The stores are those that are known now: one may have been added since.
		if r := l.Newest(); r.Document != nil && !r.Unread {
			if err := r.Document.Validate(b.stores(account)); err != nil {
				f.Stores = fmt.Errorf("revision %d is in force with faults: %w", r.Of, err)
			}
		}
	})
	return f
}

// Files returns the digests of the files of policy folders that were published as revisions of the account, oldest
// first.
func (b *Registry) Files(account string) []string {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return slices.Clip(b.files[account])
}

// A LostError reports that a published record is ignored by all readers, because another record with the same base came
// first.
type LostError = revision.LostError

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
