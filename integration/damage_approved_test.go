package integration

import (
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse/read"
)

// approve approves all incidents that wait, while the processes of copier, deleter and sink, and of checker and
// steward, are killed, and checks what was promised: copies are as before the damage, items that came back are deleted,
// and nothing else is touched.
func (w *damagedWorld) approve(before, damaged map[schemas.Copy]copyState, kills int) {
	w.t.Helper()
	roles := killedRoles()
	results := func() int { return w.published(w.t, schemas.DuplicationResults) }
	killed := 0
	for begun, from := time.Now(), results(); ; wait(w.t, 300*time.Millisecond) {
		w.engine.revive(w.t)
		waiting, open := w.openIncidents()
		if len(open) == 0 && killed >= kills {
			break
		}
		if time.Since(begun) > 4*time.Minute {
			w.t.Errorf("%d incidents are open, after %d kills: %v", len(open), killed, open[:min(len(open), 5)])
			return
		}
		if len(waiting) > 0 {
			args := append([]string{"incident", "approve", "--reason", "looked at it"}, waiting...)
			if code, out := w.millrace(w.t, args...); code != 0 {
				w.t.Logf("approve: exit code %d: %.300s", code, out)
			}
		}
		if killed < kills && (results() > from || len(open) == 0) {
			w.replace(roles[killed%len(roles)])
			killed, from = killed+1, results()
		}
	}
	w.compareApproved(before, damaged)
}

// openIncidents returns the keys of the incidents that wait for approval, and those that are open and will be closed.
func (w *damagedWorld) openIncidents() (waiting, open []string) {
	w.t.Helper()
	all := queryRetry(w.t, w.engine, func() ([]*pb.Incident, error) {
		return read.SelectIncidents(w.t.Context(), w.app.DB(), read.IncidentSelection{Closed: true})
	})
	for _, i := range all {
		h, ok := w.by[schemas.CopyOf(i)]
		if !ok || i.GetKind() != h.kind || h.ends == isOpen || i.GetState() == isRepaired {
			continue
		}
		key := schemas.IncidentKey(i)
		if open = append(open, key); i.GetState() == isAsked {
			waiting = append(waiting, key)
		}
	}
	return waiting, open
}

// compareApproved compares what the stores have with what they had before the damage.
func (w *damagedWorld) compareApproved(before, damaged map[schemas.Copy]copyState) {
	w.t.Helper()
	for at, now := range w.states() {
		h, hit := w.by[at]
		was := before[at]
		switch {
		case hit && h.ends != isOpen:
			if now.present != was.present || now.sum != was.sum || now.properties != was.properties {
				w.t.Errorf("%v, damaged by %q, is %+v after the approval, and was %+v", at, h.name, now, was)
			}
		case now != damaged[at]:
			w.t.Errorf("%v, damaged by %q, was touched: it is %+v, and was %+v", at, h.name, now, damaged[at])
		}
	}
}
