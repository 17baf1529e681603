package steward

import (
	"sync"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// reportAfter is the time over which the incidents of one kind in a store are reported together.
const reportAfter = 30 * time.Second

// A group is a kind of incidents in a store.
type group struct{ account, store, kind string }

// reports count the incidents that were opened and are not reported yet.
type reports struct {
	mu     sync.Mutex
	since  time.Time // when the first one was opened; guarded by mu, as counts
	counts map[group]int
}

// logOpened logs that an incident was opened. Report reports it.
func (s *Steward) logOpened(i *pb.Incident, c cause) {
	s.log.Info("open incident",
		"copy", schemas.CopyOf(i).String(), "kind", i.GetKind(), "row", i.GetRow(), "cause", c.ref)
	r := &s.reports
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.counts == nil {
		r.since, r.counts = time.Now(), map[group]int{}
	}
	r.counts[group{i.GetAccount(), i.GetStore(), i.GetKind()}]++
}

// ReportDue reports whether the first incident that is not reported yet has waited long enough.
func (s *Steward) ReportDue() bool {
	r := &s.reports
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.counts != nil && time.Since(r.since) >= reportAfter
}

// Report warns of the incidents that were opened since the last report, with one line for each store and kind. It must
// be called after the last call of Handle.
func (s *Steward) Report() {
	r := &s.reports
	r.mu.Lock()
	counts := r.counts
	r.counts = nil
	r.mu.Unlock()
	for g, n := range counts {
		s.log.Warn("report incidents", "account", g.account, "store", g.store, "kind", g.kind, "count", n)
	}
}
