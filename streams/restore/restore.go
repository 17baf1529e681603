// Package restore chooses what a store gets back of an item that was deleted or replaced, and from where.
//
// The choice is a pure function of the audit log and of what the stores hold now. It names only content whose digests
// the audit log has, verified against bytes, and only places whose bytes do not contradict them. It trusts no place:
// who executes the order reads the bytes again. What a store did not answer is unknown, never absent.
package restore

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/record"
)

// A Look is what a store holds of an item now.
type Look struct {
	Present bool
	Object  storage.Object // if present
	Err     error          // the store did not answer, or cannot confirm an absence: all else is unknown
}

// An Item is what is known of an item in all stores of its account.
type Item struct {
	Account, Space, ID string
	Changes            []*pb.Change         // of its content, deletes included, oldest first
	Ahead              map[string]time.Time // by id of a Change: the time that orders it, if it is earlier than it reports
	Passed             []map[string]string  // digests of bytes that checks have read and found to be right
	Looks              map[string]Look
	Kept               map[string][]storage.Kept
	// KeptUnknown has the stores that did not list all that they keep.
	KeptUnknown map[string]error
	// Damaged reports whether kept bytes are known to be damaged; nil: none are.
	Damaged func(store string, k storage.Kept) bool
}

// At returns the Change of the content that a store held at a time; nil if it held none.
func (i *Item) At(store string, at time.Time) (newest *pb.Change) {
	for _, c := range i.Changes {
		if c.GetStore() == store && !i.time(c).After(at) {
			newest = c
		}
	}
	if newest.GetOp() == pb.Op_OP_DELETE {
		return nil
	}
	return newest
}

// time returns the time that orders a Change.
func (i *Item) time(c *pb.Change) time.Time {
	if at, ok := i.Ahead[c.GetId()]; ok {
		return at
	}
	return c.GetTime().AsTime()
}

// Before returns the Change of the content that a store held before its newest one, or before its delete; nil if there
// was none. A report of the same bytes is not another content.
func (i *Item) Before(store string) *pb.Change {
	var newest *pb.Change
	for _, c := range slices.Backward(i.Changes) {
		switch {
		case c.GetStore() != store:
		case newest == nil:
			newest = c
		case c.GetOp() == pb.Op_OP_DELETE:
		case newest.GetOp() == pb.Op_OP_DELETE, digestsOf(c).Compare(digestsOf(newest)) != digest.Agree:
			return c
		}
	}
	return nil
}

// Lost returns the Change of the content that a store held before it was first deleted or replaced, except by a repair,
// after one time and until another; nil if it was not.
func (i *Item) Lost(store string, after, until time.Time) *pb.Change {
	held := i.At(store, after)
	for _, c := range i.Changes {
		if at := i.time(c); c.GetStore() != store || !at.After(after) || at.After(until) {
			continue
		}
		gone := c.GetOp() == pb.Op_OP_DELETE
		if held != nil && c.GetOrigin() != pb.Origin_ORIGIN_REPAIR &&
			(gone || digestsOf(c).Compare(digestsOf(held)) != digest.Agree) {
			return held
		}
		if held = c; gone {
			held = nil
		}
	}
	return nil
}

// Find returns the Change with an id, or of a version of a store; nil if there is none. An id may be shortened to 8
// characters or more. ambiguous reports whether it stands for several contents.
func (i *Item) Find(store, version string) (found *pb.Change, ambiguous bool) {
	const shortest = 8
	for _, c := range i.Changes {
		short := len(version) >= shortest && len(version) <= len(c.GetId()) && c.GetId()[:len(version)] == version
		if c.GetOp() == pb.Op_OP_DELETE || !short && (c.GetStore() != store || c.GetVersion() != version) {
			continue
		}
		ambiguous = ambiguous || found != nil && digestsOf(found).Compare(digestsOf(c)) != digest.Agree
		found = c
	}
	return found, ambiguous
}

func digestsOf(c *pb.Change) digest.Set { return c.GetDigests() }

