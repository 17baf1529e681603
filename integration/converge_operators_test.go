package integration

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/integration/converge"
	"github.com/millrace/millrace/integration/harness"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/incident"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/retry"
)

// runUntilOK repeats a command until it succeeds, because a store or ClickHouse may be unavailable.
func (w *convergeWorld) runUntilOK(ctx context.Context, args ...string) error {
	for begun := time.Now(); ; {
		out, err := exec.CommandContext(ctx, w.binary, append(args, "--config", w.file)...).CombinedOutput()
		if err == nil {
			return nil
		}
		if time.Since(begun) > restoreLimit || retry.Sleep(ctx, 500*time.Millisecond) != nil {
			return fmt.Errorf("millrace %v: %w: %s", args, err, out)
		}
	}
}

// awaitOpen waits until ClickHouse has matching open incidents, and returns them sorted by key.
func (w *convergeWorld) awaitOpen(
	ctx context.Context, limit time.Duration, want func(*pb.Incident) bool,
) (all []*pb.Incident, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for len(all) == 0 {
		all, err = read.OpenIncidents(ctx, w.app.DB(), "")
		all = slices.DeleteFunc(all, func(i *pb.Incident) bool { return !want(i) })
		if len(all) == 0 && retry.Sleep(ctx, 200*time.Millisecond) != nil {
			return nil, fmt.Errorf("no such incident is open: %w", errors.Join(err, context.Cause(ctx)))
		}
	}
	return all, nil
}

// decide approves the repair of a lost source and then closes the incident of another one, each as soon as an incident
// is open. After each decision the steward's process is killed and restarted.
func (w *convergeWorld) decide(t *testing.T, e converge.Event) func(context.Context) error {
	return func(ctx context.Context) error {
		for _, verb := range []string{"approve", "close"} {
			for begun, decided := time.Now(), false; !decided && time.Since(begun) < restoreLimit; {
				waiting, err := w.awaitOpen(ctx, restoreLimit, func(i *pb.Incident) bool {
					// The approval of a copy that came back deletes it, which no client has done.
					// Repairs that are held are approved at once.
					return i.GetState() == pb.IncidentState_INCIDENT_STATE_AWAITING_APPROVAL && !w.isDecided(i.GetId()) &&
						i.GetKind() != "resurrected" && i.GetSpace() != lostSpace
				})
				if err != nil {
					t.Logf("no incident to decide: %v", err)
					return nil // the lost copy may have been put again
				}
				decided = w.decideOn(ctx, t, e, verb, waiting[0])
			}
		}
		return nil
	}
}

// decideOn decides about one incident, and kills and restarts the steward's process. It returns false if the command
// fails: the incident may be closed already. No other fault runs meanwhile.
func (w *convergeWorld) decideOn(
	ctx context.Context, t *testing.T, e converge.Event, verb string, i *pb.Incident,
) bool {
	t.Helper()
	w.events.Lock()
	defer w.events.Unlock()
	if w.isDecided(i.GetId()) { // by another event
		return false
	}
	key := schemas.IncidentKey(i)
	d := decisionOn(i, w.reason(i.GetId()), verb == "close")
	limit, cancel := context.WithTimeout(ctx, hookLimit)
	defer cancel()
	if err := w.runUntilOK(limit, "incident", verb, key, "--reason", d.Reason); err != nil && !w.hasReason(t, d) {
		t.Logf("no decision: %v", err)
		return false
	}
	w.decided.Store(i.GetId(), true)
	w.model.RecordDecision(d)
	w.tookEffect(verb)
	t.Logf("%s %s: %s", verb, key, d.Reason)
	w.awaitStable(ctx, t)
	_ = retry.Sleep(ctx, time.Duration(eventHash(w.seed, e)%300)*time.Millisecond) // returns early at the end of the run
	w.process(e.Target).kill()
	_ = retry.Sleep(ctx, e.For)
	w.start(t, e.Target)
	return true
}

// hasReason reports whether a decision took effect, as it may if its command failed.
func (w *convergeWorld) hasReason(t *testing.T, d converge.Decision) bool {
	t.Helper()
	return slices.ContainsFunc(w.incidents(t), func(i converge.Incident) bool {
		return slices.Contains(i.Reasons, d.Reason)
	})
}

// awaitStable waits, in the short form, until each group has one member for each running process with its role. The
// embedded broker may keep the partitions of a member that ended while it joined.
func (w *convergeWorld) awaitStable(ctx context.Context, t *testing.T) {
	t.Helper()
	if !w.short {
		return
	}
	var joining []string
	for begun := time.Now(); time.Since(begun) < hookLimit; {
		want := w.runningRoles()
		groups, err := harness.Existing(w.cfg.Kafka.Brokers...).Groups(ctx, w.cfg.Kafka.TopicPrefix)
		joining = nil
		for name, g := range groups {
			role, _, _ := strings.Cut(name, ".")
			if n, known := want[role]; known && (g.State != "Stable" || len(g.Members) != n) {
				joining = append(joining, fmt.Sprintf("%s: %s, %d members", name, g.State, len(g.Members)))
			}
		}
		if err == nil && len(joining) == 0 || retry.Sleep(ctx, 200*time.Millisecond) != nil {
			return
		}
	}
	t.Logf("members have not joined within %v: %q", hookLimit, joining)
}

