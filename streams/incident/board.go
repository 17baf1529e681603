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
	maxSteps       = 100         // steps in a record; the table of incidents has the older ones
	detailInterval = time.Minute // shortest time between steps that only change the detail
)

// The steps that a Board adds.
const (
	stepOpened   = "opened"
	stepSeen     = "seen-again"
	stepReminder = "reminder"
	stepApproved = "approved"
	stepRefused  = "refused"
	stepOrdered  = "ordered"
	stepClosed   = "closed"
)

// ErrOtherIncident reports that the open incident of a key is not the one that the decision of an operator names.
var ErrOtherIncident = errors.New("the open incident is not the one that the decision names: list the incidents again")

// A Board holds the incidents without an item, which it reads from the topic incidents, and opens and closes them. It
// is safe for concurrent use.
type Board struct {
	pub schemas.Publisher
	log *slog.Logger
	// publishing is a semaphore of one: it prevents two callers from opening the same incident twice.
	publishing chan struct{}

	mu    sync.RWMutex
	known map[string]*pb.Incident // newest record of each key, closed ones included; guarded by mu, never modified
}

// NewBoard returns a Board without incidents. The caller must apply all records that the topic holds at the start
// before it opens or closes incidents; otherwise the Board would publish incidents again.
func NewBoard(pub schemas.Publisher, log *slog.Logger) *Board {
	return &Board{
		pub: pub, log: log.With("part", "incidents"), publishing: make(chan struct{}, 1), known: map[string]*pb.Incident{},
	}
}

// Apply applies a record of the topic incidents; nil is a tombstone. It ignores incidents of items.
func (b *Board) Apply(key []byte, i *pb.Incident) {
	if i.GetItem() != "" {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	held := b.known[string(key)]
	if i != nil && held.GetId() == i.GetId() && held.GetStepCount() > i.GetStepCount() { // the record is older
		return
	}
	b.set(string(key), i)
}

// set stores the newest record of a key. The caller holds mu.
func (b *Board) set(key string, i *pb.Incident) {
	delete(b.known, key)
	if i != nil {
		b.known[key] = i
	}
}

// published stores i, which was published in place of last. If Apply has had a record of the key meanwhile, it has had
// i, or will have it: of records with as many steps, the last one that it has wins.
func (b *Board) published(key string, last, i *pb.Incident) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.known[key] == last {
		b.set(key, i)
	}
}

// Open opens the incident about s. If it is already open, Open adds a step with detail if that differs from the last
// detail, at most once a minute. A nil error means that the open incident has been published.
func (b *Board) Open(ctx context.Context, s Subject, detail string) error {
	return b.change(ctx, s.Key(), func(i *pb.Incident, now time.Time) *pb.Incident {
		action := stepSeen
		switch {
		case closed(i):
			i, action = reopened(i, s, now), stepOpened
		case lastDetail(i) == detail || now.Sub(i.GetUpdated().AsTime()) < detailInterval:
			return nil
		}
		return withStep(i, now, &pb.IncidentStep{Action: action, Detail: detail})
	})
}

// Close closes the incident about s. It does nothing if the incident is not open.
func (b *Board) Close(ctx context.Context, s Subject, detail string) error {
	return b.closeIf(ctx, s.Key(), "", &pb.IncidentStep{Action: stepClosed, Detail: detail})
}

// CloseBy closes the incident of a key on behalf of the operator who made a. If the problem persists, the role that
// observes it opens the incident again. The error wraps ErrOtherIncident if a refers to another incident than the open
// one.
func (b *Board) CloseBy(ctx context.Context, key string, a *pb.AdminAction) error {
	if i := b.get(key); !closed(i) && differs(i, a.GetIncident()) {
		return fmt.Errorf("close incident %s: %w", key, ErrOtherIncident)
	}
	step := &pb.IncidentStep{Action: stepClosed, Ref: a.GetId(), By: a.GetWho(), Detail: a.GetReason()}
	return b.closeIf(ctx, key, a.GetIncident(), step)
}

// OpenedAgain reports whether the incident of the key of i is open and was opened after i was, so that a decision about
// i is not about it. Without a time of opening in i it is not known.
func (b *Board) OpenedAgain(i *pb.Incident) bool {
	now := b.get(schemas.IncidentKey(i))
	return !closed(now) && i.GetOpened() != nil && now.GetOpened().AsTime().After(i.GetOpened().AsTime())
}

// differs reports whether i has another id than id. An empty id matches every incident.
func differs(i *pb.Incident, id string) bool { return id != "" && i.GetId() != id }

// closeIf closes the incident of a key if it has the given id.
func (b *Board) closeIf(ctx context.Context, key, id string, step *pb.IncidentStep) error {
	return b.change(ctx, key, func(i *pb.Incident, now time.Time) *pb.Incident {
		if closed(i) || differs(i, id) {
			return nil
		}
		i = withStep(i, now, step)
		i.State, i.Closed = pb.IncidentState_INCIDENT_STATE_CLOSED, i.GetUpdated()
		return i
	})
}

// Update sets the detail of the incident about s, in place of the latest one that Update has set since the last other
// step. It does nothing if the incident is not open.
func (b *Board) Update(ctx context.Context, s Subject, detail string) error {
	return b.change(ctx, s.Key(), func(i *pb.Incident, now time.Time) *pb.Incident {
		if closed(i) || lastDetail(i) == detail {
			return nil
		}
		i = withStep(i, now, &pb.IncidentStep{Action: stepSeen, Detail: detail})
		if last := len(i.GetSteps()) - 2; last >= 0 && i.GetSteps()[last].GetAction() == stepSeen {
			i.StepCount--
			i.Steps = slices.Delete(i.Steps, last, last+1)
		}
		return i
	})
}

