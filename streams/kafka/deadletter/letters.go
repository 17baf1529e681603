// Package deadletter lists, redrives and discards dead letters: records of topic dead, which are messages that could
// not be handled. A decision about a letter is a record of topic admin; no letter is ever removed. A letter is
// published before its decision is recorded, so a killed process may redrive a letter twice, and loses none.
package deadletter

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
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/kafka/internal/core"
)

// A State is the state of a dead letter.
type State string

// The states. A dead letter is open until it is redriven or discarded.
const (
	Open      State = "open"
	Redriven  State = "redriven"
	Discarded State = "discarded"
)

// The actions on dead letters, as admin actions name them.
const (
	actionRedrive = "redrive"
	actionDiscard = "discard"
)

// Errors of dead letters.
var (
	// errNotFound: no dead letter has this id.
	errNotFound = errors.New("no such dead letter")
	// errDecided: the dead letter was redriven or discarded before.
	errDecided = errors.New("was decided before")
)

// A Failure is one entry of the failure history of a record. Equal failures in a row are one entry.
type Failure = core.Failure

// A Letter is a record of topic dead: a message that could not be handled, with its original bytes and
// headers, its origin and its failures.
type Letter struct {
	// ID is PARTITION-OFFSET of the record in topic dead.
	ID    string
	State State
	// Decided, By and Reason are those of the latest decision; zero while the letter is open.
	Decided    time.Time
	By, Reason string

	Time      time.Time    // when it was written to topic dead
	Role      schemas.Role // the role that failed
	Class     string       // of the last failure
	Error     string       // of the last failure
	Attempts  int
	Waits     int
	History   []Failure
	Topic     schemas.Topic // first topic of the message; empty if no header names one
	Partition int32         // in Topic; -1 if the message was never there
	Offset    int64

	Key, Value []byte
	Headers    []schemas.Header // including the retry headers of the runtime

	rec       *kgo.Record
	inc       uint32 // incarnation of topic dead
	decisions int    // number of decisions so far
}

// Decode decodes the message of the dead letter.
func (l *Letter) Decode() (schemas.Body, error) {
	return schemas.Decode(l.Topic, l.Headers, l.Value)
}

func formatID(partition int32, offset int64) string {
	return strconv.Itoa(int(partition)) + "-" + strconv.FormatInt(offset, 10)
}

// parseID parses the result of deadID.
func parseID(id string) (partition int32, offset int64, err error) {
	a, b, _ := strings.Cut(id, "-")
	p, errP := strconv.ParseUint(a, 10, 31)
	o, errO := strconv.ParseUint(b, 10, 63)
	if errP != nil || errO != nil {
		return 0, 0, fmt.Errorf("%w: %q is not PARTITION-OFFSET, as in 3-1042", errNotFound, id)
	}
	return int32(p), int64(o), nil
}

// A Query selects dead letters. A letter has to match every field that is set.
type Query struct {
	// IDs selects single letters, in any state.
	IDs   []string
	Role  schemas.Role
	Topic schemas.Topic // first topic of the message
	Class string
	Cause string // substring of the error
	Since time.Time
	// Closed includes letters that were redriven or discarded.
	Closed bool
}

// Restricted reports whether q restricts the selection at all.
func (q Query) Restricted() bool {
	return len(q.IDs) > 0 || q.Role != "" || q.Topic != "" || q.Class != "" || q.Cause != "" || !q.Since.IsZero()
}

func (q Query) matches(l *Letter) bool {
	switch {
	case q.Role != "" && l.Role != q.Role,
		q.Topic != "" && l.Topic != q.Topic,
		q.Class != "" && l.Class != q.Class,
		q.Cause != "" && !strings.Contains(l.Error, q.Cause),
		l.Time.Before(q.Since):
		return false
	}
	return len(q.IDs) > 0 || q.Closed || l.State == Open
}

