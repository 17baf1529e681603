// Package reconcile compares the listing of a space in a store with the manifest, and finds what no event has reported:
// items that were put, replaced or removed behind the system's back, and whole stores that existed before it.
//
// What it finds is a guess. An item that no record has becomes a Change of origin sweep with the time of the item, so
// that a report of the same write that is under way has the same id. All else that differs is checked, or reported as a
// Change if other programs are expected to write to the store; both are looked at twice. Nothing is deleted or
// overwritten because of it without approval.
//
// A listing that fails concludes nothing, and neither does one of a store whose marker cannot be read. What a listing
// lacks is acted on only if all rounds of the last hour, and one before, lacked it too, and little else of the space.
package reconcile

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"iter"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/record"
	"github.com/millrace/millrace/streams/sweep"
	"github.com/millrace/millrace/streams/sweep/merge"
)

// Name is the name of the sweep.
const Name = "reconcile"

// Requests is the name of the checkpoints, one of a store, that request rounds beside the schedule.
const Requests = Name + ".requests"

// agent is the agent of Changes by the sweep.
const agent = "sweeper"

const (
	// DefaultPage is the number of listed items that are in memory at once. An interruption repeats that many at most.
	DefaultPage = 20_000
	// maxMissing is the number of missing items that a round remembers for the next one, which remembers those after
	// them. They take 110 KiB of a checkpoint, which has those of two rounds.
	maxMissing = 7000
	// apart is the least time between the beginnings of two rounds that miss an item before something follows from that.
	// Starts of a process and overflows of a watch request rounds that are seconds apart.
	apart = time.Hour
	// parallelStats is the number of items that are looked at again at once.
	parallelStats = 16
	// skew is how much the clocks of a store and of this process may differ.
	skew = 5 * time.Minute
	// maxRefused is the number of items of a page that may not be looked at again: more are a failure of the store.
	maxRefused = 100
	// smallSpace is the number of copies from which Config.MaxMissing counts.
	smallSpace = 100
)

// Config configures the sweep of one space in one store.
type Config struct {
	Space schemas.Copy // without an item
	// ExternalWrites: programs other than the clients of millrace are expected to write to the store, since
	// ExternalWritesSince.
	ExternalWrites      bool
	ExternalWritesSince time.Time
	// Approves reports whether an update of that date by another program is approved; nil: none is. It is false while the
	// store is a destination of the space: what is found there is copied no further.
	Approves func(modified time.Time) bool
	// Settle is the least time between two looks at an item. It is not waited for if the store's objects appear whole.
	Settle time.Duration
	// AppearsWhole: no program can write to an object that is visible.
	AppearsWhole bool
	// MaxMissing is the share of the live copies of a space which a listing may lack; otherwise nothing is concluded
	// from what it lacks.
	MaxMissing float64
	// Large is the smallest size in bytes of items of class large; 0 means that none are.
	Large int64
	Page  int // listed items in memory at once [DefaultPage]
	// Request is the id of the newest request of a round over the store; "" if there is none.
	Request string
	// Items reports whether an item is compared; nil: all are.
	Items func(item string) bool
}

// Deps are the dependencies of the sweep. All but Listing are required.
type Deps struct {
	Store storage.Store
	// Listing is compared in place of the listing of Store; nil: Store lists the space.
	Listing *Listing
	// Rows returns the rows of the manifest for the items of a space after of.Item and, unless last is empty, not after
	// last, in the order of items.
	Rows func(ctx context.Context, of schemas.Copy, last string) iter.Seq2[Row, error]
	// Fresh returns when Rows has everything that was published before the call.
	Fresh func(context.Context) error
	// Settle waits for d, while so many items are in memory, and lets others work meanwhile.
	Settle func(ctx context.Context, d time.Duration, items int) error
	// OpenIncident and CloseIncident report a listing that lacks too much of a space.
	OpenIncident, CloseIncident func(ctx context.Context, space schemas.Copy, detail string) error
	// DeclaredGone reports whether an operator has declared that the space is gone.
	DeclaredGone func() bool
}