// runningRoles returns the number of running processes of each role.
func (w *convergeWorld) runningRoles() map[string]int {
	n := map[string]int{}
	for name, roles := range processRoles() {
		select {
		case <-w.process(name).exited:
			continue
		default:
		}
		for role := range strings.SplitSeq(roles, ",") {
			n[role]++
		}
	}
	n[string(schemas.RoleState)] = n[string(schemas.RoleSink)]
	return n
}

// decisionOn returns the decision of an operator about an incident.
func decisionOn(i *pb.Incident, reason string, closes bool) converge.Decision {
	return converge.Decision{Copy: copyAt(i), Kind: i.GetKind(), Subject: i.GetSubject(), Closes: closes, Reason: reason}
}

// closeHeld closes the incidents of deletes that wait for approval because of guesses.
func (w *convergeWorld) closeHeld(t *testing.T) {
	t.Helper()
	all := queryRetry(t, w.engine, func() ([]*pb.Incident, error) {
		return read.OpenIncidents(t.Context(), w.app.DB(), "")
	})
	for _, i := range all {
		if i.GetKind() == incident.DeletesHeld {
			d := decisionOn(i, w.reason(i.GetId()), true)
			w.want(t, 0, "", "incident", "close", schemas.IncidentKey(i), "--reason", d.Reason)
			w.model.RecordDecision(d)
		}
	}
}

// tookEffect counts a fault, or a decision of an operator, that had its effect.
func (w *convergeWorld) tookEffect(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.took[name]++
}

// checkCoverage fails the test if a run did not produce the situations it is meant to test: all of them in the short
// form, and items that are put back while they are deleted in the full form, whose other faults are random.
func (w *convergeWorld) checkCoverage(t *testing.T) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	t.Logf("took effect: %v", w.took)
	needed := []string{string(converge.PutBack)}
	if w.short {
		needed = append(needed, "approve", "close", string(converge.Lose), string(converge.LoseAndGuess),
			string(converge.LoseAndPutBack), string(converge.LoseSpace), string(converge.KillCopier),
			string(converge.RemoveStore))
	}
	for _, name := range needed {
		if w.took[name] == 0 {
			t.Errorf("%s: it never took effect", name)
		}
	}
}

// reason returns a unique reason for the decision about an incident.
func (w *convergeWorld) reason(id string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.reasons[id] == "" {
		w.reasons[id] = fmt.Sprintf("decision %d", len(w.reasons)+1)
	}
	return w.reasons[id]
}

// isDecided reports whether an operator has decided about an incident. Its consequences may still be in progress.
func (w *convergeWorld) isDecided(id string) bool {
	_, is := w.decided.Load(id)
	return is
}

// corruptRecord publishes a record that cannot be decoded. In topic policies a new revision follows; for other
// topics an operator closes the incident.
func (w *convergeWorld) corruptRecord(t *testing.T, topic schemas.Topic) {
	t.Helper()
	rec := harness.WriteTo(t, client.Config{Brokers: w.cfg.Kafka.Brokers, Prefix: w.cfg.Kafka.TopicPrefix}, harness.Record{
		Record: schemas.Record{Topic: topic, Key: []byte("acme"), Value: []byte("not what it says")},
	})
	position := fmt.Sprintf("%s/%d@%d", topic, rec.Partition, rec.Offset)
	w.model.RecordFault(converge.CorruptRecord, position)
	err := w.engine.reviveDuring(t, func() error {
		_, err := w.awaitOpen(t.Context(), hookLimit, func(i *pb.Incident) bool {
			return i.GetKind() == incident.RecordUnreadable && i.GetSubject() == position
		})
		return err
	})
	if err != nil {
		t.Errorf("%s cannot be decoded: %v", position, err)
		return
	}
	if topic == schemas.Policies {
		w.reviseAfterCorrupt(t)
		return
	}
	d := converge.Decision{Kind: incident.RecordUnreadable, Subject: position, Closes: true, Reason: w.reason(position)}
	key := incident.Subject{Kind: incident.RecordUnreadable, Name: position}.Key()
	// Each process that reads the record opens the incident: the one that the command has read may not be the last.
	ctx, cancel := context.WithTimeout(t.Context(), hookLimit)
	defer cancel()
	if err := w.runUntilOK(ctx, "incident", "close", key, "--reason", d.Reason); err != nil {
		t.Error(err)
		return
	}
	w.model.RecordDecision(d)
}

