package steward

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/incident"
)

// reportAfter is how long the report of an incident waits for a parent, which is reported in its place.
const reportAfter = 30 * time.Second

// reports are the incidents without a parent that were opened and are not reported yet, the oldest first.
type reports struct {
	mu      sync.Mutex // guards waiting
	waiting []report
}

type report struct {
	key, id string // of the incident
	at      time.Time
	args    []any // of the line
}

// logOpened logs that an incident was opened. It is reported, by a warning, unless it has a parent soon.
func (s *Steward) logOpened(i *pb.Incident, c cause) {
	args := []any{"copy", schemas.CopyOf(i).String(), "kind", i.GetKind(), "row", i.GetRow(), "cause", c.ref}
	s.log.Info("open incident", args...)
	if i.GetParent() == "" {
		s.reports.add(report{schemas.IncidentKey(i), i.GetId(), time.Now(), args})
	}
}

func (r *reports) add(one report) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting = append(r.waiting, one)
}

// putBack adds those that take has returned: they are older than what was added since.
func (r *reports) putBack(all []report) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting = append(all, r.waiting...)
}

func (r *reports) take() []report {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := r.waiting
	r.waiting = nil
	return all
}

// due reports whether the oldest one has waited long enough.
func (r *reports) due() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.waiting) > 0 && time.Since(r.waiting[0].at) >= reportAfter
}

// ReportAll reports the incidents that wait for a parent. It must be called after the last call of Handle.
func (s *Steward) ReportAll() {
	for _, r := range s.reports.take() {
		s.log.Warn("report incident", r.args...)
	}
}

// report makes incidents that are not reported yet children of a parent, if there is one by now, and reports those that
// have waited for it long enough. One that could not become a child is kept.
func (s *Steward) report(ctx context.Context, owns func(key string) bool) error {
	var later []report
	var errs []error
	for _, r := range s.reports.take() {
		done, err := s.join(ctx, r, owns)
		switch {
		case err != nil:
			errs, later = append(errs, err), append(later, r)
		case done:
		case time.Since(r.at) >= reportAfter:
			s.log.Warn("report incident", r.args...)
		default:
			later = append(later, r)
		}
	}
	s.reports.putBack(later)
	return errors.Join(errs...)
}

// join makes the incident of r a child of its parent. It returns false if it has none. One that is closed stays as it
// is, but an open parent is reported in its place, too.
func (s *Steward) join(ctx context.Context, r report, owns func(key string) bool) (done bool, err error) {
	i := s.table.get(r.key)
	if i.GetId() != r.id {
		return false, nil
	}
	cp := schemas.CopyOf(i)
	defer s.lock(cp)()
	i = s.table.get(r.key)
	about := s.parentOf(i)
	switch {
	case i.GetId() != r.id:
		return false, nil
	case i.GetParent() != "":
		return true, nil
	case about.Kind == "":
		return false, nil
	case closed(i), !owns(schemas.ItemKey(cp.Account, cp.Space, cp.Item)):
		return s.board.IsOpen(about), nil
	}
	i = clone(i)
	i.Parent = about.Incident().GetId()
	s.step(i, stepGrouped, cause{ref: i.GetParent(), at: time.Now()}, about.Key())
	if err := s.publisher.Publish(ctx, schemas.Message{Topic: schemas.Incidents, Body: i}); err != nil {
		return false, err
	}
	s.table.set(i)
	return true, nil
}

// parentOf returns the subject of the parent that i should have now; the zero value if it should have none.
func (s *Steward) parentOf(i *pb.Incident) incident.Subject {
	if i == nil {
		return incident.Subject{}
	}
	if held := heldOf(schemas.CopyOf(i).WithoutItem()); i.GetKind() == kindMissing &&
		(s.board.IsOpen(held) || s.table.isNamed(held) && !s.board.Accepted(held)) { // it is about to be opened
		return held
	}
	return groupOf(i, scopeOf(s.table.recent(i)))
}
