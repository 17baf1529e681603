package fixity

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// StoreSettings configure the checks of the copies in one store.
type StoreSettings struct {
	// NeverRead: checks do not read bytes of the store.
	NeverRead bool
	// NeverReadSince is when NeverRead came into force. What a check found before is still re-checked by reading.
	NeverReadSince time.Time
	// SamplePercent is the share of the copies, in percent, that checks of sweeps read in one Config.Period; 0
	// reads all. The sample is a function of the copy and the number of the period: within 100/SamplePercent periods each
	// copy is read once. Checks for other reasons always read.
	SamplePercent int
	// ExternalWrites: programs other than millrace's clients are expected to write to the store.
	ExternalWrites bool
	// ExternalWritesSince is when ExternalWrites came into force. It does not hold for objects that were written before.
	ExternalWritesSince time.Time
	// CorrectUpdates: updates that no event has reported (RowUpdateNotCaptured) are recorded without approval.
	CorrectUpdates bool
	// CorrectUpdatesSince is when CorrectUpdates came into force. It does not hold for what a check found before.
	CorrectUpdatesSince time.Time
	// Digests are the algorithms computed for all bytes that are read, besides those on record; nil: MD5 and SHA-256.
	Digests []string
}

// ExpectsWrite reports whether another program was expected to write an object with this modification time.
func (s StoreSettings) ExpectsWrite(modified time.Time) bool {
	return s.ExternalWrites && !modified.Before(s.ExternalWritesSince)
}

// Config configures a Checker.
type Config struct {
	Settings
	// MinInterval is the age of a pass below which a sweep's task is skipped; 0 skips none.
	MinInterval time.Duration
	// At returns Kafka's time at a time of the process; nil: the same.
	At func(time.Time) time.Time
	// Period returns the time in which every copy of a space is checked; StoreSettings.SamplePercent is a share of it.
	// nil: there are no sampled stores.
	Period func(space schemas.Copy) time.Duration
	// Restarts is the maximum number of times that a check starts over because its object changed; 0: 3.
	Restarts int
	// Worker, Host and Software identify the checker in results.
	Worker, Host, Software string
	// Agent is the agent of Changes that correct records; empty: checker.
	Agent string
}

// Stores returns the stores of accounts, with their settings.
type Stores interface {
	// Store returns false if the account has no such store.
	Store(account, id string) (storage.Store, bool)
	Settings(account, id string) StoreSettings
	// Others returns the stores other than id that should have the space.
	Others(account, space, id string) []string
}

// Records reads the records of copies.
type Records interface {
	// Fresh returns a record of each copy, in order, that includes all that was published before the call. After an error
	// nothing is known. The record of a copy without an item is about its space: its manifest has state NONE if the space
	// may be absent.
	Fresh(ctx context.Context, copies []schemas.Copy) ([]*pb.CopyRecord, error)
}

// SpaceIncidents opens and closes the incidents of spaces that are expected and absent. A space is a copy without an
// item.
type SpaceIncidents interface {
	// Open opens the incident of a space, unless it is open.
	Open(ctx context.Context, space schemas.Copy, detail string) error
	// Close closes the incident of a space, if it is open.
	Close(ctx context.Context, space schemas.Copy, detail string) error
}

// A Checker handles fixity tasks. It is safe for concurrent use.
type Checker struct {
	config  Config
	stores  Stores
	records Records
	spaces  SpaceIncidents
	markers storage.Markers
	hashers hashers
	parted  func(mono, wall time.Duration) bool
}

// New returns a Checker.
func New(c Config, stores Stores, records Records, spaces SpaceIncidents) (*Checker, error) {
	var faults []error
	if c.Restarts < 0 {
		faults = append(faults, errors.New("restarts is negative"))
	}
	if c.Settle < 0 || c.MinInterval < 0 {
		faults = append(faults, errors.New("settle or min_interval is negative"))
	}
	for _, d := range c.Recheck {
		if d <= 0 {
			faults = append(faults, fmt.Errorf("recheck interval %v is not positive", d))
		}
	}
	if c.At == nil {
		c.At = func(t time.Time) time.Time { return t }
	}
	if c.Period == nil {
		c.Period = func(schemas.Copy) time.Duration { return 0 }
	}
	if stores == nil || records == nil || spaces == nil {
		faults = append(faults, errors.New("stores, records or incidents of spaces are missing"))
	}
	if err := errors.Join(faults...); err != nil {
		return nil, fmt.Errorf("checker: %w", err)
	}
	c.Recheck = slices.Clone(c.Recheck)
	if c.Restarts == 0 {
		c.Restarts = 3
	}
	if c.Agent == "" {
		c.Agent = "checker"
	}
	return &Checker{config: c, stores: stores, records: records, spaces: spaces, parted: parted}, nil
}

