package integration

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/integration/harness"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/retry"
)

// change returns version n of an item.
func change(item string, n int) schemas.Message {
	c := &pb.Change{
		Op: pb.Op_OP_ADD, Account: "acme", Store: "1", Space: "maps", Item: item, Version: fmt.Sprintf("v%06d", n),
		Time: timestamppb.New(time.UnixMilli(1_700_000_000_000)),
	}
	c.Id = schemas.ChangeID(c)
	return schemas.Message{Topic: schemas.Changes, Body: c}
}

// changes returns n changes that cycle through items.
func changes(n, items int) (msgs []schemas.Message) {
	for i := range n {
		msgs = append(msgs, change(fmt.Sprint("item-", i%items), i/items))
	}
	return msgs
}

// plan is the handler of these tests: one command per change.
func plan(_ context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
	c := d.Body.(*pb.Change)
	return []schemas.Message{{Topic: schemas.DuplicationHigh, Body: &pb.DuplicationCommand{
		Id: schemas.ID("command", c.GetId()), Cause: c.GetId(), ChangeVersion: c.GetVersion(),
		Account: c.GetAccount(), Space: c.GetSpace(), Item: c.GetItem(), SourceStore: "1", DestinationStore: "2",
		Reason: pb.DuplicationReason_DUPLICATION_REASON_CHANGE,
	}}}, nil
}

// sourcePosition is the position at which a message was first written.
type sourcePosition struct {
	partition int32
	offset    int64
}

// ledger tracks, from the records of the brokers alone, the inputs of the handler plan and their outcomes. It does not
// depend on the code under test.
type ledger struct {
	c         *harness.Cluster
	cfg       client.Config
	group     string
	reader    *harness.Reader
	stopWatch func() // ends watch

	mu          sync.Mutex                // guards the rest
	inputs      map[sourcePosition]string // id of the change; poison has none
	expected    map[string][]string       // by item: ids in the order in which they were written first
	seen        map[string]bool           // ids in expected
	outputs     map[string][]string       // by item: the ids that caused the outputs, in order
	done        map[string]int            // by id: its outputs
	bySource    map[string]int            // by ce_source: its outputs
	lastCommits map[int32]int64           // the commits that the last audit found
	audits      int                       // that could be made
	dead        map[sourcePosition]harness.Record
	retried     map[sourcePosition]bool // was or is in a lane
}

// newLedger returns the ledger of a planner.
func newLedger(t *testing.T, c *harness.Cluster, cfg client.Config) *ledger {
	t.Helper()
	return &ledger{
		stopWatch: func() {}, c: c, cfg: cfg, group: cfg.Prefix + string(schemas.RolePlanner),
		reader: c.Reader(t, cfg, ledgerTopics(cfg)...),
		inputs: map[sourcePosition]string{}, expected: map[string][]string{}, seen: map[string]bool{},
		outputs: map[string][]string{},
		done:    map[string]int{}, bySource: map[string]int{}, dead: map[sourcePosition]harness.Record{},
		retried: map[sourcePosition]bool{},
	}
}

// ledgerTopics returns all topics that a planner's messages can be in.
func ledgerTopics(cfg client.Config) []schemas.Topic {
	topics := []schemas.Topic{schemas.Changes, schemas.DuplicationHigh, schemas.Dead, schemas.Again(schemas.RolePlanner)}
	for _, l := range cfg.Lanes {
		topics = append(topics, schemas.Delay(l.Name))
	}
	return topics
}

// catchUp reads the new records. The caller holds mu.
func (l *ledger) catchUp(ctx context.Context) error {
	recs, err := l.reader.CatchUp(ctx)
	for _, r := range recs {
		err = errors.Join(err, l.addRecord(r))
	}
	return err
}