// New returns the sweep over one space.
func New(c Config, d Deps) (sweep.Sweep, error) {
	switch {
	case c.Space.Account == "" || c.Space.Store == "" || c.Space.Space == "" || c.Space.Item != "":
		return nil, errors.New("reconcile: account, store or space are missing, or there is an item")
	case c.Settle < 0 || c.MaxMissing < 0 || c.Page < 0:
		return nil, errors.New("reconcile: settle, the share that may be missing, or the page is negative")
	case d.Listing != nil && (d.Listing.ID == "" || d.Listing.Time.IsZero() || d.Listing.Items == nil):
		return nil, errors.New("reconcile: the listing has no id, time or items")
	case d.Store == nil || d.Rows == nil || d.Fresh == nil || d.Settle == nil || d.OpenIncident == nil ||
		d.CloseIncident == nil || d.DeclaredGone == nil:
		return nil, errors.New("reconcile: a dependency is missing")
	}
	if c.Page == 0 {
		c.Page = DefaultPage
	}
	r := &reconciler{c, d}
	return r.page, nil
}

type reconciler struct {
	Config
	deps Deps
}

// A cursor is the state of a round. The round after it gets the one at its end.
type cursor struct {
	After   string `json:"after,omitempty"`   // the last item that was compared
	Listing string `json:"listing,omitempty"` // the id of the listing
	Missing hashes `json:"missing,omitempty"`
	// Full is the last item that Missing has room for: the next round remembers those after it.
	Full string `json:"full,omitempty"`
	// Request is the newest request when the round began. Requested: it was new then.
	Request   string `json:"request,omitempty"`
	Requested bool   `json:"requested,omitempty"`
	Live      int64  `json:"live"` // copies on record so far
	Lacking   int64  `json:"lacking"`
}

// hashes are hashes of items, each with the Unix time of the round that missed it first: 12 bytes.
type hashes []byte

func hash(item string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(item))
	return h.Sum64()
}

func (h hashes) with(item string, since int64) hashes {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint64(h, hash(item)), uint32(since))
}

func (h hashes) len() int { return len(h) / 12 }

func (h hashes) set() map[uint64]int64 {
	set := make(map[uint64]int64, h.len())
	for ; len(h) >= 12; h = h[12:] {
		set[binary.BigEndian.Uint64(h)] = int64(binary.BigEndian.Uint32(h[8:]))
	}
	return set
}

func decode(state []byte) (c cursor, err error) {
	if state != nil {
		err = json.Unmarshal(state, &c)
	}
	if err != nil {
		return c, fmt.Errorf("read the cursor: %w", err)
	}
	return c, nil
}

// Request returns a message that requests a round over each space of a store, which begins after the request.
func Request(account, store string) schemas.Message {
	id := schemas.NewID()
	return schemas.Message{Topic: schemas.Checkpoints, Body: &pb.Checkpoint{Id: id, Sweep: Requests,
		Split: schemas.Key(account, store), Round: id, Time: timestamppb.Now()}}
}

// IsRequested reports whether a round is to begin, or goes on, because of a request. last is the newest checkpoint.
func IsRequested(last *pb.Checkpoint, request string) bool {
	c, err := decode(last.GetCursor())
	return err == nil && (c.Request != request || last.GetFinished() == nil && c.Requested)
}

// Skipped returns what the round after one that was skipped gets: what that got, and that its request is done.
func Skipped(last *pb.Checkpoint) []byte {
	at, err := decode(last.GetCursor())
	before, e := decode(last.GetPrevious())
	if last.GetCursor() != nil { // else it has not read its first page, and has answered nothing
		before.Request = at.Request
	}
	next, e2 := json.Marshal(before)
	if errors.Join(err, e, e2) != nil {
		return last.GetPrevious()
	}
	return next
}

// page compares a part of the space.
func (r *reconciler) page(ctx context.Context, round sweep.Round, state []byte) (page sweep.Page, err error) {
	at, err := decode(state)
	if err != nil {
		return page, err
	}
	if id := r.deps.Listing.id(); at.Listing != id {
		if state != nil {
			return page, fmt.Errorf("reconcile %s: %w", r.Space, retry.Permanent(errOtherListing))
		}
		at.Listing = id
	}
	before, err := decode(round.Previous)
	if err != nil {
		return page, err
	}
	if state == nil {
		at.Request, at.Requested = r.Request, r.Request != before.Request
	}
	p := &part{reconciler: r, round: round, cursor: at, before: before.Missing.set(), from: before.Full,
		counts: map[string]int64{}}
	if err := p.compare(ctx); err != nil {
		return page, err
	}
	messages, err := p.lookAgain(ctx)
	if err != nil {
		return page, err
	}
	page = sweep.Page{Messages: messages, Counts: p.counts, Emitted: int64(len(messages)), Last: p.last == ""}
	if p.cursor.After = p.last; page.Last {
		page.Ended = p.end()
	}
	if page.Next, err = json.Marshal(p.cursor); err != nil {
		return page, fmt.Errorf("write the cursor: %w", err)
	}
	return page, nil
}