// Letters reads topic dead and redrives or discards dead letters. It removes nothing from the topic:
// decisions are records of topic admin, and every process derives the state of a letter from them.
type Letters struct {
	cfg    client.Config
	cl     *kgo.Client
	adm    *kadm.Client
	router *core.Router
}

// New returns Letters. It connects when a method is called. The caller must call Close.
func New(cfg client.Config) (*Letters, error) {
	cl, err := cfg.NewClient("dead", cfg.ProduceOptions(core.ProducerTimeout, core.ProducerLinger)...)
	if err != nil {
		return nil, err
	}
	return &Letters{cfg: cfg, cl: cl, adm: kadm.NewClient(cl), router: core.NewRouter(cfg, "dead", 0)}, nil
}

// Close closes the connections.
func (d *Letters) Close() { d.cl.Close() }

// Each calls f for the letters that q selects, in order within a partition. It leaves out letters that are added
// while it runs, and keeps no letter after f returns. If q names an id that does not exist, it returns an error
// and calls f for none.
func (d *Letters) Each(ctx context.Context, q Query, f func(*Letter) error) error {
	name := d.cfg.Topic(schemas.Dead)
	parts, err := core.TopicRanges(ctx, d.adm, name)
	if err != nil {
		return fmt.Errorf("read dead letters: %w", err)
	}
	var wanted map[string]bool // nil: all letters
	if len(q.IDs) > 0 {
		if wanted, err = d.lookupIDs(ctx, q.IDs, parts); err != nil {
			return err
		}
	}
	acts, err := d.decisions(ctx, wanted)
	if err != nil {
		return err
	}
	return d.scan(ctx, name, parts, func(rec *kgo.Record, inc uint32) error {
		id := formatID(rec.Partition, rec.Offset)
		if wanted != nil && !wanted[id] {
			return nil
		}
		l := d.newLetter(rec, inc)
		acts.annotate(l)
		if !q.matches(l) {
			return nil
		}
		return f(l)
	})
}

// lookupIDs returns ids as a set, and narrows parts to the offsets that hold them. It fails if one does not exist.
func (d *Letters) lookupIDs(
	ctx context.Context, ids []string, parts map[int32]core.Range,
) (map[string]bool, error) {
	wanted, narrow := map[string]bool{}, map[int32]core.Range{}
	for _, id := range ids {
		p, at, err := parseID(id)
		if err != nil {
			return nil, err
		}
		if has, ok := parts[p]; !ok || at < has.From || at >= has.To {
			return nil, fmt.Errorf("%w: %s", errNotFound, id)
		}
		wanted[formatID(p, at)] = true
		s, ok := narrow[p]
		if !ok {
			s = core.Range{From: at, To: at + 1}
		}
		narrow[p] = core.Range{From: min(s.From, at), To: max(s.To, at+1)}
	}
	missing := maps.Clone(wanted)
	name := d.cfg.Topic(schemas.Dead)
	if err := d.scan(ctx, name, narrow, func(rec *kgo.Record, _ uint32) error {
		delete(missing, formatID(rec.Partition, rec.Offset))
		return nil
	}); err != nil {
		return nil, err
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("%w: %s", errNotFound, strings.Join(slices.Sorted(maps.Keys(missing)), ", "))
	}
	clear(parts)
	maps.Copy(parts, narrow)
	return wanted, nil
}

func (d *Letters) newLetter(rec *kgo.Record, inc uint32) *Letter {
	h := core.ParseRetryHeaders(rec.Headers)
	return &Letter{
		ID: formatID(rec.Partition, rec.Offset), State: Open, Time: rec.Timestamp,
		Role: h.Role, Class: h.Class, Error: h.Err,
		Attempts: h.Attempts, Waits: h.Waits, History: h.History, Topic: h.Topic, Partition: h.Partition, Offset: h.Offset,
		Key: rec.Key, Value: rec.Value, Headers: core.HeadersOf(rec), rec: rec, inc: inc,
	}
}
