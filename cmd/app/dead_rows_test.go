package app

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse/clickhousetest"
	"github.com/millrace/millrace/streams/duplicate"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// oneStore is an account that has lost its store 2, though its policy copies to it. There are no records.
type oneStore struct{}

func (oneStore) Store(string, string) (storage.Store, bool) { return nil, false }
func (oneStore) Rules(string, string) (policy.Rules, bool) {
	return policy.Rules{Pairs: []policy.Pair{{Source: "1", Destination: "2"}}}, true
}
func (oneStore) Fresh(context.Context, []schemas.Copy) ([]*pb.CopyRecord, error) {
	return nil, errors.New("no answer")
}

// A command that becomes a dead letter has its row in duplication_log, whatever the cause: a store that is gone, too
// many failures, or outputs that cannot be encoded. The same record of topic dead makes both rows.
func TestDeadCommandsHaveARow(t *testing.T) {
	t.Parallel()
	r := newRestored(t)
	executor, err := duplicate.New(duplicate.Config{}, oneStore{}, oneStore{}, oneStore{})
	must(t, err)
	handler := func(ctx context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
		switch b := d.Body.(type) {
		case *pb.DuplicationCommand:
			if b.GetItem() == "gone" {
				return executor.Handle(ctx, d)
			}
			return []schemas.Message{{Topic: schemas.DuplicationResults, Body: &pb.DuplicationResult{}}}, nil
		case *pb.DeletionCommand:
			if b.GetItem() == "fails" {
				return nil, errors.New("no answer")
			}
		}
		return nil, retry.Permanent(errors.New("refused"))
	}
	for i, item := range []string{"gone", "unencodable"} {
		r.b.Send(schemas.Message{Topic: schemas.DuplicationHigh, Body: &pb.DuplicationCommand{
			Id: schemas.ID("command", item), Account: "acme", Space: "s", Item: item, SourceStore: "1", DestinationStore: "2",
			Reason: pb.DuplicationReason_DUPLICATION_REASON_CHANGE, PolicyRevision: int64(i),
		}})
	}
	for _, item := range []string{"fails", "refused"} {
		r.b.Send(schemas.Message{Topic: schemas.Deletions, Body: &pb.DeletionCommand{
			Id: schemas.ID("deletion", item), Account: "acme", Space: "s", Item: item, SourceStore: "1", DestinationStore: "2",
		}})
	}
	for role, topic := range map[schemas.Role]schemas.Topic{
		schemas.RoleCopier: schemas.DuplicationHigh, schemas.RoleDeleter: schemas.Deletions,
	} {
		runUntilDead(t, r, kafka.PoolConfig{Role: role, Topics: []schemas.Topic{topic}, MaxAttempts: 1}, handler, 2)
	}
	r.sink(schemas.RoleSink)
	rows, err := clickhousetest.Strings(t.Context(), r.db,
		"SELECT concat(item, ' ', decision, ' ', result, ' ', outcome, ' ', error_class) FROM {db}.duplication_log_v"+
			" ORDER BY item")
	want := []string{"fails dead dead failed transient", "gone dead dead failed permanent",
		"refused dead dead failed permanent", "unencodable dead dead failed permanent"}
	if err != nil || !slices.Equal(rows, want) {
		t.Errorf("got %q, %v, want %q", rows, err, want)
	}
}

// runUntilDead runs a Pool until n more messages are dead letters.
func runUntilDead(t *testing.T, r *restored, pc kafka.PoolConfig, h kafka.Handler, n int) {
	t.Helper()
	p, err := kafka.NewPool(r.b.Config(), pc, h)
	must(t, err)
	n += len(r.b.Read(schemas.Dead))
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for len(r.b.Read(schemas.Dead)) < n && ctx.Err() == nil {
		<-tick.C
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