// A part is the part of a space that one page compares.
type part struct {
	*reconciler
	round      sweep.Round
	cursor     cursor
	before     map[uint64]int64 // hashes of the items that the round before missed, and since when
	from       string           // items until this one were remembered before, if they are missing
	listed     time.Time        // when the listing began
	last       string           // the last item; "" if the listing ended
	noSpace    bool
	candidates []candidate
	below      string // the item before the first candidate
	counts     map[string]int64
}

// A candidate is a copy that is looked at again.
type candidate struct {
	item   string
	object *storage.Object // of the first look
	live   bool            // counts in cursor.Live
}

func (p *part) count(a Action, o *storage.Object) {
	if a == Nothing {
		return
	}
	p.counts[string(a)]++
	if o != nil && o.Size > 0 {
		p.counts[string(a)+"_bytes"] += o.Size
	}
}

// compare lists the part and compares it with the manifest.
func (p *part) compare(ctx context.Context) error {
	if err := p.marker(ctx); err != nil {
		return err
	}
	objects, err := p.list(ctx)
	if err == nil {
		err = p.marker(ctx)
	}
	if err != nil {
		return err
	}
	of := p.Space
	of.Item = p.cursor.After
	listing := func(yield func(*storage.Object, error) bool) {
		for i := range objects {
			if !yield(&objects[i], nil) {
				return
			}
		}
	}
	rows := p.deps.Rows(ctx, of, p.last)
	p.below = p.cursor.After
	for pair, err := range merge.Sorted(listing, itemOf, rows, func(r Row) string { return r.Item }) {
		if err != nil {
			return fmt.Errorf("compare the listing of %s with the manifest: %w", p.Space, err)
		}
		if p.Items != nil && !p.Items(pair.Key) {
			p.exclude(pair.First, pair.InSecond && pair.Second.Live)
			continue
		}
		l := p.look(pair.First)
		if pair.InSecond {
			l.row = &pair.Second
		}
		p.first(pair.Key, l)
		if len(p.candidates) == 0 {
			p.below = pair.Key
		}
		if p.deps.Listing != nil && len(p.candidates) == p.Page { // what it lacks may be all of the space
			p.last = strings.Clone(pair.Key)
			break
		}
	}
	p.below = strings.Clone(p.below)
	return nil
}

// exclude counts an item that is not compared. A listing that lacks too many of these, too, is not to be trusted.
func (p *part) exclude(o *storage.Object, live bool) {
	if live {
		p.cursor.Live++
	}
	if live && o == nil {
		p.cursor.Lacking++
	}
	if live || o != nil {
		p.count(Excluded, o)
	}
}

func itemOf(o *storage.Object) string { return o.Item }

// first handles the first look at a copy.
func (p *part) first(item string, l look) {
	if p.deps.Listing != nil {
		p.firstListed(item, l)
		return
	}
	live := l.row != nil && l.row.Live
	if live {
		p.cursor.Live++
	}
	if l.object == nil && live {
		p.cursor.Lacking++
		l.before = p.missedBefore(item)
	}
	switch a := decide(l); a {
	case Nothing, Equal:
		p.count(a, l.object)
	case Missing:
		p.count(a, nil)
		p.remember(item)
	default:
		c := candidate{item: strings.Clone(item), live: live}
		if l.object != nil { // a copy, since the listing is not kept while this waits
			o := *l.object
			c.object = &o
		}
		p.candidates = append(p.candidates, c)
	}
}

// missedBefore reports whether the round before missed the item, too, and it was missed first long enough ago.
func (p *part) missedBefore(item string) bool {
	since, ok := p.before[hash(item)]
	return ok && p.round.Started.Unix() >= since+int64(apart/time.Second)
}

// remember remembers a missing item for the next round, if there is room. What had none comes first then.
func (p *part) remember(item string) {
	since, again := p.before[hash(item)]
	if !again {
		since = p.round.Started.Unix()
	}
	if !again && item <= p.from || p.cursor.Missing.len() == maxMissing {
		return
	}
	if p.cursor.Missing = p.cursor.Missing.with(item, since); p.cursor.Missing.len() == maxMissing {
		p.cursor.Full = item
	}
}

// externalTo reports whether other programs were expected to write to the store when o was written. A date that is
// ahead does not say when that was.
func (p *part) externalTo(o *storage.Object) bool {
	return p.ExternalWrites &&
		(o == nil || !o.Modified.Before(p.ExternalWritesSince) && !record.IsAhead(*o, time.Now()))
}

