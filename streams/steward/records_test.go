package steward

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/retry"
)

// Unavailable records do not mean that there is no good copy: the incident is published, and the copy is checked again
// later, which orders the repair.
func TestRecordsUnknown(t *testing.T) {
	w := newHarness(t)
	w.failure = errors.New("has not caught up")
	r := w.result(2)
	out := w.handle(r)
	w.checkIncident("content-corrupt", open, "opened", "records-unknown")
	i := w.topic[key("content-corrupt")]
	want := schemas.Message{
		Topic: schemas.FixityHigh, Due: time.Now().Add(5 * time.Minute), // by the clock of the process
		Body: &pb.FixityTask{
			Id: schemas.ID("records-unknown", i.GetId(), r.GetId()), Account: at.Account, Store: at.Store, Space: at.Space,
			Item:   at.Item,
			Reason: pb.FixityReason_FIXITY_REASON_SUSPECT, Priority: pb.Priority_PRIORITY_HIGH, Cause: r.GetId(),
			Time: r.GetFinished(), Size: 3,
		},
	}
	for range 2 {
		if len(out) != 2 || out[1].Topic != want.Topic || out[1].Due.Sub(want.Due).Abs() > time.Minute ||
			!proto.Equal(out[1].Body, want.Body) {
			t.Fatalf("got %v\nwant the incident and %v", out, want)
		}
		w.restart()
		out = w.handle(r) // its outputs were lost
	}
	w.failure = nil
	again := w.result(2, because(pb.FixityReason_FIXITY_REASON_SUSPECT))
	w.handle(again)
	w.checkIncident("content-corrupt", repairing, "opened", "records-unknown", "seen-again", "repair-ordered")
	if len(w.orders) != 1 || i.GetRepairs() != 0 {
		t.Errorf("ordered %v, and before that %d", w.orders, i.GetRepairs())
	}
	if got := w.handle(r); len(got) != 1 {
		t.Errorf("during the repair the first result gives %v, want the incident only", got)
	}
	w.handle(w.repairResult(w.orders[0], "repair-moot"))
	if got := w.handle(r); len(got) != 1 {
		t.Errorf("after a repair the first result gives %v, want the incident only", got)
	}
}

// An approval does not change the incident while the records are unavailable: the message itself waits.
func TestApprovalWhileRecordsAreUnknown(t *testing.T) {
	w := newHarness(t)
	w.handle(w.result(13))
	w.failure = errors.New("has not caught up")
	approval := w.approval("replaced")
	got, err := w.steward.Handle(t.Context(), &schemas.Delivery{Body: approval})
	if !errors.Is(err, w.failure) || retry.ClassOf(err) != retry.ClassUnavailable || got != nil {
		t.Fatalf("got %v, %v", got, err)
	}
	w.failure = nil
	w.handle(approval)
	w.checkIncident("replaced", repairing, "opened", "approval-asked", "approved", "repair-ordered")
}

// The wait for records is shorter than the time limit of a message. If the process is stopped meanwhile, the records
// do not count as unavailable.
func TestRecordsThatDoNotAnswer(t *testing.T) {
	tests := map[string]struct {
		end     func(context.Context) (context.Context, context.CancelFunc)
		after   time.Duration
		stopped bool
	}{
		"of itself": {context.WithCancel, 8 * time.Second, false},
		"time is over": {func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, 5*time.Second)
		}, 5 * time.Second, false},
		"being stopped": {func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(ctx)
			time.AfterFunc(time.Second, cancel)
			return ctx, cancel
		}, time.Second, true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newHarness(t)
				w.silent = true
				ctx, cancel := tt.end(t.Context())
				defer cancel()
				r := w.result(2)
				began := time.Now()
				out, err := w.steward.Handle(ctx, &schemas.Delivery{Body: r})
				if took := time.Since(began); took != tt.after {
					t.Errorf("took %v, want %v", took, tt.after)
				}
				i := w.steward.table.get(key("content-corrupt"))
				if tt.stopped {
					if !errors.Is(err, context.Canceled) || retry.ClassOf(err) != retry.Transient || out != nil || i != nil {
						t.Errorf("got %v, %v, and the incident %v", out, err, i)
					}
					return
				}
				if err != nil || len(out) != 2 || i.GetState() != open || !hasStep(i, "records-unknown") {
					t.Errorf("got %v, %v", out, err)
				}
				// An approval reports it only by its error.
				w.topic[schemas.IncidentKey(i)] = i
				a := w.approval("content-corrupt")
				a.Time = timestamppb.New(base.Add(time.Hour))
				ctx, cancel = tt.end(t.Context())
				defer cancel()
				if _, err = w.steward.Handle(ctx, &schemas.Delivery{Body: a}); retry.ClassOf(err) != retry.ClassUnavailable {
					t.Errorf("approval: got %v of class %v", err, retry.ClassOf(err))
				}
			})
		})
	}
}
