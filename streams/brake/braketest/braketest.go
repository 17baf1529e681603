// Package braketest keeps the checkpoints of a brake in memory, for tests.
package braketest

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/brake"
)

// A Topic holds what the processes of a test publish. Its exported fields are set and read while no process runs.
type Topic struct {
	Kind    brake.Kind
	Limits  brake.Limits
	History brake.History
	// Unknown is the error of reads of the records; Reads counts them.
	Unknown error
	Reads   int
	// Meanwhile is called before a message is stored; other processes may publish in it.
	Meanwhile func(schemas.Message)
	// Fail is called before a message is stored, and its error returned.
	Fail func(schemas.Message) error
	// Published has all messages but checkpoints.
	Published   []schemas.Body
	Checkpoints []*pb.Checkpoint

	mu sync.Mutex
}

// New returns a Topic with the default limits for a space of a million copies.
func New(k brake.Kind) *Topic {
	return &Topic{Kind: k, Limits: brake.Limits{MaxShare: 0.1, MaxCount: 1000},
		History: brake.History{Live: 1e6}}
}

// Publish implements schemas.Publisher.
func (p *Topic) Publish(_ context.Context, messages ...schemas.Message) error {
	if p.Meanwhile != nil {
		for _, m := range messages {
			p.Meanwhile(m)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range messages {
		if p.Fail != nil {
			if err := p.Fail(m); err != nil {
				return err
			}
		}
		if c, ok := m.Body.(*pb.Checkpoint); ok {
			p.Checkpoints = append(p.Checkpoints, c)
		} else {
			p.Published = append(p.Published, m.Body)
		}
	}
	return nil
}

// Process returns the brake of a new process, which has read the topic.
func (p *Topic) Process() *brake.Brake {
	l, read := brake.NewLedger(p.Kind), 0
	var reading sync.Mutex
	catchUp := func(context.Context) error {
		reading.Lock()
		defer reading.Unlock()
		p.mu.Lock()
		fresh := slices.Clone(p.Checkpoints[min(read, len(p.Checkpoints)):])
		read = len(p.Checkpoints)
		p.mu.Unlock()
		for _, c := range fresh {
			_ = l.Apply([]byte(schemas.Key(c.GetSweep(), c.GetSplit())), c, c.GetTime().AsTime())
		}
		return nil
	}
	_ = catchUp(nil) // as when partitions are assigned
	b, err := brake.New(brake.Deps{
		Ledger: l, Publisher: p, CatchUp: catchUp, Now: time.Now,
		Live: func(context.Context, schemas.Copy) (int64, error) {
			h, err := p.history()
			return h.Live, err
		},
		History: func(context.Context, schemas.Copy, time.Time) (brake.History, error) { return p.history() },
		Limits:  func(string, string) brake.Limits { return p.Limits },
		Park:    func(ctx context.Context, wait func(context.Context) error) error { return wait(ctx) },
	})
	if err != nil {
		panic(err)
	}
	return b
}

func (p *Topic) history() (brake.History, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.Reads++
	return p.History, p.Unknown
}
