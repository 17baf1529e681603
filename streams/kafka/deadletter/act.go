package deadletter

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka/internal/core"
	"github.com/millrace/millrace/streams/retry"
)

// Bounds of the letters that are decided in one batch: their number, and the memory of their records.
const (
	maxDecisions     = 500
	maxDecisionBytes = 8 << 20
)

// An Order is a decision of an operator about dead letters, as recorded in topic admin.
type Order struct {
	Who, Reason string
	From        string // client that gave the order: cli, api
	// Force includes letters that were redriven or discarded before. They must be selected by id.
	Force bool
	// Rate is the maximum number of letters per second; 0 means no limit.
	Rate float64
	// Value, if not nil, replaces the value of the letter: Protobuf or JSON. It is for a single letter, selected by
	// id, and requires a Reason.
	Value []byte
	// Progress, if set, is called after each batch with the number of letters decided so far.
	Progress func(done int)
}

// A Report is the result of a decision.
type Report struct {
	Done    int
	Refused int
	// FirstRefusal is the reason why the first letter was refused.
	FirstRefusal error
}

// Redrive publishes the selected letters to be handled again, with a fresh count of attempts and their failure
// history. They go to the again topic of the role that failed. If there is none, or if the letter was edited,
// they go to the first topic of the message.
//
// Redrive waits until the letters are acknowledged, and then records the decisions. If the process is killed in
// between, the letters of that batch are redriven twice; handlers are idempotent. When ctx ends, the decisions
// about published letters are still recorded, and the same call again continues with the rest. A letter that
// cannot be redriven is refused and does not hold up the others. A letter is also refused if its topic is
// compacted and holds a newer record for its key.
func (d *Letters) Redrive(ctx context.Context, q Query, o Order) (Report, error) {
	if o.Value != nil && (len(q.IDs) != 1 || o.Reason == "") {
		return Report{}, errors.New("an edited value needs a reason and exactly one dead letter, by id")
	}
	known := &latestRecords{d, map[string]*latestInTopic{}}
	return d.decide(ctx, q, o, func(l *Letter) (*kgo.Record, *pb.AdminAction, error) {
		rec, err := d.redriven(l, o.Value)
		if err == nil {
			err = known.checkSuperseded(ctx, l, rec)
		}
		if err != nil {
			return nil, nil, err
		}
		a := d.adminAction(l, actionRedrive, o)
		a.After = fmt.Sprintf("%s to %s", Redriven, d.cfg.SchemaTopic(rec.Topic))
		if o.Value != nil {
			a.After += ", edited"
		}
		return rec, a, nil
	})
}

// Discard records that the selected letters will not be handled again. They stay in topic dead. It requires a Reason.
func (d *Letters) Discard(ctx context.Context, q Query, o Order) (Report, error) {
	if o.Reason == "" {
		return Report{}, errors.New("discarding dead letters needs a reason")
	}
	return d.decide(ctx, q, o, func(l *Letter) (*kgo.Record, *pb.AdminAction, error) {
		a := d.adminAction(l, actionDiscard, o)
		a.After = string(Discarded)
		return nil, a, nil
	})
}

// A decideFunc decides about one letter. It returns the record to publish, nil for none, and the admin action to
// record.
type decideFunc func(*Letter) (*kgo.Record, *pb.AdminAction, error)

// A decisionBatch holds decisions that are published together.
type decisionBatch struct {
	recs    []*kgo.Record
	actions []schemas.Message
	bytes   int
}

func (d *Letters) decide(ctx context.Context, q Query, o Order, decide decideFunc) (Report, error) {
	var (
		r     Report
		batch decisionBatch
		began = time.Now()
		limit = maxDecisions
	)
	if o.Rate > 0 {
		limit = int(min(max(o.Rate/4, 1), maxDecisions))
	}
	flush := func() error {
		if o.Rate > 0 { // the first batch goes at once, later ones at the given rate
			due := began.Add(time.Duration(float64(r.Done) / o.Rate * float64(time.Second)))
			if err := retry.Sleep(ctx, time.Until(due)); err != nil {
				return err
			}
		}
		if err := d.send(ctx, batch); err != nil {
			return err
		}
		r.Done += len(batch.actions)
		batch = decisionBatch{}
		if o.Progress != nil {
			o.Progress(r.Done)
		}
		return nil
	}
	q.Closed = false
	err := d.Each(ctx, q, func(l *Letter) error {
		rec, action, err := d.decideOne(l, o, decide)
		if unknown := (*latestLookupError)(nil); errors.As(err, &unknown) {
			return fmt.Errorf("dead letter %s: %w", l.ID, err)
		}
		if err != nil {
			if r.Refused++; r.FirstRefusal == nil {
				r.FirstRefusal = fmt.Errorf("dead letter %s %w", l.ID, err)
			}
			return nil
		}
		if rec != nil {
			batch.recs = append(batch.recs, rec)
			batch.bytes += int(core.RecordBytes(rec))
		}
		batch.actions = append(batch.actions, schemas.Message{Topic: schemas.Admin, Body: action})
		if len(batch.actions) >= limit || batch.bytes >= maxDecisionBytes {
			return flush()
		}
		return nil
	})
	if err == nil && len(batch.actions) > 0 {
		err = flush()
	}
	return r, err
}