// Handle executes the FixityTask in d. It returns the result and, depending on the row, a Change that corrects the
// record and the task of the re-check. It returns an error if the check has no end: the task is malformed or its store
// is unknown (permanent), the bytes are not available yet, as in an archive (wait), or ctx is done.
func (c *Checker) Handle(ctx context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
	task, ok := d.Body.(*pb.FixityTask)
	if !ok {
		return nil, retry.Permanent(fmt.Errorf("check: message is a %T, not a fixity task", d.Body))
	}
	at := schemas.CopyOf(task)
	if task.GetId() == "" || at.Account == "" || at.Space == "" || at.Item == "" {
		return nil, retry.Permanent(fmt.Errorf("check %s: task %q names no copy", at, task.GetId()))
	}
	store, ok := c.stores.Store(at.Account, at.Store)
	if !ok {
		return nil, retry.Permanent(fmt.Errorf("check %s: store is unknown", at))
	}
	k := &check{
		Checker: c, task: task, copy: at, store: store, attempt: d.Attempt,
		settings: c.stores.Settings(at.Account, at.Store), started: time.Now(),
	}
	if k.passedRecently(d.Timestamp) {
		k.skip()
		return k.messages(), nil
	}
	if err := k.run(ctx); err != nil {
		return nil, fmt.Errorf("check %s: %w", at, err)
	}
	k.decideAccept()
	if err := k.reportSpace(ctx); err != nil {
		return nil, fmt.Errorf("check %s: %w", at, err)
	}
	return k.messages(), nil
}

// passedRecently reports whether the task is a sweep's and its copy passed within MinInterval. It is at least the time
// of the task's record, by the clock of Kafka: a checker whose clock is behind must not skip all checks.
func (k *check) passedRecently(now time.Time) bool {
	if k.started.After(now) {
		now = k.started
	}
	pass := k.task.GetKnown().GetLastPass()
	return k.task.GetReason() == pb.FixityReason_FIXITY_REASON_SWEEP && k.task.GetRecheck() <= 0 &&
		pass != nil && now.Sub(pass.AsTime()) < k.config.MinInterval
}

// skip ends the check without evidence.
func (k *check) skip() {
	k.verdict = Verdict{Finding: "skipped", Outcome: pb.Verdict_VERDICT_SKIPPED, Detail: "recently checked"}
	k.conclusion = Conclusion{Outcome: k.verdict.Outcome, Final: true}
}

// The findings of RowManifestWrong, and of RowNotCaptured in a first check, if the check has recorded what it has read.
const (
	findingCorrected = "manifest-corrected"
	findingCaptured  = "captured"
)

// messages returns the result, the correction and the re-check.
func (k *check) messages() []schemas.Message {
	now := time.Now()
	change, result := k.correction(), k.result(now)
	out := make([]schemas.Message, 1, 2)
	out[0] = schemas.Message{Topic: schemas.FixityResults, Body: result}
	if k.conclusion.Final && k.verdict.Row == RowNotCaptured && k.isFirst() && !k.accepts() {
		switch {
		case change != nil:
			result.Verdict, result.Finding = pb.Verdict_VERDICT_PASS, findingCaptured
		case k.evidence.Content.State == pb.EvidenceState_EVIDENCE_STATE_UNREAD:
			result.Verdict = pb.Verdict_VERDICT_UNVERIFIED
		}
	}
	if change != nil {
		result.Correction = change.GetId()
		if k.verdict.Row == RowManifestWrong {
			result.Finding = findingCorrected
		}
		out = append(out, schemas.Message{Topic: schemas.Changes, Body: change})
	}
	if !k.conclusion.Final {
		out = append(out, k.recheckTask(now, result.GetId()))
	}
	return out
}

// recheckTask returns the task of the re-check. Its id is a function of this task's id and the re-check's number.
func (k *check) recheckTask(now time.Time, result string) schemas.Message {
	t := k.task
	n := k.conclusion.Recheck
	first := t.GetFirst()
	if first == nil {
		first = timestamppb.New(k.started)
	}
	topic := schemas.FixityHigh
	if t.GetPriority() == pb.Priority_PRIORITY_LARGE {
		topic = schemas.FixityLarge
	}
	return schemas.Message{Topic: topic, Due: k.conclusion.Next, Body: &pb.FixityTask{
		Id:      schemas.ID("recheck", t.GetId(), strconv.Itoa(n)),
		Account: t.GetAccount(), Store: t.GetStore(), Space: t.GetSpace(), Item: t.GetItem(),
		Reason: t.GetReason(), Priority: t.GetPriority(), Cause: t.GetCause(),
		Round: t.GetRound(), Baseline: t.GetBaseline(), Recheck: int32(n),
		Known: schemas.WithoutProperties(k.known()), Size: t.GetSize(),
		Time: timestamppb.New(now), First: first, Previous: result, Accept: k.openOrder(),
		Found: k.found(),
	}}
}
