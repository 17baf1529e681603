package deletion

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/duplicate"
	"github.com/millrace/millrace/streams/held"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// An Account is what a decision about a Removal needs to know of an account.
type Account struct {
	Stores  []string // the ids of all its stores
	Primary string   // the id of its primary store; empty if it has none
	Unsure  error    // why the rules in force may lack something that was published; nil if they do not
}

// A Removal is a copy that a person wants to have removed, with what the rules and the records say about it.
type Removal struct {
	Copy    schemas.Copy
	Account Account
	Rules   policy.Rules
	Records []*pb.CopyRecord // of the item in Account.Stores, in this order
}

// Copies returns the copies of the item in all stores of the account, whose records a Removal has.
func (r Removal) Copies() []schemas.Copy {
	all := make([]schemas.Copy, len(r.Account.Stores))
	for i, store := range r.Account.Stores {
		all[i] = r.Copy.In(store)
	}
	return all
}

// Refusal returns why the copy may not be removed, by the rules and the records; empty if it may be. It is pure. A copy
// may be removed if the rules do not want it: no pair names its store, or its source was deleted.
func (r Removal) Refusal() string {
	source, own := r.source(r.Copy.Store), r.record(r.Copy.Store)
	switch store := r.Copy.Store; {
	case r.Account.Unsure != nil:
		return fmt.Sprintf("the policy in force is unknown: %v", r.Account.Unsure)
	case own == nil:
		return "the account has no such store"
	case r.isOrigin(store):
		return "it is the source: the store is the primary one, or the policy copies the space from it"
	case own.GetState() != pb.RecordState_RECORD_STATE_LIVE:
		return "no such copy is on record"
	case source != "" && r.record(source).GetState() != pb.RecordState_RECORD_STATE_TOMBSTONE:
		return fmt.Sprintf("the policy wants it: its source in store %s is not on record as deleted", source)
	case len(r.others()) == 0 && !r.deletedByClient():
		return "it may be the last one: no copy of its content that stays is on record, and no client has deleted the item"
	}
	return ""
}

// source returns the store from which the policy copies the space to a store; empty if it does not.
func (r Removal) source(store string) string {
	for _, p := range r.Rules.Pairs {
		if p.Destination == store {
			return p.Source
		}
	}
	return ""
}

// isOrigin reports whether the items of the space begin in a store, so that none is removed there.
func (r Removal) isOrigin(store string) bool {
	return store == r.Account.Primary || r.Rules.Manages(store) && r.source(store) == ""
}

// record returns the record of the item in a store; nil if the account has no such store.
func (r Removal) record(store string) *pb.Record {
	if i := slices.Index(r.Account.Stores, store); i >= 0 && i < len(r.Records) {
		return cmp.Or(r.Records[i].GetManifest(), new(pb.Record))
	}
	return nil
}

// others returns the stores with a copy on record in whose favour this one may go: of the same content, or where the
// item begins, of later content. Those copies are never removed, or are in a store that comes before: so of two copies
// that are removed by two processes one stays.
func (r Removal) others() (stores []string) {
	before, own := true, r.record(r.Copy.Store)
	for _, store := range r.Account.Stores {
		m, begins := r.record(store), r.isOrigin(store)
		if store == r.Copy.Store {
			before = false
		} else if m.GetState() == pb.RecordState_RECORD_STATE_LIVE && (before || begins) &&
			(digest.Set(own.GetDigests()).Compare(m.GetDigests()) == digest.Agree || begins && dateOf(m).After(dateOf(own))) {
			stores = append(stores, store)
		}
	}
	return stores
}

// dateOf returns the time of the content on record: of a copy, of its source.
func dateOf(m *pb.Record) time.Time { return cmp.Or(m.GetSourceTime(), m.GetTime()).AsTime() }

// deletedByClient reports whether a client has deleted the item, as the copy has it or later.
func (r Removal) deletedByClient() bool {
	content := dateOf(r.record(r.Copy.Store))
	return slices.ContainsFunc(r.Account.Stores, func(store string) bool {
		m := r.record(store)
		switch m.GetOrigin() {
		case pb.Origin_ORIGIN_CLIENT, pb.Origin_ORIGIN_NOTIFICATION, pb.Origin_ORIGIN_IMPORT:
			return m.GetState() == pb.RecordState_RECORD_STATE_TOMBSTONE && !m.GetDisputed() &&
				!m.GetTime().AsTime().Before(content)
		}
		return false
	})
}

