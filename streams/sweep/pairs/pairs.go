// Package pairs sweeps the pairs of policies: it compares the listings of a space in a source and in a destination
// store, and returns a command for each item that differs. In a round over listings that do not change, every
// difference has one command, and nothing else has one.
//
// Both listings are sorted by item id and merged, in constant memory and without a request for any item. A listing has
// sizes, and in some stores digests and properties. A copy with the size of its source and no digest in common counts
// as equal: the checks of the fixity sweep find a difference of its content.
//
// An error of a listing fails the page: what was not listed is unknown, not absent. So does a store whose marker cannot
// be read before the listings and again after them. A space counts as absent in a store that says so first, and whose
// marker is read afterwards.
//
// A page reads the listings, then the markers, then the records of the items that differ. The executor of a command
// observes both sides after that, and uses a record in the command only if it agrees with the observation, so that a
// Change in between makes a record useless, not wrong. For one thing the executor relies on the command alone: only a
// command that is not if_absent may overwrite a copy, or delete one without approval. So a command is if_absent unless
// the source's record comes from a client's report, a copy or an import, and says what the listing says: it describes
// the listed content, or the item was deleted.
package pairs

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/sweep"
	"github.com/millrace/millrace/streams/sweep/merge"
)

// ErrNotInPolicy ends the sweep of a pair that is no longer in the policy. It is permanent.
var ErrNotInPolicy = errors.New("pair is not in the policy")

// A Pair is a space that is copied from one store to another.
type Pair struct {
	Account, Space, Source, Destination string
}

// Split returns the name of the pair's split.
func (p Pair) Split() string { return schemas.Key(p.Account, p.Space, p.Source, p.Destination) }

// The defaults of Config.
const (
	defaultMaxEntries  = 50_000
	defaultMaxCommands = 1000
)

// Config configures the sweep of one pair.
type Config struct {
	Pair
	// Full publishes a command for every item that is not excluded, and one for the space.
	Full bool
	// Large is the smallest size in bytes of items of class large; 0: none are.
	Large int64
	// MaxEntries and MaxCommands bound a page: the ids that are compared, and the commands about items [50,000, 1,000].
	MaxEntries, MaxCommands int
	// Items reports whether an item is compared; the others count as excluded. nil: all are.
	Items func(item string) bool
}

// A Store is the part of storage.Store that the sweep uses.
type Store interface {
	Capabilities() storage.Capabilities
	List(ctx context.Context, space, after string) iter.Seq2[storage.Object, error]
	Marker(ctx context.Context) error
}

// Rules returns the rules in force for a space; false if the account has no policy.
type Rules interface {
	Rules(account, space string) (policy.Rules, bool)
}

// Lists returns the exclusion lists of rules, in order. An error is one of class unavailable.
type Lists interface {
	Lists(ctx context.Context, refs []policy.ExcludeList) ([]*policy.List, error)
}

// Records reads the records of copies. Fresh returns one for each copy, in order, that includes all that was published
// before the call. After an error nothing is known.
type Records interface {
	Fresh(ctx context.Context, copies []schemas.Copy) ([]*pb.CopyRecord, error)
}

// Deps are the dependencies of a sweep.
type Deps struct {
	Source, Destination Store
	Rules               Rules
	Records             Records
	// Lists may be nil: then the pages of spaces with exclusion lists fail.
	Lists Lists
}

// New returns the sweep of one pair. The cursor of a page is the last id that both sides were compared at.
//
// The sweep counts the items and bytes of each finding: equal, missing, extra, different, excluded and unknown, and
// equal_bytes and so on. The size of an item is that at the source if it is there. Items that are unknown are counted
// and only published with Full. If a space is absent on one side, the first page has a command for the space itself.
func New(c Config, d Deps) (sweep.Sweep, error) {
	switch {
	case c.Account == "" || c.Space == "" || c.Source == "" || c.Destination == "" || c.Source == c.Destination:
		return nil, errors.New("pair sweep: account, space or stores are missing, or both stores are the same")
	case c.Large < 0 || c.MaxEntries < 0 || c.MaxCommands < 0:
		return nil, errors.New("pair sweep: large, max entries or max commands is negative")
	case d.Source == nil || d.Destination == nil || d.Rules == nil || d.Records == nil:
		return nil, errors.New("pair sweep: stores, rules or records are missing")
	}
	if c.MaxEntries == 0 {
		c.MaxEntries = defaultMaxEntries
	}
	if c.MaxCommands == 0 {
		c.MaxCommands = defaultMaxCommands
	}
	return (&pairSweep{c, d}).page, nil
}

// A pairSweep is the sweep of one pair.
type pairSweep struct {
	Config
	deps Deps
}

func (s *pairSweep) page(ctx context.Context, round sweep.Round, cursor []byte) (sweep.Page, error) {
	by, err := s.criteria(ctx)
	if err != nil {
		return sweep.Page{}, err
	}
	if err := s.confirmMarkers(ctx); err != nil {
		return sweep.Page{}, err
	}
	c, err := s.compare(ctx, by, string(cursor))
	if err != nil {
		return sweep.Page{}, err
	}
	if err := s.confirmMarkers(ctx); err != nil {
		return sweep.Page{}, err
	}
	commands, err := s.commands(ctx, round, by.rules, c.emitted)
	if err != nil {
		return sweep.Page{}, err
	}
	if len(cursor) == 0 && (c.source.absent != c.destination.absent || s.Full && !c.source.absent) {
		commands = slices.Insert(commands, 0, s.spaceCommand(round, by.rules))
	}
	page := sweep.Page{Messages: commands, Counts: c.counts(), Emitted: int64(len(commands)), Last: c.last}
	if !page.Last {
		page.Next = []byte(c.cursor)
	}
	for _, m := range commands {
		if err := schemas.Validate(m.Body); err != nil {
			return sweep.Page{}, fmt.Errorf("make a command: %w", err)
		}
	}
	return page, nil
}

