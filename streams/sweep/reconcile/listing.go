package reconcile

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/storage"
)

// A Listing is a listing of the space that other software has made, to be compared in place of Store.List. It is old
// when it is read, so nothing follows from it alone: of each item about which it and the manifest differ, the store is
// asked. An item that they describe alike costs no request.
type Listing struct {
	// ID identifies the rows. A round goes on only with the listing that it has begun with.
	ID string
	// Time is when the listing was made. Copies with a newer record are not compared, since it cannot know them.
	Time time.Time
	// Items returns the items after one, in the order of their bytes. An unknown size is negative, and what else is
	// unknown of an item is zero.
	Items func(ctx context.Context, after string) iter.Seq2[storage.Object, error]
}

var errOtherListing = errors.New("the round has begun with another listing")

// id returns the ID; "" for the listing of the store.
func (l *Listing) id() string {
	if l == nil {
		return ""
	}
	return l.ID
}

// ListingOf returns the ID of the listing with which the round of a cursor has begun; "" if it lists the store, or has
// compared nothing.
func ListingOf(state []byte) (string, error) {
	c, err := decode(state)
	return c.Listing, err
}

// items returns the items of the space after one: those of the listing, if there is one, or of the store.
func (p *part) items(ctx context.Context, after string) iter.Seq2[storage.Object, error] {
	if p.deps.Listing != nil {
		return p.deps.Listing.Items(ctx, after)
	}
	return p.deps.Store.List(ctx, p.Space.Space, after)
}

// firstListed handles a copy as the listing shows it.
func (p *part) firstListed(item string, l look) {
	switch {
	case l.row != nil && l.row.Time.After(p.deps.Listing.Time):
		if p.count(Newer, nil); l.row.Live {
			p.cursor.Live++
		}
		return
	case l.row != nil && l.row.Live:
		p.cursor.Live++
		if l.object != nil && l.row.matches(l.object) {
			p.count(Equal, l.object)
			return
		}
	case l.object == nil:
		return // nothing here, and nothing there
	}
	p.candidates = append(p.candidates, candidate{item: strings.Clone(item), live: l.row != nil && l.row.Live})
}

// matches reports whether the content on record is that of a listed item, as far as the listing shows it: by the size,
// and by version, ETag, or digests if both have them, else by the time. An item of which the listing shows nothing but
// the name matches.
func (r *Row) matches(o *storage.Object) bool {
	agree := r.Digests.Compare(o.Digests)
	switch {
	case r.Size >= 0 && o.Size >= 0 && r.Size != o.Size:
		return false
	case r.Version != "" && o.Version != "":
		return r.Version == o.Version
	case r.ETag != "" && o.ETag != "":
		return r.ETag == o.ETag
	case agree != digest.Incomparable:
		return agree == digest.Agree
	case o.Modified.IsZero():
		return true
	case o.Modified.Nanosecond() == 0: // listings often have whole seconds
		return r.Time.Truncate(time.Second).Equal(o.Modified)
	}
	return r.Time.Truncate(time.Millisecond).Equal(o.Modified.Truncate(time.Millisecond))
}

// looks returns what a second look at the candidates shows, Settle after the first one.
func (p *part) looks(ctx context.Context) ([]second, error) {
	if p.deps.Listing != nil { // it is no look at the store: the first one is now
		all, err := p.statAll(ctx)
		if err != nil {
			return nil, err
		}
		for i := range all {
			p.candidates[i].object = all[i].object
		}
		if p.AppearsWhole {
			return all, nil
		}
		p.listed = time.Now()
	}
	wait := p.Settle - time.Since(p.listed)
	if wait > 0 && slices.ContainsFunc(p.candidates, func(c candidate) bool { return !p.hasSettled(c.object) }) {
		if err := p.deps.Settle(ctx, wait, len(p.candidates)); err != nil {
			return nil, err
		}
	}
	return p.statAll(ctx)
}

// hasSettled reports whether an item that was looked at has not been written to for as long as the second look waits.
// The clock of the store may differ by skew.
func (p *part) hasSettled(o *storage.Object) bool {
	return p.AppearsWhole || o != nil && !o.Changed.IsZero() && p.listed.Sub(o.Changed) > p.Settle+skew
}

// secondListed returns what follows from a look at the store that calls for a.
func (p *part) secondListed(item string, a Action) Action {
	if _, again := p.before[hash(item)]; again && a == Missing {
		p.remember(item)
	}
	switch a {
	case Nothing, Equal:
		return Stale
	case Missing, CheckLost, Deleted:
		p.cursor.Lacking++
	}
	return a
}

// endListed ends a round with a listing. What it is the first to miss is not remembered: it can be the second one of
// two rounds that miss a copy, but not the first. By Config.MaxMissing the first one shows that the store has not lost
// so much of the space that nothing may follow; but a copy that the listing and the manifest have counts as present,
// even if the store has lost it since. For the same reason the round closes no incident. It can open one, since the
// store was asked for each copy that it lacks.
func (p *part) endListed(tooMuch bool) func(context.Context) error {
	if !tooMuch {
		return nil
	}
	p.cursor.Missing, p.cursor.Full = nil, ""
	p.counts[string(Inconclusive)] = p.cursor.Lacking
	detail := fmt.Sprintf("the store lacks %d of %d copies, by a listing of %s and looks "+
		"at what differs: nothing is concluded", p.cursor.Lacking, p.cursor.Live,
		p.deps.Listing.Time.UTC().Format(time.RFC3339))
	return func(ctx context.Context) error { return p.deps.OpenIncident(ctx, p.Space, detail) }
}