// Proven returns the digests of a content that the audit log has, verified against bytes when it was written or by a
// check, in whichever store; none if none of them was. A copy of a content without digests names its version.
func (i *Item) Proven(content *pb.Change) digest.Set {
	claimed := digestsOf(content)
	var proven digest.Set
	for _, c := range i.Changes {
		if c.GetOp() == pb.Op_OP_DELETE { // it reports what the store had recorded
			continue
		}
		is := digestsOf(c).Compare(claimed) == digest.Agree || len(claimed) == 0 && content.GetVersion() != "" &&
			c.GetStore() != content.GetStore() && c.GetSourceVersion() == content.GetVersion()
		verified := c.GetProvenance() == pb.Provenance_PROVENANCE_VERIFIED
		if is && verified && len(c.GetDigests()) > 0 && digestsOf(c).Compare(proven) != digest.Disagree {
			proven = digestsOf(c).Union(proven)
		}
	}
	for _, passed := range i.Passed {
		if p := digest.Set(passed); len(proven) == 0 && p.Compare(claimed) == digest.Agree {
			proven = p.Union(claimed)
		}
	}
	return proven
}

// Is reports whether an object of a store has the content with the proven digests: by the digests that the store
// reports, or else by its version, if the audit log has the digests of that version.
func (i *Item) Is(store string, o storage.Object, proven digest.Set) digest.Agreement {
	if a := o.Digests.Compare(proven); a != digest.Incomparable {
		return a
	}
	agreement := digest.Incomparable
	for _, c := range i.Changes {
		if c.GetStore() != store || c.GetOp() == pb.Op_OP_DELETE || o.Version == "" || c.GetVersion() != o.Version {
			continue
		}
		if a := digestsOf(c).Compare(proven); a != digest.Incomparable {
			agreement = a
		}
	}
	return agreement
}

// Expected returns the digests of a content to verify bytes with that leave the stores: the proven ones, or else those
// that were only claimed, in whichever report of its version.
func (i *Item) Expected(content *pb.Change) digest.Set {
	if proven := i.Proven(content); len(proven) > 0 {
		return proven
	}
	claimed := digestsOf(content)
	for _, c := range i.Changes {
		if len(claimed) == 0 && c.GetOp() != pb.Op_OP_DELETE && content.GetVersion() != "" &&
			c.GetStore() == content.GetStore() && c.GetVersion() == content.GetVersion() {
			claimed = digestsOf(c)
		}
	}
	return claimed
}

// Date returns the date of the file that a content was made from. That of a copy is the date of its source, and bytes
// that were repaired or restored have the date that they had before.
func (i *Item) Date(content *pb.Change) time.Time {
	of, made := i.Expected(content), content
	repaired := func(c *pb.Change) bool {
		return c.GetOrigin() == pb.Origin_ORIGIN_REPAIR && c.GetSourceTime() == nil
	}
	for _, c := range slices.Backward(i.Changes) {
		if repaired(made) && !repaired(c) && c.GetOp() != pb.Op_OP_DELETE && !i.time(c).After(i.time(content)) &&
			digestsOf(c).Compare(of) == digest.Agree {
			made = c
		}
	}
	for _, t := range []*timestamppb.Timestamp{made.GetSourceTime(), made.GetModified()} {
		if t != nil {
			return t.AsTime()
		}
	}
	return made.GetTime().AsTime()
}

// Holders returns the stores whose copy is the content on record, that of the content first.
func (i *Item) Holders(content *pb.Change) (stores []string) {
	var names []string
	for _, c := range i.Changes {
		names = append(names, c.GetStore())
	}
	slices.Sort(names)
	expected := i.Expected(content)
	for _, store := range slices.Insert(slices.Compact(names), 0, content.GetStore()) {
		now := i.At(store, time.Unix(1<<40, 0))
		copied := content.GetVersion() != "" && now.GetSourceVersion() == content.GetVersion()
		agreement := digestsOf(now).Compare(expected)
		is := now == content || agreement == digest.Agree || agreement == digest.Incomparable && copied
		if now != nil && is && !slices.Contains(stores, store) {
			stores = append(stores, store)
		}
	}
	return stores
}

