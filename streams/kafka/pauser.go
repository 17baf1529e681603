package kafka

import (
	"context"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka/client"
)

// A pauser stops the polls of a client while its role is paused. The member keeps its partitions and the
// records that it has read. Only one loop uses a pauser.
type pauser struct {
	controls *client.Controls
	role     schemas.Role
	topics   []string // topics to pause; if empty, the polling loop holds the records itself
	paused   bool
}

// update pauses or resumes the topics.
func (p *pauser) update(cl *kgo.Client) {
	paused := p.controls.Role(p.role)
	switch {
	case paused && !p.paused:
		cl.PauseFetchTopics(p.topics...) // not partitions, so that partitions assigned later are paused too
	case !paused && p.paused:
		cl.ResumeFetchTopics(p.topics...)
	}
	p.paused = paused
}

// poll is PollRecords. While the role is paused, it also ends when the role is resumed.
func (p *pauser) poll(ctx context.Context, cl *kgo.Client, n int) kgo.Fetches {
	if !p.paused {
		return cl.PollRecords(ctx, n)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	wg.Go(func() {
		if p.controls.WaitResumed(p.role, ctx.Done()) {
			cancel()
		}
	})
	return cl.PollRecords(ctx, n)
}
