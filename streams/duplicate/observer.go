package duplicate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/record"
)

// markerAge is the maximum age of the reading of a marker before a write to an absent item.
const markerAge = time.Second

// recent is the age of Changes, and of the records in a sweep's command, from which records are read. A wrong clock of
// the process makes it read more of them.
const recent = time.Hour

// Stores returns the stores of accounts; false if the account has no such store.
type Stores interface {
	Store(account, id string) (storage.Store, bool)
}

// Rules returns the rules in force for a space; false if the account has no policy.
type Rules interface {
	Rules(account, space string) (policy.Rules, bool)
}

// Records reads the records of copies. Fresh returns one for each copy, in order, that includes all that was published
// before the call. It takes seconds; after an error nothing is known. The record of a copy without an item is about its
// space: its manifest has state NONE if the space may be absent, and its audit record is that of SpaceSide.
type Records interface {
	Fresh(ctx context.Context, copies []schemas.Copy) ([]*pb.CopyRecord, error)
}

// FreshRecords reads the records of copies afresh. what names them in the error, which has the class unavailable.
func FreshRecords(ctx context.Context, r Records, what any, copies ...schemas.Copy) ([]*pb.CopyRecord, error) {
	records, err := r.Fresh(ctx, copies)
	if err == nil && len(records) != len(copies) {
		err = fmt.Errorf("found %d records for %d copies", len(records), len(copies))
	}
	if err != nil {
		return nil, retry.Unavailable(fmt.Errorf("read records of %s afresh: %w", what, err))
	}
	return records, nil
}

// Lists returns the exclusion lists of rules, in order. An error is one of class unavailable.
type Lists interface {
	Lists(ctx context.Context, refs []policy.ExcludeList) ([]*policy.List, error)
}

// An Observer observes both sides of commands. It is safe for concurrent use.
type Observer struct {
	stores  Stores
	rules   Rules
	records Records
	lists   Lists
	markers storage.Markers
	// external reports whether another program was expected to write an object of that time; nil: never.
	external func(c schemas.Copy, modified time.Time) bool
	now      func() time.Time
	apart    func(time.Time) time.Duration
}

// NewObserver returns an Observer. lists may be nil: then the commands of spaces with exclusion lists wait.
func NewObserver(stores Stores, rules Rules, records Records, lists Lists) (*Observer, error) {
	if stores == nil || rules == nil || records == nil {
		return nil, errors.New("observer: stores, rules or records are missing")
	}
	l := &Observer{stores: stores, rules: rules, records: records, lists: lists, now: time.Now}
	l.apart = func(t time.Time) time.Duration { return l.now().Sub(t).Abs() }
	return l, nil
}

// Sides are the source and the destination of one command, with the rules that were in force at the last observation.
// The source's store is read-only.
type Sides struct {
	Command            *pb.DuplicationCommand
	SourceCopy, Copy   schemas.Copy
	SourceStore, Store storage.Store
	rules              policy.Rules
	lists              []*policy.List // those of rules, once they were read
	observer           *Observer
	read               time.Time // when a sweep had read the records that its command carries, at the latest
}

// Sides returns the sides of a command. An unknown store is a permanent error, unless the pair is not in the policy:
// then no store is used.
func (l *Observer) Sides(c *pb.DuplicationCommand) (*Sides, error) {
	sc := &Sides{Command: c, observer: l}
	sc.SourceCopy, sc.Copy = schemas.CopiesOf(c)
	source, okSource := l.stores.Store(c.GetAccount(), c.GetSourceStore())
	destination, ok := l.stores.Store(c.GetAccount(), c.GetDestinationStore())
	if !okSource || !ok {
		if sc.observation().inPolicy() || c.GetReason() == pb.DuplicationReason_DUPLICATION_REASON_REPAIR {
			return nil, retry.Permanent(fmt.Errorf("find stores %q and %q of account %q: one is unknown",
				c.GetSourceStore(), c.GetDestinationStore(), c.GetAccount()))
		}
		return sc, nil
	}
	sc.SourceStore, sc.Store = storage.ReadOnly(source), destination
	return sc, nil
}

// Class returns the class and the topic of a command to copy o; large is Config.Large.
func (sc *Sides) Class(o storage.Object, large int64) (pb.Priority, schemas.Topic) {
	return sc.rules.Class(o.Size, large)
}

// readRules reads the rules that are in force now into s.
func (sc *Sides) readRules(s *Observation) {
	s.Rules, _ = sc.observer.rules.Rules(sc.Command.GetAccount(), sc.Command.GetSpace()) // without: no pairs
	if !slices.Equal(s.Rules.ExcludeLists, sc.rules.ExcludeLists) {
		sc.lists = nil
	}
	sc.rules, s.lists, s.Hold = s.Rules, sc.lists, nil
	if h, ok := s.Rules.Hold(sc.Command.GetItem(), time.Now()); ok {
		s.Hold = &h
	}
}