// Remind adds a reminder to the incident about s if it is open and has waited for so long since it was opened, approved
// or last reminded of.
func (b *Board) Remind(ctx context.Context, s Subject, after time.Duration, detail string) error {
	return b.change(ctx, s.Key(), func(i *pb.Incident, now time.Time) *pb.Incident {
		if closed(i) || now.Sub(lastNotice(i)) < after {
			return nil
		}
		return withStep(i, now, &pb.IncidentStep{Action: stepReminder, Detail: detail})
	})
}

// lastNotice returns when an incident was opened, approved or last reminded of.
func lastNotice(i *pb.Incident) time.Time {
	for _, s := range slices.Backward(i.GetSteps()) {
		switch s.GetAction() {
		case stepOpened, stepReminder, stepApproved, stepRefused:
			return s.GetTime().AsTime()
		}
	}
	return i.GetOpened().AsTime()
}

// WasClosed reports whether the incident about s was opened before and is closed.
func (b *Board) WasClosed(s Subject) bool {
	i := b.get(s.Key())
	return i != nil && closed(i)
}

// IsOpen reports whether the incident about s is open.
func (b *Board) IsOpen(s Subject) bool {
	i := b.get(s.Key())
	return !closed(i)
}

// OpenedAt returns when the incident about s was opened; the zero time if it is not open.
func (b *Board) OpenedAt(s Subject) time.Time {
	i := b.get(s.Key())
	if closed(i) {
		return time.Time{}
	}
	return i.GetOpened().AsTime()
}

// Accepted reports whether an operator closed the incident about s and it has not been opened again.
func (b *Board) Accepted(s Subject) bool {
	for _, step := range slices.Backward(b.get(s.Key()).GetSteps()) {
		if a := step.GetAction(); a == stepClosed || a == stepOpened {
			return a == stepClosed && step.GetBy() != ""
		}
	}
	return false
}

// OpenOf returns the subjects of the open incidents of a kind, ordered by key.
func (b *Board) OpenOf(kind string) []Subject {
	b.mu.RLock()
	defer b.mu.RUnlock()
	open := map[string]Subject{}
	for key, i := range b.known {
		if i.GetKind() == kind && !closed(i) {
			open[key] = SubjectOf(i)
		}
	}
	var all []Subject
	for _, key := range slices.Sorted(maps.Keys(open)) {
		all = append(all, open[key])
	}
	return all
}

// change passes the newest incident of a key, or nil, to next, and publishes the result. It publishes nothing if the
// result is nil.
func (b *Board) change(ctx context.Context, key string, next func(*pb.Incident, time.Time) *pb.Incident) error {
	if next(b.get(key), time.Now()) == nil { // usual case
		return nil
	}
	select {
	case <-ctx.Done():
		return fmt.Errorf("publish incident %s: %w", key, context.Cause(ctx))
	case b.publishing <- struct{}{}:
	}
	defer func() { <-b.publishing }()
	last := b.get(key)
	i := next(last, time.Now())
	if i == nil {
		return nil
	}
	if err := b.pub.Publish(ctx, schemas.Message{Topic: schemas.Incidents, Body: i}); err != nil {
		// The record may have been written all the same: the next call either has read it, or publishes it again.
		return fmt.Errorf("publish incident %s: %w", key, err)
	}
	b.published(key, last, i)
	step := i.GetSteps()[len(i.GetSteps())-1]
	level := slog.LevelWarn
	if closed(i) || step.GetAction() == stepSeen { // an open incident has a warning already
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

// reopened returns a new open incident about s. It continues the steps of last, so that the record with more steps is
// always the newer one.
func reopened(last *pb.Incident, s Subject, now time.Time) *pb.Incident {
	i := s.Incident()
	i.State, i.Opened = pb.IncidentState_INCIDENT_STATE_OPEN, timestamppb.New(now)
	i.StepCount, i.Steps = last.GetStepCount(), last.GetSteps()
	return i
}

// withStep returns a copy of i with a further step.
func withStep(i *pb.Incident, now time.Time, step *pb.IncidentStep) *pb.Incident {
	i = proto.CloneOf(i)
	i.Updated = timestamppb.New(now)
	step = proto.CloneOf(step)
	step.Time = i.Updated
	i.StepCount++
	i.Steps = append(i.Steps, step)
	i.Steps = i.Steps[max(0, len(i.Steps)-maxSteps):]
	return i
}

// closed reports whether i is nil or closed.
func closed(i *pb.Incident) bool {
	return i == nil || i.GetState() == pb.IncidentState_INCIDENT_STATE_CLOSED
}

// lastDetail returns the detail of the latest step of i; empty if there is none.
func lastDetail(i *pb.Incident) string {
	if n := len(i.GetSteps()); n > 0 {
		return i.GetSteps()[n-1].GetDetail()
	}
	return ""
}

// SubjectOf returns what an incident without an item is about.
func SubjectOf(i *pb.Incident) Subject {
	account := i.GetAccount()
	if account == noAccount {
		account = ""
	}
	return Subject{Account: account, Store: i.GetStore(), Space: i.GetSpace(), Kind: i.GetKind(), Name: i.GetSubject()}
}
