package sweep

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/retry"
)

// Work is what the messages of a dry run ask for. The bytes are those whose number is known.
type Work struct {
	Checks  Amount
	Copies  Amount // commands of the copier
	Changes Amount // contents that are taken in: the policy says how often each is copied
}

func (w *Work) add(m schemas.Message) {
	one := func(of *Amount, size int64) {
		of.Items++
		of.Bytes += max(0, size)
	}
	switch b := m.Body.(type) {
	case *pb.FixityTask:
		one(&w.Checks, max(b.GetSize(), b.GetKnown().GetManifest().GetSize()))
	case *pb.DuplicationCommand:
		one(&w.Copies, b.GetSize())
	case *pb.Change:
		if b.GetOp() != pb.Op_OP_DELETE {
			one(&w.Changes, b.GetSize())
		}
	}
}

// DryRun reads the pages of a round that would begin now, and returns what it would count and emit. It publishes
// nothing and has no checkpoint. last is the newest checkpoint of the scheduled rounds of the split, or nil.
func DryRun(ctx context.Context, m Split, last *pb.Checkpoint) (Result, error) {
	r := Result{Split: m.Name, Counts: map[string]int64{}, Round: Round{
		ID: schemas.ID("dry-run", m.Sweep, m.Name, m.Start.UTC().Format(time.RFC3339Nano)), Started: m.Start.UTC(),
		Previous: last.GetPrevious(),
	}}
	if last.GetFinished() != nil {
		r.Previous = last.GetCursor()
	}
	// A quiet page waits for what is requested.
	for page := (Page{}); !page.Last && (page.Next == nil || !m.isQuiet(page.Next)); {
		if err := m.blocked(ctx); err != nil {
			return Result{}, err
		}
		cursor := page.Next
		_, err := Defaults().Retry.Do(ctx, func() (err error) {
			defer retry.Alive(ctx)
			page, err = m.Pages(ctx, r.Round, cursor)
			return err
		}, func(int, time.Duration, error) { /* the last error is returned */ })
		if err != nil {
			return Result{}, fmt.Errorf("dry run of sweep %s over %s: %w", m.Sweep, m.Name, err)
		}
		for k, n := range page.Counts {
			r.Counts[k] += n
		}
		for _, message := range page.Messages {
			r.Work.add(message)
		}
		if r.Emitted += page.Emitted; page.Emitted > 0 && m.OnEmitted != nil {
			m.OnEmitted(page.Emitted)
		}
	}
	r.Finished = time.Now().UTC()
	return r, nil
}