// Elsewhere returns further places that may have the bytes of a content: copies that are not on record, and kept bytes.
// guessed has those of which only the size is known to agree, unknown the stores that may have more.
func (i *Item) Elsewhere(content *pb.Change) (sure, guessed []*pb.RestoreSource, unknown map[string]error) {
	expected, holders := i.Expected(content), i.Holders(content)
	places, _ := i.sources("", expected, content)
	for _, p := range places {
		at := slices.IndexFunc(i.Kept[p.GetStore()], func(k storage.Kept) bool { return k.ID == p.GetKept() })
		switch {
		case p.GetKept() == "" && !slices.Contains(holders, p.GetStore()):
			sure = append(sure, p)
		case p.GetKept() == "":
		case i.Is(p.GetStore(), i.Kept[p.GetStore()][at].Object, expected) == digest.Agree:
			sure = append(sure, p)
		default:
			guessed = append(guessed, p)
		}
	}
	unknown = map[string]error{}
	for _, store := range i.stores() {
		if err := cmp.Or(i.Looks[store].Err, i.KeptUnknown[store]); err != nil {
			unknown[store] = err
		}
	}
	return sure, guessed, unknown
}

// A Verdict says what is to be done about a copy.
type Verdict string

// The verdicts.
const (
	Ordered  Verdict = "ordered"  // it gets the content back: Choice.Order
	Already  Verdict = "already"  // it has the content
	NotThen  Verdict = "not-then" // the item did not exist
	Unproven Verdict = "unproven" // the audit log has no verified digests of the content
	NoBytes  Verdict = "no-bytes" // no store has bytes of the content any more
	Refused  Verdict = "refused"  // it would not come back, or not stay: see Targets
	Unknown  Verdict = "unknown"  // a store that is needed did not answer
)

// A Choice is what is to be done about one copy.
type Choice struct {
	Item    string           `json:"item"`
	Store   string           `json:"store"`
	Verdict Verdict          `json:"verdict"`
	Detail  string           `json:"detail,omitempty"`
	Digests digest.Set       `json:"digests,omitempty"` // of the content
	Sources []string         `json:"sources,omitempty"` // places with its bytes
	Order   *pb.RestoreOrder `json:"-"`                 // if Verdict is Ordered; without the reason
}

// maxSources bounds the places in an order.
const maxSources = 8

// Choose decides what a store gets of a content; nil: there was none.
func Choose(i *Item, store string, content *pb.Change) Choice {
	c := Choice{Item: i.ID, Store: store}
	if content == nil {
		c.Verdict = NotThen
		return c
	}
	proven := i.Proven(content)
	if c.Digests = proven; len(proven) == 0 {
		c.Verdict, c.Detail = Unproven, "the audit log has no digests of it that were verified against bytes"
		return c
	}
	now := i.Looks[store]
	switch {
	case now.Err != nil:
		c.Verdict, c.Detail = Unknown, "store "+store+": "+now.Err.Error()
		return c
	case now.Present && i.Is(store, now.Object, proven) == digest.Agree:
		c.Verdict = Already
		return c
	}
	sources, unknown := i.sources(store, proven, content)
	switch {
	case len(sources) == 0 && unknown != "":
		c.Verdict, c.Detail = Unknown, unknown
	case len(sources) == 0:
		c.Verdict, c.Detail = NoBytes, "no store has its bytes any more"
	default:
		c.Verdict, c.Order = Ordered, i.order(store, proven, content)
		for _, s := range sources {
			c.Order.Sources = append(c.Order.Sources, s)
			c.Sources = append(c.Sources, text(s))
		}
	}
	return c
}

// text describes a source.
func text(s *pb.RestoreSource) string {
	if s.GetKept() == "" {
		return s.GetStore()
	}
	return s.GetStore() + ", kept " + s.GetKept()
}