// A removal is the complete input of the decision of a deleter about a Removal.
type removal struct {
	Removal
	from, copy duplicate.Side // observed; from is the source of the pair
	row        duplicate.Row  // what applies to the pair; empty: no pair leads to the store, or the source is present
	hold       *policy.Hold   // nil: none is in force
	readOnly   bool
}

// decide decides C0a. It is pure. ok is true if the copy may be removed.
func (s removal) decide() (e ending, ok bool) {
	e = ending{row: duplicate.RowAsked, result: "kept", outcome: pb.Outcome_OUTCOME_NOTHING}
	refusal, managed := s.Refusal(), s.source(s.Copy.Store) != ""
	switch {
	case s.copy.Presence != duplicate.Present:
		e.result, e.detail = "delete-moot", "the copy is gone"
	case refusal != "":
		e.detail = refusal
	case managed && s.from.Presence == duplicate.Present:
		e.detail = "the policy wants it: the source is present"
	case managed && s.row != duplicate.RowSourceDeleted && s.row != duplicate.RowDeleteHeld:
		e.detail = fmt.Sprintf("the policy wants it: by row %s its source was not deleted later", s.row)
	case s.hold != nil:
		e.result = duplicate.ResultHeld
		e.detail = s.hold.String()
	case s.readOnly:
		e.detail = "the store is read-only"
	default:
		e.result, e.outcome = "deleted", pb.Outcome_OUTCOME_DONE
		return e, true
	}
	return e, false
}

// remove executes a person's order to remove a copy: it holds the delete on a list, and does it once that is approved.
func (e *Deleter) remove(ctx context.Context, c *pb.DeletionCommand, attempt int) ([]schemas.Message, error) {
	if e.cfg.Account == nil {
		return nil, retry.Permanent(errors.New("this deleter removes no copies by order"))
	}
	w := &execution{cfg: e.cfg, command: c, attempt: attempt, started: time.Now()}
	return w.repeat(func() ([]schemas.Message, error) { return w.iterateRemoval(ctx, e) })
}

// iterateRemoval reads the records, observes the copy and its source, decides and acts once.
func (w *execution) iterateRemoval(ctx context.Context, l *Deleter) ([]schemas.Message, error) {
	c := w.command
	_, at := schemas.CopiesOf(c)
	s := removal{Removal: Removal{Copy: at, Account: w.cfg.Account(at.Account)}}
	s.Rules, _ = l.rules.Rules(at.Account, at.Space)
	source := s.source(at.Store)
	both := w.observeCommand()
	both.SourceStore, both.Approved = cmp.Or(source, at.Store), ""
	var err error
	if w.sides, err = l.observer.Sides(both); err != nil {
		return nil, err
	}
	if w.sides.Store == nil {
		return nil, retry.Permanent(fmt.Errorf("remove %s: the account has no such store", at))
	}
	if s.Records, err = duplicate.FreshRecords(ctx, l.records, at, s.Copies()...); err != nil {
		return nil, err
	}
	seen := w.sides.Observe(ctx)
	var d duplicate.Decision
	if source != "" && seen.Source.Presence != duplicate.Present {
		if d, err = w.sides.Decide(ctx, &seen); err != nil {
			return nil, err
		}
	}
	if seen.Destination.Presence == duplicate.Unknown {
		return nil, seen.Destination.Err
	}
	s.from, s.copy, s.row, s.hold = seen.Source, seen.Destination, d.Row, seen.Hold
	s.readOnly = w.sides.Store.Capabilities().ReadOnly
	e, ok := s.decide()
	if !ok {
		if s.copy.Presence == duplicate.Absent && c.GetList() != "" && // an execution that died may have deleted it
			s.record(at.Store).GetState() == pb.RecordState_RECORD_STATE_LIVE {
			seen.Destination.Record = &pb.CopyRecord{Manifest: s.record(at.Store)}
			e.change = w.sides.DeleteChange(seen, duplicate.Decision{Deleted: c.GetDeleted().AsTime()})
		}
		return w.messages(e), nil
	}
	e.effect = duplicate.DeleteEffect(at, c.GetDeleted().AsTime(), s.copy.Object)
	if ended, err := w.leaveRemoval(ctx, &e); err != nil || ended != nil {
		return ended, err
	}
	if source != "" {
		if err := cmp.Or(w.stillAbsent(ctx), w.sides.Confirm(seen, d)); err != nil {
			return nil, err
		}
	}
	if err := w.confirmRemoval(l, s); err != nil {
		return nil, err
	}
	if e.detail, err = w.confirmOther(ctx, l, s); err != nil {
		return nil, err
	}
	if e.detail != "" {
		e.result, e.outcome = "kept", pb.Outcome_OUTCOME_NOTHING
		return w.messages(e), nil
	}
	if err := w.deleteSeen(ctx, s.copy.Object, &e, map[string]string{"list": e.list}); err != nil {
		return nil, err
	}
	if source != "" {
		e.copy = w.putBack(w.observeAfter(ctx))
	}
	return w.messages(e), nil
}