// Hold returns the hold of the item, or of the space, that is in force now; nil if there is none.
func (sc *Sides) Hold() *policy.Hold { return sc.observation().Hold }

// Confirm is called right before the act of d, the decision about s: the records, the brake or a stream may have been
// waited for since. If the rules that are in force now lead to another decision, it returns ErrChanged.
func (sc *Sides) Confirm(s Observation, d Decision) error {
	sc.readRules(&s)
	return d.confirm(Decide(s))
}

func (d Decision) confirm(now Decision) error {
	if now.Row != d.Row || now.action != d.action || now.NeedsApproval != d.NeedsApproval {
		return fmt.Errorf("%w: by the rules in force now, row %s applies, not %s", storage.ErrChanged, now.Row, d.Row)
	}
	return nil
}

// observation returns an observation of neither side, with the rules that are in force now.
func (sc *Sides) observation() Observation {
	s := Observation{Command: sc.Command}
	known := schemas.ChangedAt(sc.Command).AsTime()
	if bySweep(sc.Command) {
		known = sc.read
	}
	s.old = sc.observer.apart(known) > recent
	sc.readRules(&s)
	return s
}

// Observe stats both sides concurrently. A side that cannot be observed is Unknown and has the error.
func (sc *Sides) Observe(ctx context.Context) Observation {
	if sc.Store == nil {
		return sc.observation()
	}
	var from, to Side
	var g errgroup.Group
	g.Go(func() error { from = sc.observer.observeSide(ctx, sc.SourceCopy, sc.SourceStore); return nil })
	g.Go(func() error { to = sc.observer.observeSide(ctx, sc.Copy, sc.Store); return nil })
	_ = g.Wait() // each side holds its own error
	sc.observer.confirmSpaceAbsent(ctx, sc.SourceCopy, sc.SourceStore, &from)
	sc.observer.confirmSpaceAbsent(ctx, sc.Copy, sc.Store, &to)
	s := sc.observation() // now, since records may have been waited for
	s.Source, s.Destination = from, to
	s.FoldCase = sc.SourceStore.Capabilities().FoldsPropertyCase || sc.Store.Capabilities().FoldsPropertyCase
	return s
}

func (l *Observer) observeSide(ctx context.Context, c schemas.Copy, store storage.Store) Side {
	o, err := store.Stat(ctx, c.Space, c.Item)
	noSpace := errors.Is(err, storage.ErrNoSpace)
	switch {
	case err == nil:
		now := o.ObservedAt
		if now.IsZero() {
			now = l.now()
		}
		external := l.external != nil && l.external(c, o.Modified) && !record.IsAhead(o, now)
		return Side{Presence: Present, Object: o, ExternalWrites: external,
			SetsProperties: store.Capabilities().SetProperties}
	case !noSpace && !errors.Is(err, storage.ErrNotFound):
		return Side{Err: fmt.Errorf("stat %s: %w", c, err)}
	}
	var absent *storage.AbsentError
	side := Side{Presence: Absent, NoSpace: noSpace}
	if errors.As(err, &absent) {
		side.AbsentAt = absent.At
	}
	if err := l.confirmMarker(ctx, c, store, time.Now()); err != nil {
		return Side{Err: fmt.Errorf("confirm that %s is absent: %w", c, err)}
	}
	return side
}

// confirmSpaceAbsent makes a side unknown if its space is absent and expected. Reading the records takes seconds, in
// which another command may create the space, so the side is observed again.
func (l *Observer) confirmSpaceAbsent(ctx context.Context, c schemas.Copy, store storage.Store, s *Side) {
	if !s.NoSpace {
		return
	}
	err := l.spaceMayBeAbsent(ctx, c)
	if err == nil {
		return
	}
	if *s = l.observeSide(ctx, c, store); s.NoSpace {
		*s = Side{Err: err}
	}
}

// spaceMayBeAbsent returns nil if the records do not expect the space of c, which is absent. After an error the items
// of the space are unknown.
func (l *Observer) spaceMayBeAbsent(ctx context.Context, c schemas.Copy) error {
	records, err := l.records.Fresh(ctx, []schemas.Copy{c.WithoutItem()})
	switch {
	case ctx.Err() != nil && err != nil:
		return context.Cause(ctx)
	case err == nil && len(records) != 1:
		err = fmt.Errorf("found %d records for a space", len(records))
	case err == nil && records[0].GetManifest().GetState() != pb.RecordState_RECORD_STATE_NONE:
		err = errors.New("it is expected and absent")
	}
	if err != nil {
		return retry.Unavailable(fmt.Errorf("confirm that space %q of store %s/%s is absent: %w",
			c.Space, c.Account, c.Store, err))
	}
	return nil
}