func (p *part) look(o *storage.Object) look {
	return look{object: o, external: p.externalTo(o), now: time.Now(), settle: p.Settle}
}

func (p *part) marker(ctx context.Context) error {
	if err := p.deps.Store.Marker(ctx); err != nil {
		return fmt.Errorf("read the marker of store %s/%s: %w", p.Space.Account, p.Space.Store, err)
	}
	return nil
}

// list returns the next items of the space, in order.
func (p *part) list(ctx context.Context) (objects []storage.Object, err error) {
	p.listed = time.Now()
	after := p.cursor.After
	for o, err := range storage.Sorted(after, p.items(ctx, after)) {
		switch {
		case errors.Is(err, storage.ErrNoSpace):
			if p.noSpace = true; !p.deps.DeclaredGone() {
				p.before = nil // nothing is concluded of what an absent space lacks
			}
			return nil, nil
		case err != nil:
			return nil, fmt.Errorf("list %s: %w", p.Space, err)
		}
		objects = append(objects, o)
		if len(objects) == p.Page {
			p.last = o.Item
			return objects, nil
		}
		if len(objects)%1000 == 0 {
			retry.Alive(ctx)
		}
	}
	return objects, nil
}

// lookAgain looks a second time at the copies that differ, and returns what follows from those that still do.
func (p *part) lookAgain(ctx context.Context) ([]schemas.Message, error) {
	if len(p.candidates) == 0 {
		return nil, nil
	}
	now, err := p.looks(ctx)
	if err != nil {
		return nil, err
	}
	if err := p.deps.Fresh(ctx); err != nil {
		return nil, fmt.Errorf("wait for the records: %w", err)
	}
	var messages []schemas.Message
	of := p.Space // only the part with candidates
	of.Item = p.below
	rows := p.deps.Rows(ctx, of, p.candidates[len(p.candidates)-1].item)
	looks := func(yield func(int, error) bool) {
		for i := range p.candidates {
			if !yield(i, nil) {
				return
			}
		}
	}
	itemAt := func(i int) string { return p.candidates[i].item }
	for pair, err := range merge.Sorted(looks, itemAt, rows, func(r Row) string { return r.Item }) {
		if err != nil {
			return nil, fmt.Errorf("compare items of %s again with the manifest: %w", p.Space, err)
		}
		if !pair.InFirst {
			continue
		}
		c, second := p.candidates[pair.First], now[pair.First]
		if second.unknown {
			p.count(Unknown, c.object)
			continue
		}
		l := p.look(second.object)
		l.before = p.deps.Listing == nil || p.missedBefore(c.item)
		if pair.InSecond {
			l.row = &pair.Second
		}
		if m, ok := p.second(c, l, second.at); ok {
			messages = append(messages, m)
		}
	}
	return messages, nil
}

// A second is what a second look at an item shows.
type second struct {
	object  *storage.Object
	at      time.Time // of the absence of the object, by the clock of the store
	unknown bool      // the store did not answer for this item
}

