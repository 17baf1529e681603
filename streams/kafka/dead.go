package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/schemas"
)

// A DeadState says what was decided about a dead letter.
type DeadState string

// The states.
const (
	DeadOpen      DeadState = "open"
	DeadRedriven  DeadState = "redriven"
	DeadDiscarded DeadState = "discarded"
)

// What people do to dead letters, as admin actions call it.
const (
	actionRedrive = "redrive"
	actionDiscard = "discard"
)

// Sentinels of dead letters.
var (
	// errNoDeadLetter: no dead letter has the id.
	errNoDeadLetter = errors.New("no such dead letter")
	// errDeadClosed: it was redriven or discarded before.
	errDeadClosed = errors.New("was decided before")
)

// A Failure is one entry of a record's history of failures; equal ones that follow each other are one.
type Failure = failure

// A DeadLetter is one record of topic dead: the original bytes and headers of what could
// not be handled, where it came from, and why.
type DeadLetter struct {
	// ID is PARTITION-OFFSET of the letter itself.
	ID    string
	State DeadState
	// Decided, By and Reason are of the newest decision; zero while it is open.
	Decided    time.Time
	By, Reason string

	Time      time.Time    // when it became a dead letter
	Role      schemas.Role // who failed
	Class     string       // of the last failure
	Error     string       // of the last failure
	Attempts  int
	Waits     int
	History   []Failure
	Topic     schemas.Topic // where it was first sent to; empty if no header says so
	Partition int32         // there; -1: it never was on its topic
	Offset    int64

	Key, Value []byte
	Headers    []schemas.Header // the runtime's own too

	rec       *kgo.Record
	inc       uint32 // of topic dead
	decisions int    // so far
}

// Decode returns the message in the letter, if it can be read.
func (l *DeadLetter) Decode() (schemas.Body, error) {
	return schemas.Decode(l.Topic, l.Headers, l.Value)
}

func deadID(partition int32, offset int64) string {
	return strconv.Itoa(int(partition)) + "-" + strconv.FormatInt(offset, 10)
}

// parseDeadID is the inverse of deadID.
func parseDeadID(id string) (partition int32, offset int64, err error) {
	a, b, _ := strings.Cut(id, "-")
	p, errP := strconv.ParseUint(a, 10, 31)
	o, errO := strconv.ParseUint(b, 10, 63)
	if errP != nil || errO != nil {
		return 0, 0, fmt.Errorf("%w: %q is not PARTITION-OFFSET, as in 3-1042", errNoDeadLetter, id)
	}
	return int32(p), int64(o), nil
}

// A DeadQuery chooses dead letters: those for which all that is set holds.
type DeadQuery struct {
	// IDs names them one by one, whatever their state.
	IDs   []string
	Role  schemas.Role
	Topic schemas.Topic // where they were first sent to
	Class string
	Cause string // is part of the error
	Since time.Time
	// Closed includes those about which something was decided.
	Closed bool
}

// Narrow reports whether q chooses anything less than all.
func (q DeadQuery) Narrow() bool {
	return len(q.IDs) > 0 || q.Role != "" || q.Topic != "" || q.Class != "" || q.Cause != "" || !q.Since.IsZero()
}

func (q DeadQuery) matches(l *DeadLetter) bool {
	switch {
	case q.Role != "" && l.Role != q.Role,
		q.Topic != "" && l.Topic != q.Topic,
		q.Class != "" && l.Class != q.Class,
		q.Cause != "" && !strings.Contains(l.Error, q.Cause),
		l.Time.Before(q.Since):
		return false
	}
	return len(q.IDs) > 0 || q.Closed || l.State == DeadOpen
}

// DeadLetters reads topic dead, and sends out of it what should be tried once more. It
// removes nothing: what was decided about a letter stands in topic admin, from which its
// state is read, so that it is the same for everybody who asks.
type DeadLetters struct {
	cfg    Config
	cl     *kgo.Client
	adm    *kadm.Client
	router *router
}

// NewDeadLetters returns DeadLetters. Nothing reaches the network before its methods are
// called. The caller closes it.
func NewDeadLetters(cfg Config) (*DeadLetters, error) {
	opts, err := cfg.options("dead", cfg.produce(producerLimit, producerLinger)...)
	if err != nil {
		return nil, err
	}
	cl, err := kgo.NewClient(opts...)
	if err != nil {
		return nil, fmt.Errorf("kafka: new client: %w", err)
	}
	return &DeadLetters{cfg: cfg, cl: cl, adm: kadm.NewClient(cl), router: newRouter(cfg, "dead", 0)}, nil
}

// Close ends the connections.
func (d *DeadLetters) Close() { d.cl.Close() }

// Each calls f for the letters that q chooses, those of a partition in their order. Those
// that come while it runs are left out. It holds no letter when f has returned. It returns an error, and calls f for none, if q names
// an id that no letter has.
func (d *DeadLetters) Each(ctx context.Context, q DeadQuery, f func(*DeadLetter) error) error {
	name := d.cfg.topic(schemas.Dead)
	parts, err := spans(ctx, d.adm, name)
	if err != nil {
		return fmt.Errorf("look for dead letters: %w", err)
	}
	var wanted map[string]bool // nil: all
	if len(q.IDs) > 0 {
		if wanted, err = d.named(ctx, q.IDs, parts); err != nil {
			return err
		}
	}
	acts, err := d.decisions(ctx, wanted)
	if err != nil {
		return err
	}
	return d.scan(ctx, name, parts, func(rec *kgo.Record, inc uint32) error {
		id := deadID(rec.Partition, rec.Offset)
		if wanted != nil && !wanted[id] {
			return nil
		}
		l := d.letter(rec, inc)
		acts.tell(l)
		if !q.matches(l) {
			return nil
		}
		return f(l)
	})
}

// named returns the set of ids, and narrows parts to where they lie. All of them must be there.
func (d *DeadLetters) named(ctx context.Context, ids []string, parts map[int32]span) (map[string]bool, error) {
	wanted, narrow := map[string]bool{}, map[int32]span{}
	for _, id := range ids {
		p, at, err := parseDeadID(id)
		if err != nil {
			return nil, err
		}
		if has, ok := parts[p]; !ok || at < has.from || at >= has.to {
			return nil, fmt.Errorf("%w: %s", errNoDeadLetter, id)
		}
		wanted[deadID(p, at)] = true
		s, ok := narrow[p]
		if !ok {
			s = span{at, at + 1}
		}
		narrow[p] = span{min(s.from, at), max(s.to, at+1)}
	}
	missing := maps.Clone(wanted)
	name := d.cfg.topic(schemas.Dead)
	if err := d.scan(ctx, name, narrow, func(rec *kgo.Record, _ uint32) error {
		delete(missing, deadID(rec.Partition, rec.Offset))
		return nil
	}); err != nil {
		return nil, err
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("%w: %s", errNoDeadLetter, strings.Join(slices.Sorted(maps.Keys(missing)), ", "))
	}
	clear(parts)
	maps.Copy(parts, narrow)
	return wanted, nil
}

func (d *DeadLetters) letter(rec *kgo.Record, inc uint32) *DeadLetter {
	h := parseRetryHeaders(rec.Headers)
	return &DeadLetter{
		ID: deadID(rec.Partition, rec.Offset), State: DeadOpen, Time: rec.Timestamp, Role: h.role, Class: h.class, Error: h.err,
		Attempts: h.attempts, Waits: h.waits, History: h.history, Topic: h.topic, Partition: h.partition, Offset: h.offset,
		Key: rec.Key, Value: rec.Value, Headers: headersOf(rec), rec: rec, inc: inc,
	}
}