func (d *Letters) decideOne(l *Letter, o Order, decide decideFunc) (*kgo.Record, *pb.AdminAction, error) {
	if l.State != Open && !o.Force {
		return nil, nil, fmt.Errorf("%w: %s by %s on %s", errDecided, l.State, l.By, l.Decided.UTC().Format(time.RFC3339))
	}
	return decide(l)
}

// send publishes the records, waits, and then publishes the admin actions. Once begun, it does not stop when ctx ends.
func (d *Letters) send(ctx context.Context, batch decisionBatch) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	ctx, cancel := core.WithStopGrace(ctx)
	defer cancel()
	if _, err := core.Publish(ctx, d.cl, batch.recs); err != nil {
		return err
	}
	now, recs := time.Now(), make([]*kgo.Record, 0, len(batch.actions))
	for _, m := range batch.actions {
		rec, err := d.router.Encode(m, now)
		if err != nil {
			return fmt.Errorf("encode admin action: %w", err)
		}
		recs = append(recs, rec)
	}
	_, err := core.Publish(ctx, d.cl, recs)
	return err
}

// adminAction returns the action to record for a decision. Its id is a function of the letter and of the number
// of earlier decisions about it, so two operators who decide at the same time make one decision.
func (d *Letters) adminAction(l *Letter, action string, o Order) *pb.AdminAction {
	t := formatTarget(l.ID, l.inc)
	a := &pb.AdminAction{
		Id: schemas.ID("dead letter", action, t, strconv.Itoa(l.decisions)), Time: timestamppb.Now(), Who: o.Who,
		Action: action, Target: t, Reason: o.Reason, From: o.From, Before: string(l.State),
	}
	body, err := l.Decode()
	if err != nil {
		return a // an undecodable message has no item
	}
	if b, ok := body.(interface {
		GetAccount() string
		GetSpace() string
		GetItem() string
	}); ok {
		a.Account, a.Space, a.Item = b.GetAccount(), b.GetSpace(), b.GetItem()
	}
	return a
}

// redriven returns the record to publish for l.
func (d *Letters) redriven(l *Letter, value []byte) (*kgo.Record, error) {
	h := core.RetryHeaders{
		Topic: l.Topic, Partition: l.Partition, Offset: l.Offset,
		Timestamp: core.ParseRetryHeaders(l.rec.Headers).Timestamp, Role: l.Role, History: l.History,
	}
	_, known := schemas.Lookup(l.Topic)
	_, foreign := l.Topic.Foreign()
	if known = known || foreign && l.Role == schemas.RoleIngester; !known || l.Topic == schemas.Dead {
		return nil, fmt.Errorf("cannot be redriven: its headers name topic %q, which is not a topic to redrive to", l.Topic)
	}
	to := schemas.AgainOf(l.Role, l.Topic)
	if _, ok := schemas.Lookup(to); !ok || value != nil && !foreign { // never written to a foreign topic
		to = l.Topic
	}
	rec := &kgo.Record{Topic: d.cfg.Topic(to), Key: l.Key, Value: l.Value, Headers: l.rec.Headers}
	if foreign && value != nil {
		rec.Value = value
	} else if value != nil {
		if err := replaceValue(rec, l.Topic, value); err != nil {
			return nil, err
		}
	}
	rec.Headers = h.Apply(rec.Headers)
	if err := core.CheckSize(rec); err != nil {
		return nil, fmt.Errorf("cannot be redriven: %w", err)
	}
	return rec, nil
}

// replaceValue sets the value of rec, with the key and the headers that belong to it. Headers that are not part
// of the message are kept.
func replaceValue(rec *kgo.Record, topic schemas.Topic, value []byte) error {
	content := schemas.ContentProtobuf
	if v := bytes.TrimSpace(value); len(v) > 0 && v[0] == '{' { // no Protobuf message begins like this
		content = schemas.ContentJSON
	}
	body, err := schemas.Decode(topic, []schemas.Header{{Key: schemas.HeaderContentType, Value: []byte(content)}}, value)
	if err != nil {
		return fmt.Errorf("cannot be redriven with this value: %w", err)
	}
	enc, err := schemas.Encode(schemas.Message{Topic: topic, Body: body, Source: "millrace/dead"})
	if err != nil {
		return fmt.Errorf("cannot be redriven with this value: %w", err)
	}
	var hs []kgo.RecordHeader
	for _, h := range enc.Headers {
		hs = append(hs, kgo.RecordHeader{Key: h.Key, Value: h.Value})
	}
	for _, h := range rec.Headers {
		if !strings.HasPrefix(h.Key, "ce_") && h.Key != schemas.HeaderContentType {
			hs = append(hs, h)
		}
	}
	rec.Key, rec.Value, rec.Headers = enc.Key, enc.Value, hs
	return nil
}