// Decide decides, and reads what the decision needs: exclusion lists, fresh records, or bytes to compute digests. While
// records are read either side may change, so both are observed again and s is replaced. The error has the class of the
// side or record that is unknown.
func (sc *Sides) Decide(ctx context.Context, s *Observation) (Decision, error) {
	for {
		d := Decide(*s)
		switch d.action {
		case actReadRecords:
			if err := sc.readRecords(ctx, s); err != nil {
				return d, err
			}
		case actReadLists:
			if err := sc.readLists(ctx, s); err != nil {
				return d, err
			}
		case actReadBytes:
			if err := sc.readBytes(ctx, s, d); err != nil {
				return d, err
			}
		case actFail:
			return d, sc.unknownError(*s, d)
		default:
			return d, nil
		}
	}
}

// readLists reads the exclusion lists of the rules.
func (sc *Sides) readLists(ctx context.Context, s *Observation) (err error) {
	if sc.observer.lists == nil {
		return retry.Unavailable(errors.New("this process reads no exclusion lists"))
	}
	if sc.lists, err = sc.observer.lists.Lists(ctx, sc.rules.ExcludeLists); err != nil {
		return err
	}
	if len(sc.lists) != len(sc.rules.ExcludeLists) {
		return retry.Unavailable(errors.New("some exclusion lists are missing"))
	}
	sc.readRules(s)
	return nil
}

// readRecords reads the records of both sides, and then observes both sides again.
func (sc *Sides) readRecords(ctx context.Context, s *Observation) error {
	s.recordsState = recordsFailed
	records, err := FreshRecords(ctx, sc.observer.records, sc.Copy, sc.SourceCopy, sc.Copy)
	if err != nil {
		return err
	}
	was := *s
	*s = sc.Observe(ctx)
	s.recordsState = recordsRead
	s.Source.Record, s.Destination.Record = records[0], records[1]
	s.Source.reuseRead(was.Source.Object, was.Source.Read)
	if s.Destination.reuseRead(was.Destination.Object, was.Destination.Read) && was.Destination.Record != nil {
		s.Destination.Record = was.Destination.Record // this execution wrote it after the records were read
	}
	if sc.Command.GetReason() == pb.DuplicationReason_DUPLICATION_REASON_REPAIR {
		return sc.deletedMeanwhile(was.Destination, s.Destination)
	}
	return nil
}

// deletedMeanwhile returns ErrChanged if a copy that was present before its records were read is absent after that: the
// records may be older than the delete, which a repair would undo.
func (sc *Sides) deletedMeanwhile(before, after Side) error {
	if before.Presence == Present && after.Presence == Absent {
		return fmt.Errorf("%s was deleted while its records were read: %w", sc.Copy, storage.ErrChanged)
	}
	return nil
}

// reuseRead adds digests that were read from the bytes of o, and returns true, if o is still the side's object.
func (s *Side) reuseRead(o storage.Object, read digest.Set) bool {
	same := s.Presence == Present && s.Object.Version == o.Version
	if same {
		s.Read = read
	}
	return same
}

func (sc *Sides) readBytes(ctx context.Context, s *Observation, d Decision) error {
	for _, r := range []struct {
		wanted bool
		copy   schemas.Copy
		store  storage.Store
		side   *Side
	}{
		{d.ReadSource, sc.SourceCopy, sc.SourceStore, &s.Source},
		{d.ReadDestination, sc.Copy, sc.Store, &s.Destination},
	} {
		if !r.wanted {
			continue
		}
		read, err := readDigests(ctx, r.store, r.copy, r.side.Object.Version, s.reported().digests)
		if err != nil {
			return err
		}
		r.side.Read = read
	}
	sc.readRules(s) // now, since that may take hours
	return nil
}

// readDigests reads one version of a copy and returns its MD5, its SHA-256 and the digests of like's algorithms.
func readDigests(
	ctx context.Context, store storage.Store, c schemas.Copy, version string, like digest.Set,
) (digest.Set, error) {
	h, err := digest.New(append([]string{digest.MD5, digest.SHA256}, supported(like).Algorithms()...)...)
	if err != nil {
		return nil, err
	}
	r, _, err := store.Open(ctx, c.Space, c.Item, version)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", c, err)
	}
	defer r.Close() // only read from
	if _, err := h.ReadFrom(r); err != nil {
		return nil, fmt.Errorf("read %s: %w", c, err)
	}
	return h.Sum(), nil
}

// unknownError is the error of a decision that could not be made: of both sides' errors, the one of the worse class.
func (sc *Sides) unknownError(s Observation, d Decision) error {
	err := s.Source.Err
	if err == nil || s.Destination.Err != nil && retry.ClassOf(s.Destination.Err) > retry.ClassOf(err) {
		err = s.Destination.Err
	}
	if err == nil {
		err = retry.Unavailable(errors.New("a record that is needed is unknown"))
	}
	return fmt.Errorf("decide row %s of %s: %w", d.Row, sc.Copy, err)
}
