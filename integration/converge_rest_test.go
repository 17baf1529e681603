package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/integration/converge"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/incident"
)

// idleLimit is how long a run that is not at rest may make no progress. It exceeds the session timeout of group
// members, and their rebalance timeout.
const idleLimit = 3 * time.Minute

// awaitRest waits until no work is left: no group has lag, the delay lanes are empty, and two observations are equal.
// It waits up to limit while there is progress.
func (w *convergeWorld) awaitRest(t *testing.T, limit time.Duration) {
	t.Helper()
	begun := time.Now()
	moved, last := begun, ""
	for {
		w.engine.revive(t)
		lag, written, err := w.lag(t.Context())
		now := fmt.Sprint(lag, written)
		switch {
		case err == nil && len(lag) == 0 && now == last && w.app.Unpublished() == 0:
			t.Logf("at rest after %v", time.Since(begun).Round(100*time.Millisecond))
			return
		case err == nil && now != last:
			moved, last = time.Now(), now
		}
		if time.Since(moved) > idleLimit || time.Since(begun) > limit {
			t.Fatalf("not at rest after %v: %v, %v; in the delay lanes: %v", time.Since(begun), lag, err, w.waiting(t))
		}
		wait(t, 400*time.Millisecond)
	}
}

// waiting returns the messages in the delay lanes and their reasons.
func (w *convergeWorld) waiting(t *testing.T) (all []string) {
	t.Helper()
	for _, lane := range w.cfg.Delay.Lanes {
		topic := schemas.Delay(lane.Name)
		e, err := w.admin.Extent(t.Context(), topic)
		if err != nil {
			return append(all, err.Error())
		}
		done, err := w.admin.Committed(t.Context(), schemas.RoleDelayer, topic)
		if err != nil {
			return append(all, err.Error())
		}
		maps.Copy(e.Starts, done)
		err = w.admin.Read(t.Context(), topic, e, func(d *schemas.Delivery, _ error) error {
			said := map[string]string{}
			for _, h := range d.Headers {
				said[h.Key] = string(h.Value)
			}
			all = append(all, fmt.Sprintf("%s of %s, due %s: %s",
				said[schemas.HeaderOriginTopic], said[schemas.HeaderRole], said[schemas.HeaderDue], said[schemas.HeaderError]))
			return nil
		})
		if err != nil {
			return append(all, err.Error())
		}
	}
	return all
}

// lag returns the lag by role, including messages in delay lanes, and the number of records written.
func (w *convergeWorld) lag(ctx context.Context) (lag map[schemas.Role]int64, written int64, err error) {
	if lag, err = w.admin.Lag(ctx, append(app.Roles(), schemas.RoleState)...); err != nil {
		return nil, 0, err
	}
	maps.DeleteFunc(lag, func(_ schemas.Role, n int64) bool { return n == 0 })
	for _, topic := range []schemas.Topic{
		schemas.Changes, schemas.DuplicationHigh, schemas.DuplicationLow, schemas.Deletions, schemas.DuplicationResults,
		schemas.FixityHigh, schemas.FixityLow, schemas.FixityResults, schemas.Incidents, schemas.Admin, schemas.Dead,
	} {
		ends, err := w.admin.EndOffsets(ctx, topic)
		if err != nil {
			return nil, 0, err
		}
		for _, end := range ends {
			written += end
		}
	}
	return lag, written, nil
}

// listAgain lists each space again of which a listing lacked too much: it was listed while it was lost.
func (w *convergeWorld) listAgain(t *testing.T) {
	t.Helper()
	for _, i := range w.incidents(t) {
		if i.Open && i.Kind == incident.ListingIncomplete {
			w.want(t, 0, "", "sweep", "start", "reconcile", "--store", i.Store, "--space", i.Space, "--wait")
		}
	}
}

// redriveAndCheck redrives dead letters and checks every copy. It returns when all is at rest and every open incident
// has an item, or holds repairs: nobody approves these.
func (w *convergeWorld) redriveAndCheck(t *testing.T, limit time.Duration) {
	t.Helper()
	for _, topic := range []schemas.Topic{schemas.Policies, schemas.Admin} { // records that can never be decoded
		code, out := w.millrace(t, "dead", "discard", "--topic", string(topic), "--cause", "malformed", "--reason",
			"a test made it")
		t.Logf("dead discard: exit code %d: %s", code, strings.TrimSpace(out))
	}
	for range 3 {
		code, out := w.millrace(t, "dead", "redrive", "--since", "24h", "--reason", "the faults are over")
		t.Logf("dead redrive: exit code %d: %s", code, strings.TrimSpace(out))
		if code != 0 || strings.Contains(out, "redriven 0 ") {
			break
		}
		w.awaitRest(t, limit)
	}
	w.closeHeld(t)
	w.listAgain(t)
	w.want(t, 0, "checks requested", "sweep", "start", "fixity", "--all")
	w.awaitRest(t, limit)
	general := func(i converge.Incident) bool { return i.Open && i.Item == "" && i.Kind != incident.RepairsHeld }
	for begun := time.Now(); slices.ContainsFunc(w.incidents(t), general); wait(t, 500*time.Millisecond) {
		if time.Since(begun) > idleLimit {
			t.Errorf("incidents that are not about an item are still open after %v", idleLimit)
			break
		}
	}
	w.awaitRest(t, limit) // the end of an incident is a record, too
}

// verify compares the tables with the topics at rest. A message of a sweep that is published meanwhile is pending, so
// it tries again if there is nothing else.
func (w *convergeWorld) verify(t *testing.T, limit time.Duration) {
	t.Helper()
	for tries := 1; ; tries++ {
		w.awaitRest(t, limit)
		code, out := w.millrace(t, "verify", "--strict", "-o", "json")
		_, last, _ := strings.Cut(out, "{\"ok\":") // after the progress
		line, _, _ := strings.Cut("{\"ok\":"+last, "\n")
		var report struct {
			OK       bool
			Findings int64
			Tables   []struct{ Pending struct{ Messages int64 } }
		}
		if err := json.Unmarshal([]byte(line), &report); err != nil {
			t.Fatalf("millrace verify --strict: exit code %d, %v:\n%s", code, err, out)
		}
		for _, table := range report.Tables {
			report.Findings -= table.Pending.Messages
		}
		switch {
		case report.OK && code == 0:
			w.want(t, 0, "no findings", "verify", "--manifest")
			return
		case report.Findings != 0 || tries == 3:
			t.Fatalf("millrace verify --strict: exit code %d:\n%s", code, out)
		}
		t.Logf("millrace verify --strict: %s", line)
	}
}
