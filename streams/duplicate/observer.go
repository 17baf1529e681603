package duplicate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// markerAge is how old the reading of a marker may be before a write to an absent item.
const markerAge = time.Second

// Stores gives the store of an account; false where there is none of that id.
type Stores interface {
	Store(account, id string) (storage.Store, bool)
}

// Rules tells what is in force for a space; false where the account has no policy.
type Rules interface {
	Rules(account, space string) (policy.Rules, bool)
}

// Records reads what is on record of copies, behind all that has been published when
// it is called, in their order. It is slow; an error means that nothing is known. The manifest's
// record of a copy without an item is about its space: state NONE if the space may be absent.
type Records interface {
	Fresh(ctx context.Context, copies []schemas.Copy) ([]*pb.CopyRecord, error)
}

// A Looker sees both sides of a command as they are now. It is safe for concurrent use.
type Observer struct {
	stores  Stores
	rules   Rules
	records Records
	markers storage.Markers
}

// NewLooker returns a Looker.
func NewObserver(stores Stores, rules Rules, records Records) (*Observer, error) {
	if stores == nil || rules == nil || records == nil {
		return nil, errors.New("look: stores, rules or records are missing")
	}
	return &Observer{stores: stores, rules: rules, records: records}, nil
}

// A Scene is a command with the stores that it is about. The source can only be read.
type Sides struct {
	Command            *pb.DuplicationCommand
	SourceCopy, Copy   schemas.Copy
	SourceStore, Store storage.Store
	rules              policy.Rules
	observer           *Observer
}