// criteria returns what decides about the entries of a page: the rules in force now, and their exclusion lists.
func (s *pairSweep) criteria(ctx context.Context) (criteria, error) {
	rules, ok := s.deps.Rules.Rules(s.Account, s.Space)
	if !ok || !slices.Contains(rules.Pairs, policy.Pair{Source: s.Source, Destination: s.Destination}) {
		return criteria{}, retry.Permanent(fmt.Errorf("sweep space %q from store %s to %s: %w",
			s.Space, s.Source, s.Destination, ErrNotInPolicy))
	}
	by := criteria{rules: rules, foldCase: s.deps.Source.Capabilities().FoldsPropertyCase ||
		s.deps.Destination.Capabilities().FoldsPropertyCase}
	if len(rules.ExcludeLists) == 0 {
		return by, nil
	}
	if s.deps.Lists == nil {
		return criteria{}, retry.Unavailable(errors.New("this process reads no exclusion lists"))
	}
	var err error
	if by.lists, err = s.deps.Lists.Lists(ctx, rules.ExcludeLists); err != nil {
		return criteria{}, fmt.Errorf("read the exclusion lists: %w", err)
	}
	if len(by.lists) != len(rules.ExcludeLists) {
		return criteria{}, retry.Unavailable(errors.New("some exclusion lists are missing"))
	}
	return by, nil
}

// confirmMarkers returns nil if both stores are the expected ones now.
func (s *pairSweep) confirmMarkers(ctx context.Context) error {
	for _, of := range []struct {
		id    string
		store Store
	}{{s.Source, s.deps.Source}, {s.Destination, s.deps.Destination}} {
		if err := of.store.Marker(ctx); err != nil {
			return fmt.Errorf("read marker of store %s/%s: %w", s.Account, of.id, err)
		}
	}
	return nil
}

// A comparison is the comparison of a part of both listings.
type comparison struct {
	source, destination side
	items, bytes        [findings]int64
	// emitted are the entries that get a command.
	emitted []found
	// cursor is the last id; last: both listings have ended.
	cursor string
	last   bool
}

// A found is an entry with its finding.
type found struct {
	entry
	finding
}

func (c *comparison) counts() map[string]int64 {
	counts := make(map[string]int64, 2*findings)
	for f := range findings {
		counts[f.String()], counts[f.String()+"_bytes"] = c.items[f], c.bytes[f]
	}
	return counts
}

// aliveEvery is the number of entries after which a comparison reports that it makes progress.
const aliveEvery = 1024

// compare compares the listings after an id until both have ended or the page is full.
func (s *pairSweep) compare(ctx context.Context, by criteria, after string) (*comparison, error) {
	space := schemas.Copy{Account: s.Account, Space: s.Space}
	c := &comparison{
		source:      side{Store: s.deps.Source, space: space.In(s.Source)},
		destination: side{Store: s.deps.Destination, space: space.In(s.Destination)},
		last:        true,
	}
	id := func(o storage.Object) string { return o.Item }
	n := 0
	for e, err := range merge.Sorted(c.source.list(ctx, after), id, c.destination.list(ctx, after), id) {
		if err != nil {
			return nil, err
		}
		f := excluded
		if s.Items == nil || s.Items(e.Key) {
			f = by.decide(&e)
		}
		emit := f.differs() || s.Full && f != excluded
		if emit && storage.CheckItem(e.Key) != nil {
			f, emit = unknown, false // no message can name it
		}
		c.items[f]++
		c.bytes[f] += size(&e)
		if emit {
			c.emitted = append(c.emitted, found{e, f})
		}
		if n++; n%aliveEvery == 0 {
			retry.Alive(ctx)
		}
		if n == s.MaxEntries || len(c.emitted) == s.MaxCommands {
			c.cursor, c.last = e.Key, false
			break
		}
	}
	return c, nil
}

// A side is the space in one store.
type side struct {
	Store
	space schemas.Copy
	// absent: the store said that it lacks the space.
	absent bool
}

// list lists the space after an id. If the store says that it lacks the space, before it lists anything, the listing is
// empty.
func (s *side) list(ctx context.Context, after string) iter.Seq2[storage.Object, error] {
	return func(yield func(storage.Object, error) bool) {
		begun := false
		for o, err := range storage.Sorted(after, s.List(ctx, s.space.Space, after)) {
			switch {
			case err != nil && !begun && errors.Is(err, storage.ErrNoSpace):
				s.absent = true
				return
			case err != nil:
				yield(storage.Object{}, fmt.Errorf("list space %q of store %s/%s: %w",
					s.space.Space, s.space.Account, s.space.Store, err))
				return
			}
			begun = true
			if !yield(o, nil) {
				return
			}
		}
	}
}