func (l *ledger) addRecord(r harness.Record) error {
	at := sourcePosition{r.Partition, r.Offset}
	if r.Topic != schemas.Changes && r.Topic != schemas.DuplicationHigh {
		if r.Header(schemas.HeaderOriginTopic) != string(schemas.Changes) {
			return nil // another role's
		}
		partition, err := strconv.ParseInt(r.Header(schemas.HeaderOriginPartition), 10, 32)
		offset, offsetErr := strconv.ParseInt(r.Header(schemas.HeaderOriginOffset), 10, 64)
		if err = errors.Join(err, offsetErr); err != nil {
			return fmt.Errorf("%s/%d@%d has no source: %w", r.Topic, r.Partition, r.Offset, err)
		}
		at = sourcePosition{int32(partition), offset}
		if r.Topic == schemas.Dead {
			l.dead[at] = r
		} else {
			l.retried[at] = true
		}
		return nil
	}
	body, err := schemas.Decode(r.Topic, r.Headers, r.Value)
	if r.Topic == schemas.Changes {
		l.inputs[at] = ""
		if c, ok := body.(*pb.Change); err == nil && ok {
			l.inputs[at] = c.GetId()
			if !l.seen[c.GetId()] {
				l.seen[c.GetId()] = true
				l.expected[c.GetItem()] = append(l.expected[c.GetItem()], c.GetId())
			}
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("output %d@%d: %w", r.Partition, r.Offset, err)
	}
	out := body.(*pb.DuplicationCommand)
	l.done[out.GetCause()]++
	l.bySource[r.Header(schemas.HeaderSource)]++
	l.outputs[out.GetItem()] = append(l.outputs[out.GetItem()], out.GetCause())
	return nil
}

// isSettled reports whether an input has become an output or a dead letter, or waits for a retry.
func (l *ledger) isSettled(at sourcePosition) bool {
	_, dead := l.dead[at]
	return dead || l.retried[at] || l.done[l.inputs[at]] > 0
}

// audit checks the group's commits: every input below a commit is settled, and no commit moves backwards. It can be
// called at any time.
func (l *ledger) audit(ctx context.Context) (committed map[int32]int64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	// Read the commits first: inputs that are settled later do not justify them.
	committed, err = l.committed(ctx)
	if err != nil {
		return nil, err
	}
	if err := l.catchUp(ctx); err != nil {
		return nil, err
	}
	l.audits++
	return committed, l.checkCommits(committed)
}

// committed returns the group's commits. A broker that was frozen may briefly answer as the former coordinator with old
// commits, so a commit counts as moved backwards only if it is still lower a few seconds later.
func (l *ledger) committed(ctx context.Context) (at map[int32]int64, err error) {
	for range 5 {
		at, err = l.c.Committed(ctx, l.group, l.cfg.Prefix+string(schemas.Changes))
		back := slices.ContainsFunc(slices.Collect(maps.Keys(l.lastCommits)),
			func(id int32) bool { return at[id] < l.lastCommits[id] })
		if err != nil || !back {
			return at, err
		}
		if err := retry.Sleep(ctx, time.Second); err != nil {
			return nil, err
		}
	}
	return at, nil
}

// checkCommits is audit without reading new records. The caller holds mu.
func (l *ledger) checkCommits(committed map[int32]int64) error {
	for at := range l.inputs {
		if at.offset < committed[at.partition] && !l.isSettled(at) {
			return &wrongError{"an unsettled change is committed", at, committed[at.partition]}
		}
	}
	for id, was := range l.lastCommits {
		if is := committed[id]; is < was {
			return &wrongError{"a commit moved backwards", sourcePosition{id, was}, is}
		}
	}
	l.lastCommits = committed
	return nil
}

// wrongError is an inconsistency that no audit may find.
type wrongError struct {
	what      string
	at        sourcePosition
	committed int64
}

func (e *wrongError) Error() string {
	return fmt.Sprintf("%s: changes/%d@%d, committed %d", e.what, e.at.partition, e.at.offset, e.committed)
}

// watch audits until the test or the ledger is closed. An inconsistency fails the test. An audit without an answer of
// the brokers is repeated, but at least some audits must succeed.
func (l *ledger) watch(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() {
		for retry.Sleep(ctx, 300*time.Millisecond) == nil {
			_, err := l.audit(ctx)
			var wrong *wrongError
			if errors.As(err, &wrong) {
				done <- err
				return
			}
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		var err error
		if l.audits == 0 {
			err = errors.New("not one audit could be made")
		}
		done <- err
	}()
	l.stopWatch = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(l.stopWatch)
}

// handled returns the number of changes with outputs, and the number of outputs of source.
func (l *ledger) handled(source string) (all, own int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.done), l.bySource[source]
}

// progress waits until n more changes have outputs.
func (l *ledger) progress(t *testing.T, limit time.Duration, n int) {
	t.Helper()
	from, _ := l.handled("")
	harness.Eventually(t, limit, "make progress", func(ctx context.Context) error {
		_, err := l.audit(ctx)
		if is, _ := l.handled(""); is < from+n {
			return fmt.Errorf("%d changes are handled, want %d more (%w)", is, from+n-is, cmpOr(err, errNotYet))
		}
		return nil
	})
}

var errNotYet = errors.New("not yet")

func cmpOr(err, other error) error {
	if err != nil {
		return err
	}
	return other
}

// order checks the outputs of each item: an output may be repeated, but must not precede the output of an earlier
// change. Items with retried messages are skipped.
func (l *ledger) order() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	free := map[string]bool{}
	for at, id := range l.inputs {
		_, dead := l.dead[at]
		free[id] = free[id] || dead || l.retried[at]
	}
	var errs []error
	for item, outputs := range l.outputs {
		asked := l.expected[item]
		if slices.ContainsFunc(asked, func(id string) bool { return free[id] }) {
			continue
		}
		rank := map[string]int{}
		for i, id := range asked {
			rank[id] = i
		}
		next := 0
		for i, id := range outputs {
			n, ok := rank[id]
			if !ok || n > next {
				errs = append(errs,
					fmt.Errorf("%s: output %d is of change %d, want %d or an earlier one (known: %t)", item, i, n, next, ok))
				break
			}
			next = max(next, n+1)
		}
	}
	return errors.Join(errs...)
}