// reviseAfterCorrupt publishes a new revision after a record that cannot be decoded. Copies of items that were deleted
// before it may be kept.
func (w *convergeWorld) reviseAfterCorrupt(t *testing.T) {
	t.Helper()
	w.mutating.Lock()
	defer w.mutating.Unlock()
	must(t, w.revise(t.Context(), laterPolicy(w.revision)))
	w.model.AllowLeftCopies()
	wait(t, time.Second) // a delete is later than the revision, and processes have read it
}

// loseSpace removes a space from a store, has its copies checked, and declares it gone when an incident is open. When
// the copies are restored, it declares the space expected again. Meanwhile item p is put again.
func (w *convergeWorld) loseSpace(ctx context.Context, p converge.ItemRef) error {
	defer w.lockItem(converge.ItemRef{Space: p.Space})() // one at a time
	all := itemsOf(p.Space, lostItems)
	for _, other := range all {
		if err := w.awaitCopied(ctx, other, restoreLimit); err != nil {
			return fmt.Errorf("%v before its space is lost: %w", other, err)
		}
	}
	w.model.RecordFault(converge.LoseSpace, lostAt+"/"+p.Space)
	if err := w.removeSpace(ctx, p.Space); err != nil {
		return err
	}
	for _, p := range all {
		w.model.RecordLoss(converge.Copy{Store: lostAt, ItemRef: p})
	}
	if err := w.runUntilOK(ctx, "sweep", "start", "fixity", "--all", "--store", lostAt, "--space", p.Space); err != nil {
		return err
	}
	_, err := w.awaitOpen(ctx, restoreLimit, func(i *pb.Incident) bool {
		return i.GetKind() == incident.SpaceMissing && i.GetStore() == lostAt && i.GetSpace() == p.Space
	})
	if err != nil {
		return fmt.Errorf("space %s: %w", p.Space, err)
	}
	if err := w.apply(ctx,
		converge.Op{ItemRef: p, Kind: converge.Put, User: "ann", Body: "put while the space is missing"}); err != nil {
		return err
	}
	for _, verb := range []string{"gone", "back"} {
		if err := w.runUntilOK(ctx, "space", verb, "acme/"+lostAt+"/"+p.Space, "--reason", "a test"); err != nil {
			return err
		}
		if err := w.awaitRestored(ctx, all); err != nil {
			return fmt.Errorf("after space %s: %w", verb, err)
		}
	}
	return nil
}

// awaitRestored waits until items are copied again. Processes may have been killed so often that a check, its result or
// the command of a repair became a dead letter, which is redriven then.
func (w *convergeWorld) awaitRestored(ctx context.Context, items []converge.ItemRef) error {
	for redriven := false; ; redriven = true {
		var missing error
		for _, p := range items {
			if err := w.awaitRepaired(ctx, p); err != nil {
				missing = fmt.Errorf("%v: %w", p, err)
				break
			}
		}
		if missing == nil || redriven {
			return missing
		}
		for _, topic := range []schemas.Topic{ // not those of records that can never be decoded
			schemas.DuplicationHigh, schemas.DuplicationLow, schemas.FixityHigh, schemas.FixityLow, schemas.FixityResults,
		} {
			if err := w.runUntilOK(ctx, "dead", "redrive", "--topic", string(topic), "--since", "24h",
				"--reason", "processes were killed"); err != nil {
				return errors.Join(missing, err)
			}
		}
	}
}

// awaitRepaired waits until an item of a lost space is copied again, and approves the repairs of the space if they are
// held.
func (w *convergeWorld) awaitRepaired(ctx context.Context, p converge.ItemRef) error {
	for begun := time.Now(); ; {
		err := w.awaitCopied(ctx, p, restoreLimit/6)
		if err == nil || time.Since(begun) > restoreLimit || ctx.Err() != nil {
			return err
		}
		all, err := read.OpenIncidents(ctx, w.app.DB(), "")
		if err != nil {
			continue // ClickHouse is away
		}
		for _, i := range all {
			if i.GetKind() != incident.RepairsHeld || i.GetSpace() != p.Space ||
				i.GetState() != pb.IncidentState_INCIDENT_STATE_OPEN {
				continue
			}
			d := decisionOn(i, w.reason(i.GetId()+begun.String()+time.Now().String()), false)
			args := []string{"incident", "approve", schemas.IncidentKey(i), "--reason", d.Reason, "--config", w.file}
			if exec.CommandContext(ctx, w.binary, args...).Run() == nil { // else none waits, or ClickHouse is away
				w.model.RecordDecision(d)
			}
		}
	}
}

// removeSpace removes a space and everything kept of it from a file store, when the store is available.
func (w *convergeWorld) removeSpace(ctx context.Context, space string) error {
	root := w.root(lostAt)
	for {
		err := os.Rename(filepath.Join(root, space), root+"."+space)
		if err == nil {
			break
		}
		if !errors.Is(err, fs.ErrNotExist) || retry.Sleep(ctx, 200*time.Millisecond) != nil {
			return err
		}
	}
	return errors.Join(os.RemoveAll(root+"."+space), os.RemoveAll(filepath.Join(root, ".millrace", "meta", space)))
}