// Scene finds the stores of a command. An unknown store is a permanent error, but for
// a pair that is not in the policy, which nobody looks at.
func (l *Observer) Sides(c *pb.DuplicationCommand) (*Sides, error) {
	sc := &Sides{Command: c, observer: l}
	sc.SourceCopy = schemas.Copy{Account: c.GetAccount(), Store: c.GetSourceStore(), Space: c.GetSpace(), Item: c.GetItem()}
	sc.Copy = sc.SourceCopy
	sc.Copy.Store = c.GetDestinationStore()
	if rules, ok := l.rules.Rules(c.GetAccount(), c.GetSpace()); ok {
		sc.rules = rules
	}
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

// Class returns the class and the topic of a command to copy o; large is as in Config.
func (sc *Sides) Class(o storage.Object, large int64) (pb.Priority, schemas.Topic) {
	return sc.rules.Class(o.Size, large)
}

func (sc *Sides) observation() Observation { return Observation{Command: sc.Command, Rules: sc.rules} }

// Look stats both sides at the same time. What could not be seen is Unknown, with its error.
func (sc *Sides) Observe(ctx context.Context) Observation {
	s := sc.observation()
	if sc.Store == nil {
		return s
	}
	s.FoldCase = sc.SourceStore.Capabilities().FoldsPropertyCase || sc.Store.Capabilities().FoldsPropertyCase
	var g errgroup.Group
	g.Go(func() error { s.Source = sc.observer.observeSide(ctx, sc.SourceCopy, sc.SourceStore); return nil })
	g.Go(func() error { s.Destination = sc.observer.observeSide(ctx, sc.Copy, sc.Store); return nil })
	_ = g.Wait() // each side keeps its own error
	sc.observer.confirmSpaceAbsent(ctx, sc.SourceCopy, sc.SourceStore, &s.Source)
	sc.observer.confirmSpaceAbsent(ctx, sc.Copy, sc.Store, &s.Destination)
	return s
}

func (l *Observer) observeSide(ctx context.Context, c schemas.Copy, store storage.Store) Side {
	o, err := store.Stat(ctx, c.Space, c.Item)
	noSpace := errors.Is(err, storage.ErrNoSpace)
	switch {
	case err == nil:
		return Side{Presence: Present, Object: o}
	case !noSpace && !errors.Is(err, storage.ErrNotFound):
		return Side{Err: fmt.Errorf("stat %s: %w", c, err)}
	}
	var absent *storage.AbsentError
	side := Side{Presence: Absent, NoSpace: noSpace}
	if errors.As(err, &absent) {
		side.AbsentAt = absent.At
	}
	if err := l.confirmMarker(ctx, c, store, time.Now()); err != nil {
		return Side{Err: fmt.Errorf("believe that %s is absent: %w", c, err)}
	}
	return side
}

// doubt makes a side unknown whose space is not there and should be. While the records are read, which takes seconds,
// another command may have made the space: the side is looked at again.
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

// mayLack returns nil if the space of c, which is not there, is not expected either. Its error says that whatever was
// in the space is unknown.
func (l *Observer) spaceMayBeAbsent(ctx context.Context, c schemas.Copy) error {
	c.Item = ""
	records, err := l.records.Fresh(ctx, []schemas.Copy{c})
	switch {
	case ctx.Err() != nil && err != nil:
		return context.Cause(ctx)
	case err == nil && len(records) != 1:
		err = fmt.Errorf("found %d records for a space", len(records))
	case err == nil && records[0].GetManifest().GetState() != pb.RecordState_RECORD_STATE_NONE:
		err = errors.New("it is expected and not there")
	}
	if err != nil {
		return retry.Unavailable(fmt.Errorf("believe that space %q of store %s/%s is absent: %w", c.Space, c.Account, c.Store, err))
	}
	return nil
}

// Decide decides, after it has read what the decision needs: records afresh, bytes for
// want of digests. Records take seconds to read, in which either side may be written or deleted: both sides are looked
// at again after it, so s may be another sight then. The error has the class of what did not answer.
func (sc *Sides) Decide(ctx context.Context, s *Observation) (Decision, error) {
	for {
		d := Decide(*s)
		switch d.action {
		case actReadRecords:
			if err := sc.readRecords(ctx, s); err != nil {
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

// readRecords reads the records of both sides, and then looks at both sides again.
func (sc *Sides) readRecords(ctx context.Context, s *Observation) error {
	s.recordsState = recordsFailed
	records, err := sc.observer.records.Fresh(ctx, []schemas.Copy{sc.SourceCopy, sc.Copy})
	if err == nil && len(records) != 2 {
		err = fmt.Errorf("found %d records for 2 copies", len(records))
	}
	if err != nil {
		return retry.Unavailable(fmt.Errorf("read records of %s afresh: %w", sc.Copy, err))
	}
	was := *s
	*s = sc.Observe(ctx)
	s.recordsState = recordsRead
	s.Source.Record, s.Destination.Record = records[0], records[1]
	s.Source.reuseRead(was.Source.Object, was.Source.Read)
	if s.Destination.reuseRead(was.Destination.Object, was.Destination.Read) && was.Destination.Record != nil {
		s.Destination.Record = was.Destination.Record // this execution made it, and it is younger
	}
	return nil
}

// recall adds the digests of the bytes of o, and returns true, if that is the object that is there.
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
	return nil
}

// hash reads one version of a copy for its digests: md5, sha256 and those of like.
func readDigests(ctx context.Context, store storage.Store, c schemas.Copy, version string, like digest.Set) (digest.Set, error) {
	h, err := digest.New(append([]string{digest.MD5, digest.SHA256}, supported(like).Algorithms()...)...)
	if err != nil {
		return nil, err
	}
	r, _, err := store.Open(ctx, c.Space, c.Item, version)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", c, err)
	}
	defer r.Close() // nothing was written to it
	if _, err := h.ReadFrom(r); err != nil {
		return nil, fmt.Errorf("read %s: %w", c, err)
	}
	return h.Sum(), nil
}

// unknown is the error of a decision that could not be made: the worst of both sides'.
func (sc *Sides) unknownError(s Observation, d Decision) error {
	err := s.Source.Err
	if err == nil || s.Destination.Err != nil && retry.ClassOf(s.Destination.Err) > retry.ClassOf(err) {
		err = s.Destination.Err
	}
	if err == nil {
		err = retry.Unavailable(errors.New("a record that is needed is not known"))
	}
	return fmt.Errorf("decide row %s of %s: %w", d.Row, sc.Copy, err)
}