// leaveRemoval returns nil if the list that has a removal is approved, and sets it, or the messages that end the
// execution without.
func (w *execution) leaveRemoval(ctx context.Context, e *ending) ([]schemas.Message, error) {
	at := w.sides.Copy
	standing, _, err := w.ask(ctx, e.effect)
	if err != nil {
		return nil, err
	}
	e.list = standing.Approved
	switch {
	case standing.Approved != "":
		return nil, nil
	case standing.Kept != "":
		e.result, e.detail, e.outcome = "kept", standing.Kept, pb.Outcome_OUTCOME_NOTHING
	case w.command.GetList() != "":
		e.result, e.detail = "kept", "the store has another object than was approved"
		e.outcome = pb.Outcome_OUTCOME_NOTHING
	default:
		e.result, e.detail, e.outcome = "awaiting-approval", "a person asked for it: "+w.command.GetWhy(),
			pb.Outcome_OUTCOME_HANDED_ON
		if e.list, err = w.cfg.Lists.Hold(ctx, at, held.Asked, e.detail); err != nil {
			return nil, fmt.Errorf("report that the removal of %s waits for a decision: %w", at, err)
		}
	}
	return w.messages(*e), nil
}

// confirmOther returns why the copy stays: no store has another one as it is on record, and no client has deleted the
// item; empty if it may go.
func (w *execution) confirmOther(ctx context.Context, l *Deleter, s removal) (stays string, err error) {
	if s.deletedByClient() {
		return "", nil
	}
	var unknown error
	for _, store := range s.others() {
		c := w.observeCommand()
		c.SourceStore = store
		sides, err := l.observer.Sides(c)
		if err != nil {
			return "", err
		}
		o, err := sides.SourceStore.Stat(ctx, c.GetSpace(), c.GetItem())
		m := s.record(store)
		switch {
		case err == nil && o.Version == m.GetVersion() && o.Size == m.GetSize():
			return "", nil
		case err != nil && !errors.Is(err, storage.ErrNotFound) && !errors.Is(err, storage.ErrNoSpace):
			unknown = fmt.Errorf("look for the copy of %s that stays: %w", s.Copy, err)
		}
	}
	return "it may be the last one: no other store has the copy that is on record there", unknown
}

// confirmRemoval returns ErrChanged if the rules in force now lead to another decision than the one about s.
func (w *execution) confirmRemoval(l *Deleter, s removal) error {
	source := s.source(s.Copy.Store)
	s.Account, s.hold = w.cfg.Account(s.Copy.Account), w.sides.Hold()
	s.Rules, _ = l.rules.Rules(s.Copy.Account, s.Copy.Space)
	if e, ok := s.decide(); !ok || s.source(s.Copy.Store) != source {
		return fmt.Errorf("%w: by the rules in force now: %s", storage.ErrChanged, e.detail)
	}
	return nil
}
