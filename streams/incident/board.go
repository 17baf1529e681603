package incident

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

const (
	maxSteps = 100         // that a record carries; those before are in the table of all records
	perStep  = time.Minute // the least time between two steps that only change the detail
)

// The steps that a Board adds.
const (
	stepOpened = "opened"
	stepSeen   = "seen-again"
	stepClosed = "closed"
)

// ErrAnother says that the incident of a key is another one than a person decided about.
var ErrAnother = errors.New("it is another incident than the one that was decided about: look again")

// A Publisher publishes messages, and returns nil when all are acknowledged.
type Publisher interface {
	Publish(ctx context.Context, msgs ...schemas.Message) error
}

// A Board knows the incidents without an item, from the topic incidents, and publishes those that it opens and closes.
// It is safe for concurrent use.
type Board struct {
	pub Publisher
	log *slog.Logger
	// turn holds one value while an incident is published, so that what two callers open is opened once.
	turn chan struct{}

	mu    sync.RWMutex
	known map[string]*pb.Incident // by key, the newest, closed ones too; guarded by mu, and none is ever modified
}

// NewBoard returns a Board that knows of no incident yet: Apply feeds it. It opens and closes nothing that is on record
// as long as the records that the topic holds at the start have been applied first.
func NewBoard(pub Publisher, log *slog.Logger) *Board {
	return &Board{
		pub: pub, log: log.With("part", "incidents"), turn: make(chan struct{}, 1), known: map[string]*pb.Incident{},
	}
}

