package kafka

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
	"github.com/millrace/millrace/streams/retry"
)

// Letters that are decided about together, bounded in number and in the memory that they take.
const (
	deadBatch      = 500
	deadBatchBytes = 8 << 20
)

// A DeadOrder is a person's decision, as it is put on record.
type DeadOrder struct {
	Who, Reason string
	From        string // which way the word came: cli, api
	// Force includes letters about which something was decided before, where they are named.
	Force bool
	// Rate bounds the letters of a second; 0: as fast as they go.
	Rate float64
	// Value, if it is not nil, is sent in place of the letter's own: Protobuf or JSON. It is for
	// one letter, and wants a reason.
	Value []byte
	// Told, where it is set, is told after each batch how many letters have been decided about.
	Told func(done int)
}

// A DeadReport says how far a decision came.
type DeadReport struct {
	Done    int
	Refused int
	// Why says for what reason the first one was refused.
	Why error
}

// Redrive sends the letters that q chooses to where they are tried once more, as if never
// before but for their history: to the again topic of the role that failed or, where there
// is none or the letter was edited, to the topic that they were first sent to.
//
// Letters are sent and acknowledged before it is put on record that they were; whoever dies in
// between has some of them sent twice, which their handlers bear. When ctx ends, what was
// sent is put on record, and the same call goes on with the rest. A letter that cannot be
// redriven is refused, and holds up no other: one, too, that would go to a compacted topic which
// holds what is newer for its key.
func (d *DeadLetters) Redrive(ctx context.Context, q DeadQuery, o DeadOrder) (DeadReport, error) {
	if o.Value != nil && (len(q.IDs) != 1 || o.Reason == "") {
		return DeadReport{}, errors.New("an edited value is for one letter, and wants a reason")
	}
	known := &newest{d, map[string]*newestOf{}}
	return d.decide(ctx, q, o, func(l *DeadLetter) (*kgo.Record, *pb.AdminAction, error) {
		rec, err := d.again(l, o.Value)
		if err == nil {
			err = known.overtaken(ctx, l, rec)
		}
		if err != nil {
			return nil, nil, err
		}
		a := d.action(l, actionRedrive, o)
		a.After = fmt.Sprintf("%s to %s", DeadRedriven, d.cfg.bare(rec.Topic))
		if o.Value != nil {
			a.After += ", edited"
		}
		return rec, a, nil
	})
}

// Discard puts on record that the letters that q chooses are not to be tried again. They stay
// where they are. It wants a reason.
func (d *DeadLetters) Discard(ctx context.Context, q DeadQuery, o DeadOrder) (DeadReport, error) {
	if o.Reason == "" {
		return DeadReport{}, errors.New("a dead letter is discarded for a reason")
	}
	return d.decide(ctx, q, o, func(l *DeadLetter) (*kgo.Record, *pb.AdminAction, error) {
		a := d.action(l, actionDiscard, o)
		a.After = string(DeadDiscarded)
		return nil, a, nil
	})
}

// A verdict is a letter's record, nil where it is sent nowhere, and the action that says so.
type verdict func(*DeadLetter) (*kgo.Record, *pb.AdminAction, error)

// A docket is what is decided about together.
type docket struct {
	recs    []*kgo.Record
	actions []schemas.Message
	bytes   int
}

func (d *DeadLetters) decide(ctx context.Context, q DeadQuery, o DeadOrder, judge verdict) (DeadReport, error) {
	var (
		r     DeadReport
		open  docket
		began = time.Now()
		most  = deadBatch
	)
	if o.Rate > 0 {
		most = int(min(max(o.Rate/4, 1), deadBatch))
	}
	flush := func() error {
		if o.Rate > 0 { // the first letters go at once, the others when their turn has come
			due := began.Add(time.Duration(float64(r.Done) / o.Rate * float64(time.Second)))
			if err := retry.Sleep(ctx, time.Until(due)); err != nil {
				return err
			}
		}
		if err := d.send(ctx, open); err != nil {
			return err
		}
		r.Done += len(open.actions)
		open = docket{}
		if o.Told != nil {
			o.Told(r.Done)
		}
		return nil
	}
	q.Closed = false
	err := d.Each(ctx, q, func(l *DeadLetter) error {
		rec, action, err := d.judged(l, o, judge)
		if unknown := (*lookError)(nil); errors.As(err, &unknown) {
			return fmt.Errorf("dead letter %s: %w", l.ID, err)
		}
		if err != nil {
			if r.Refused++; r.Why == nil {
				r.Why = fmt.Errorf("dead letter %s %w", l.ID, err)
			}
			return nil
		}
		if rec != nil {
			open.recs = append(open.recs, rec)
			open.bytes += int(recordBytes(rec))
		}
		open.actions = append(open.actions, schemas.Message{Topic: schemas.Admin, Body: action})
		if len(open.actions) >= most || open.bytes >= deadBatchBytes {
			return flush()
		}
		return nil
	})
	if err == nil && len(open.actions) > 0 {
		err = flush()
	}
	return r, err
}