// order returns the order without sources: conditional on what is there now.
func (i *Item) order(store string, proven digest.Set, content *pb.Change) *pb.RestoreOrder {
	o := &pb.RestoreOrder{Digests: proven, Size: content.GetSize(), SizeUnknown: content.GetSizeUnknown()}
	if now := i.Looks[store]; now.Present {
		o.Replaces = record.Identity(now.Object)
	} else if d := i.deleted(store); d != nil {
		o.Deleted = timestamppb.New(i.time(d))
	}
	return o
}

// deleted returns the newest Change of a store if it is a delete; nil otherwise.
func (i *Item) deleted(store string) *pb.Change {
	for _, c := range slices.Backward(i.Changes) {
		if c.GetStore() == store {
			if c.GetOp() == pb.Op_OP_DELETE {
				return c
			}
			return nil
		}
	}
	return nil
}

// A ranked source is better the lower its rank is.
type ranked struct {
	*pb.RestoreSource
	rank int
}

// sources returns places that may have the bytes, the best first: copies, then bytes that were kept, those of the store
// itself first; last the kept bytes of which only the size is known to agree. unknown names a store that may have more.
func (i *Item) sources(
	store string, proven digest.Set, content *pb.Change,
) (places []*pb.RestoreSource, unknown string) {
	var all []ranked
	for _, s := range i.stores() {
		look := i.Looks[s]
		switch {
		case look.Err != nil:
			unknown = "store " + s + ": " + look.Err.Error()
		case look.Present && s != store && i.Is(s, look.Object, proven) == digest.Agree:
			all = append(all, ranked{&pb.RestoreSource{Store: s}, 0})
		}
		if err := i.KeptUnknown[s]; err != nil {
			unknown = "store " + s + ": " + err.Error()
		}
		for _, k := range slices.Backward(i.Kept[s]) {
			rank := 1
			if s != store {
				rank = 2
			}
			if i.Is(s, k.Object, proven) == digest.Incomparable {
				rank = 3
			}
			if i.MayBe(s, k, proven, content) {
				all = append(all, ranked{&pb.RestoreSource{Store: s, Kept: k.ID}, rank})
			}
		}
	}
	slices.SortStableFunc(all, func(a, b ranked) int { return cmp.Compare(a.rank, b.rank) })
	for _, r := range all[:min(len(all), maxSources)] {
		places = append(places, r.RestoreSource)
	}
	return places, unknown
}

// MayBe reports whether kept bytes may be those of a content: nothing that is known of them contradicts it.
func (i *Item) MayBe(store string, k storage.Kept, proven digest.Set, content *pb.Change) bool {
	sized := content.GetSizeUnknown() || content.GetSize() == k.Object.Size
	return sized && i.Is(store, k.Object, proven) != digest.Disagree && (i.Damaged == nil || !i.Damaged(store, k))
}

// stores returns the stores that anything is known of, sorted.
func (i *Item) stores() []string {
	all := slices.Collect(maps.Keys(i.Looks))
	all = slices.AppendSeq(all, maps.Keys(i.Kept))
	all = slices.AppendSeq(all, maps.Keys(i.KeptUnknown))
	slices.Sort(all)
	return slices.Compact(all)
}

// An Action is the decision of an operator to restore items.
type Action struct {
	ID, Who, Why string
	Time         time.Time
	Priority     pb.Priority
}

// Command returns the command for a choice with an order. Its id depends on the action and the copy only. Its change
// time, which the result repeats, is the time of the action: repeated runs of an action differ in it.
func (a Action) Command(i *Item, c Choice) *pb.DuplicationCommand {
	order := c.Order
	order.Why = a.Why
	cmd := &pb.DuplicationCommand{
		Account: i.Account, Space: i.Space, Item: i.ID, SourceStore: order.GetSources()[0].GetStore(),
		DestinationStore: c.Store, Reason: pb.DuplicationReason_DUPLICATION_REASON_RESTORE, Priority: a.Priority,
		Cause: a.ID, Approved: a.Who, Time: timestamppb.New(a.Time), ChangeTime: timestamppb.New(a.Time),
		Size: order.GetSize(), SizeUnknown: order.GetSizeUnknown(), Restore: order,
	}
	cmd.Id = schemas.RestoreID(cmd)
	return cmd
}