// Apply takes a record of the topic incidents; nil is a tombstone. Incidents of items are passed over.
func (b *Board) Apply(key []byte, i *pb.Incident) {
	if i.GetItem() != "" {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	held := b.known[string(key)]
	switch {
	case i == nil:
		delete(b.known, string(key))
	case held.GetId() != i.GetId() || held.GetStepCount() <= i.GetStepCount(): // else it is the echo of an older step
		b.known[string(key)] = i
	}
}

// Open publishes the incident about s, with detail, if it is not open. If it is, and its last detail is another one,
// that is published as a further step, at most once a minute. A nil error means that the incident is on record.
func (b *Board) Open(ctx context.Context, s Subject, detail string) error {
	return b.change(ctx, s.Key(), func(i *pb.Incident, now time.Time) *pb.Incident {
		action := stepSeen
		switch {
		case closed(i):
			i, action = reopened(i, s, now), stepOpened
		case lastDetail(i) == detail || now.Sub(i.GetUpdated().AsTime()) < perStep:
			return nil
		}
		return with(i, now, &pb.IncidentStep{Action: action, Detail: detail})
	})
}

// Close publishes that the incident about s is over. Nothing is published if it is not open.
func (b *Board) Close(ctx context.Context, s Subject, detail string) error {
	return b.end(ctx, s.Key(), "", &pb.IncidentStep{Action: stepClosed, Detail: detail})
}

// CloseBy is Close of the incident of a key by the person behind a. If the problem is still there, the role that
// observes it opens the incident again. An error wraps ErrAnother if a names another incident than the one that is open.
func (b *Board) CloseBy(ctx context.Context, key string, a *pb.AdminAction) error {
	if i := b.get(key); !closed(i) && another(i, a.GetIncident()) {
		return fmt.Errorf("close incident %s: %w", key, ErrAnother)
	}
	step := &pb.IncidentStep{Action: stepClosed, Ref: a.GetId(), By: a.GetWho(), Detail: a.GetReason()}
	return b.end(ctx, key, a.GetIncident(), step)
}

// another reports whether i is not the incident of an id; empty: any one.
func another(i *pb.Incident, id string) bool { return id != "" && i.GetId() != id }

// end closes the incident of a key, if it is the one of an id.
func (b *Board) end(ctx context.Context, key, id string, step *pb.IncidentStep) error {
	return b.change(ctx, key, func(i *pb.Incident, now time.Time) *pb.Incident {
		if closed(i) || another(i, id) {
			return nil
		}
		i = with(i, now, step)
		i.State, i.Closed = pb.IncidentState_INCIDENT_STATE_CLOSED, i.GetUpdated()
		return i
	})
}

// IsOpen reports whether the incident about s is open.
func (b *Board) IsOpen(s Subject) bool {
	i := b.get(s.Key())
	return !closed(i)
}

// Accepted reports whether a person closed the incident about s, and it was not opened again.
func (b *Board) Accepted(s Subject) bool {
	i := b.get(s.Key())
	n := len(i.GetSteps())
	return n > 0 && closed(i) && i.GetSteps()[n-1].GetBy() != ""
}

// OpenOf returns the open incidents of a kind, in the order of their keys.
func (b *Board) OpenOf(kind string) []Subject {
	b.mu.RLock()
	defer b.mu.RUnlock()
	var all []Subject
	for _, key := range slices.Sorted(maps.Keys(b.known)) {
		if i := b.known[key]; i.GetKind() == kind && !closed(i) {
			all = append(all, subjectOf(i))
		}
	}
	return all
}

// change publishes what next makes of the newest record of a key, nil if there is none; nothing if that is nil.
func (b *Board) change(ctx context.Context, key string, next func(*pb.Incident, time.Time) *pb.Incident) error {
	if next(b.get(key), time.Now()) == nil { // nearly always
		return nil
	}
	select {
	case <-ctx.Done():
		return fmt.Errorf("publish incident %s: %w", key, context.Cause(ctx))
	case b.turn <- struct{}{}:
	}
	defer func() { <-b.turn }()
	i := next(b.get(key), time.Now())
	if i == nil {
		return nil
	}
	if err := b.pub.Publish(ctx, schemas.Message{Topic: schemas.Incidents, Body: i}); err != nil {
		// It may be on record: then the next call finds it there, or publishes it again.
		return fmt.Errorf("publish incident %s: %w", key, err)
	}
	b.Apply([]byte(key), i)
	step := i.GetSteps()[len(i.GetSteps())-1]
	level := slog.LevelWarn
	if closed(i) {
		level = slog.LevelInfo
	}
	b.log.Log(ctx, level, "publish incident",
		"incident", key, "step", step.GetAction(), "by", step.GetBy(), "detail", step.GetDetail())
	return nil
}

func (b *Board) get(key string) *pb.Incident {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.known[key]
}

// reopened returns the incident about s as it begins. Its steps go on from those of the last time, so that of two
// records the one with more steps is the newer one.
func reopened(last *pb.Incident, s Subject, now time.Time) *pb.Incident {
	i := s.Incident()
	i.State, i.Opened = pb.IncidentState_INCIDENT_STATE_OPEN, timestamppb.New(now)
	i.StepCount, i.Steps = last.GetStepCount(), last.GetSteps()
	return i
}

// with returns i with a further step.
func with(i *pb.Incident, now time.Time, step *pb.IncidentStep) *pb.Incident {
	i = proto.CloneOf(i)
	i.Updated = timestamppb.New(now)
	step = proto.CloneOf(step)
	step.Time = i.Updated
	i.StepCount++
	i.Steps = append(i.Steps, step)
	i.Steps = i.Steps[max(0, len(i.Steps)-maxSteps):]
	return i
}

// closed says that i, which may be nil, is no open incident.
func closed(i *pb.Incident) bool {
	return i == nil || i.GetState() == pb.IncidentState_INCIDENT_STATE_CLOSED
}

func lastDetail(i *pb.Incident) string {
	if n := len(i.GetSteps()); n > 0 {
		return i.GetSteps()[n-1].GetDetail()
	}
	return ""
}

func subjectOf(i *pb.Incident) Subject {
	account := i.GetAccount()
	if account == noAccount {
		account = ""
	}
	return Subject{Account: account, Store: i.GetStore(), Space: i.GetSpace(), Kind: i.GetKind(), Name: i.GetSubject()}
}