func (p *part) statAll(ctx context.Context) ([]second, error) {
	all := make([]second, len(p.candidates))
	var refused atomic.Int64
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(parallelStats)
	for i, c := range p.candidates {
		g.Go(func() error {
			o, err := p.deps.Store.Stat(gctx, p.Space.Space, c.item)
			switch {
			case err == nil:
				all[i].object = &o
			case errors.Is(err, storage.ErrNotFound), errors.Is(err, storage.ErrNoSpace):
				all[i].at = time.Now()
				if a := (*storage.AbsentError)(nil); errors.As(err, &a) && !a.At.IsZero() {
					all[i].at = a.At
				}
			case errors.Is(err, storage.ErrName):
				all[i].unknown = true
			case ctx.Err() == nil && refused.Add(1) <= maxRefused: // the marker is read next
				all[i].unknown = true
			default:
				return fmt.Errorf("look again at item %q of %s: %w", c.item, p.Space, err)
			}
			if i%1000 == 0 {
				retry.Alive(ctx)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	return all, p.marker(ctx) // an absence counts only if the store is the right one
}

// second handles the second look at a copy.
func (p *part) second(c candidate, l look, absentAt time.Time) (m schemas.Message, ok bool) {
	if !c.live && l.row != nil && l.row.Live { // it was not on record yet, as while tables are rebuilt
		p.cursor.Live++
	}
	a := decide(l)
	settled := c.object != nil && l.object != nil && c.object.Version == l.object.Version && c.object.Size == l.object.Size
	if (a == Adopt || a == Update) && !settled { // it is being written: the next round looks again
		p.counts[string(Unsettled)]++
		return m, false
	}
	if c.object != nil && l.object == nil && (a == CheckLost || a == Deleted) {
		a = Missing // it was removed meanwhile: that is the first look at its absence
	}
	switch {
	case p.deps.Listing != nil:
		a = p.secondListed(c.item, a)
	case a == Missing: // it was there at the first look
		p.cursor.Lacking++
		delete(p.before, hash(c.item))
		p.remember(c.item)
	}
	at := p.Space
	at.Item = c.item
	switch a {
	case Adopt, Update:
		m, ok = p.change(at, a, l), true
	case Deleted:
		gone := record.Delete(at, storage.Deleted{Time: absentAt, Object: storage.Object{Item: c.item, Size: l.row.Size,
			Version: l.row.Version, ETag: l.row.ETag}})
		m, ok = p.report(gone), true
	case Resurrected, Different, CheckLost:
		m, ok = p.check(at, l), true
	}
	if ok && schemas.Validate(m.Body) != nil { // a name, a time or properties that no message can carry
		a, ok = Unknown, false
	}
	p.count(a, l.object)
	return m, ok
}

// change returns the Change that reports an item as it is.
func (p *part) change(at schemas.Copy, a Action, l look) schemas.Message {
	c := record.Content(at, *l.object)
	record.At(c, *l.object, record.Dated(*l.object, time.Now()))
	if a == Update {
		c.Op = pb.Op_OP_UPDATE
	}
	if l.row != nil && l.external && p.Approves != nil && p.Approves(l.object.Modified) {
		c.Approved = "corrections: auto"
	}
	return p.report(c)
}

func (p *part) report(c *pb.Change) schemas.Message {
	c.Origin, c.Agent, c.Cause = pb.Origin_ORIGIN_SWEEP, agent, p.round.ID
	return schemas.Message{Topic: schemas.Changes, Body: record.Seal(c)}
}

// check returns the task that checks a copy against the records.
func (p *part) check(at schemas.Copy, l look) schemas.Message {
	c := sweep.CheckRequest{Sweep: Name, Copy: at, Large: p.Large}
	if l.object != nil {
		c.Size = l.object.Size
	}
	return c.Task(p.round)
}

// Report returns the report of a round over a space that has ended.
func Report(space schemas.Copy, l *Listing, r sweep.Result) *pb.Report {
	detail := ""
	if l != nil {
		detail = fmt.Sprintf("by the listing %s of %s, not by one of the store", l.ID, l.Time.UTC().Format(time.RFC3339))
	}
	return &pb.Report{
		Detail: detail,
		Id:     schemas.ID("report", Name, r.ID), Kind: Name, Account: space.Account, Store: space.Store, Space: space.Space,
		Round: r.ID, Started: timestamppb.New(r.Started), Finished: timestamppb.New(r.Finished), Counts: r.Counts,
		Complete: r.Counts[string(Inconclusive)] == 0 && r.Counts[string(Unsettled)] == 0 &&
			r.Counts[string(Unknown)] == 0 && r.Counts[string(Newer)] == 0,
	}
}

// end ends a round: what it misses counts as missing in the next one only if that is little of the space.
func (p *part) end() func(context.Context) error {
	lacking, live := p.cursor.Lacking, p.cursor.Live
	tooMuch := lacking > 0 && (lacking == live || p.noSpace) ||
		live >= smallSpace && float64(lacking) > p.MaxMissing*float64(live)
	if p.deps.Listing != nil {
		return p.endListed(tooMuch)
	}
	if !tooMuch || p.noSpace && p.deps.DeclaredGone() {
		detail := fmt.Sprintf("the listing lacks %d of %d copies", lacking, live)
		return func(ctx context.Context) error { return p.deps.CloseIncident(ctx, p.Space, detail) }
	}
	p.cursor.Missing = nil
	p.counts[string(Inconclusive)] = lacking
	detail := fmt.Sprintf("the listing lacks %d of %d copies: nothing is concluded from it", lacking, live)
	if p.noSpace {
		detail = fmt.Sprintf("the space is absent, with %d copies on record: nothing is concluded from it", live)
	}
	return func(ctx context.Context) error { return p.deps.OpenIncident(ctx, p.Space, detail) }
}