// close waits until the group has committed everything, and does the final checks.
func (l *ledger) close(t *testing.T, limit time.Duration) {
	t.Helper()
	harness.Eventually(t, limit, "handle every change", func(ctx context.Context) error {
		committed, err := l.audit(ctx)
		var wrong *wrongError
		if errors.As(err, &wrong) {
			t.Fatal(err)
		}
		if err != nil {
			return err
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		for at := range l.inputs {
			if at.offset >= committed[at.partition] {
				return fmt.Errorf("changes/%d@%d is not committed", at.partition, at.offset)
			}
		}
		return nil
	})
	l.stopWatch()
	if err := l.order(); err != nil {
		t.Error(err)
	}
	if len(l.inputs) == 0 || len(l.done) == 0 {
		t.Errorf("nothing was tested: %d inputs, %d of them have outputs", len(l.inputs), len(l.done))
	}
	var all int
	for n := range maps.Values(l.done) {
		all += n
	}
	t.Logf("%d inputs: %d have outputs (%d more are repeats), %d dead letters, %d retried",
		len(l.inputs), len(l.done), all-len(l.done), len(l.dead), len(l.retried))
}

// TestLedger checks that the ledger finds each kind of inconsistency, and none in consistent records.
func TestLedger(t *testing.T) {
	id := func(m schemas.Message) string { return m.Body.(*pb.Change).GetId() }
	a, b, c := id(change("x", 0)), id(change("x", 1)), id(change("x", 2))
	for name, tt := range map[string]struct {
		outputs         []string
		retried, dead   []int64
		committed       int64
		before          int64
		wrong, disorder bool
	}{
		"all in order":                   {outputs: []string{a, b, c}, committed: 3},
		"repeats":                        {outputs: []string{a, b, a, b, b, c, a}, committed: 3},
		"not settled, not committed":     {outputs: []string{a, b}, committed: 2},
		"done ahead of the commit":       {outputs: []string{a, b}, committed: 0},
		"committed before it is settled": {outputs: []string{a, b}, committed: 3, wrong: true},
		"one is missing":                 {outputs: []string{a, c}, committed: 3, wrong: true, disorder: true},
		"one is late":                    {outputs: []string{a, c, b}, committed: 3, disorder: true},
		"the first is missing":           {outputs: []string{b}, disorder: true},
		"an unknown cause":               {outputs: []string{a, "other"}, disorder: true},
		"a commit moves backwards":       {outputs: []string{a, b, c}, committed: 1, before: 2, wrong: true},
		"a dead letter instead":          {outputs: []string{a, c}, dead: []int64{1}, committed: 3},
		"retried, so out of order":       {outputs: []string{a, c, b}, retried: []int64{1}, committed: 3},
		"retried, and still in the lane": {outputs: []string{a, c}, retried: []int64{1}, committed: 3},
	} {
		t.Run(name, func(t *testing.T) {
			l := &ledger{
				inputs: map[sourcePosition]string{{0, 0}: a, {0, 1}: b, {0, 2}: c}, expected: map[string][]string{"x": {a, b, c}},
				outputs: map[string][]string{"x": tt.outputs}, done: map[string]int{},
				dead: map[sourcePosition]harness.Record{}, retried: map[sourcePosition]bool{},
				lastCommits: map[int32]int64{0: tt.before},
			}
			for _, id := range tt.outputs {
				l.done[id]++
			}
			for _, at := range tt.retried {
				l.retried[sourcePosition{0, at}] = true
			}
			for _, at := range tt.dead {
				l.dead[sourcePosition{0, at}] = harness.Record{}
			}
			if err := l.checkCommits(map[int32]int64{0: tt.committed}); (err != nil) != tt.wrong {
				t.Errorf("judge: %v, want an error: %t", err, tt.wrong)
			}
			if err := l.order(); (err != nil) != tt.disorder {
				t.Errorf("order: %v, want an error: %t", err, tt.disorder)
			}
		})
	}
}