func (d *DeadLetters) judged(l *DeadLetter, o DeadOrder, judge verdict) (*kgo.Record, *pb.AdminAction, error) {
	if l.State != DeadOpen && !o.Force {
		return nil, nil, fmt.Errorf("%w: %s by %s on %s", errDeadClosed, l.State, l.By, l.Decided.UTC().Format(time.RFC3339))
	}
	return judge(l)
}

// send publishes letters, and then that they were. A ctx that ends does not come in between.
func (d *DeadLetters) send(ctx context.Context, open docket) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	ctx, cancel := withStopGrace(ctx)
	defer cancel()
	if _, err := publish(ctx, d.cl, open.recs); err != nil {
		return err
	}
	now, recs := time.Now(), make([]*kgo.Record, 0, len(open.actions))
	for _, m := range open.actions {
		rec, err := d.router.record(m, now)
		if err != nil {
			return fmt.Errorf("encode an admin action: %w", err)
		}
		recs = append(recs, rec)
	}
	_, err := publish(ctx, d.cl, recs)
	return err
}

// action is what is put on record of a decision. Its id is a function of the letter and of how
// often something was decided about it, so that two people who decide at once decide once.
func (d *DeadLetters) action(l *DeadLetter, action string, o DeadOrder) *pb.AdminAction {
	t := target(l.ID, l.inc)
	a := &pb.AdminAction{
		Id: schemas.ID("dead letter", action, t, strconv.Itoa(l.decisions)), Time: timestamppb.Now(), Who: o.Who,
		Action: action, Target: t, Reason: o.Reason, From: o.From, Before: string(l.State),
	}
	body, err := l.Decode()
	if err != nil {
		return a // what cannot be read names no item
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

// again returns the record that l becomes.
func (d *DeadLetters) again(l *DeadLetter, value []byte) (*kgo.Record, error) {
	h := retryHeaders{
		topic: l.Topic, partition: l.Partition, offset: l.Offset, timestamp: parseRetryHeaders(l.rec.Headers).timestamp, role: l.Role, history: l.History,
	}
	_, known := schemas.Lookup(l.Topic)
	_, foreign := l.Topic.Foreign()
	if known = known || foreign && l.Role == schemas.RoleIngester; !known || l.Topic == schemas.Dead {
		return nil, fmt.Errorf("cannot be redriven: its headers name topic %q, from which nothing comes", l.Topic)
	}
	to := schemas.AgainOf(l.Role, l.Topic)
	if _, ok := schemas.Lookup(to); !ok || value != nil && !foreign { // nothing is written to topics of others
		to = l.Topic
	}
	rec := &kgo.Record{Topic: d.cfg.topic(to), Key: l.Key, Value: l.Value, Headers: l.rec.Headers}
	if foreign && value != nil {
		rec.Value = value
	} else if value != nil {
		if err := edit(rec, l.Topic, value); err != nil {
			return nil, err
		}
	}
	rec.Headers = h.apply(rec.Headers)
	if err := fits(rec); err != nil {
		return nil, fmt.Errorf("cannot be redriven: %w", err)
	}
	return rec, nil
}

// edit gives rec another value, and the key and headers that belong to it. The headers that
// are not of the message stay.
func edit(rec *kgo.Record, topic schemas.Topic, value []byte) error {
	content := schemas.ContentProtobuf
	if v := bytes.TrimSpace(value); len(v) > 0 && v[0] == '{' { // as no message in Protobuf begins
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
