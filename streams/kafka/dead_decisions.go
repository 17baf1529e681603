package kafka

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// A letterAt names a dead letter: a letter in a topic that was deleted and made again is not taken for its namesake,
// about which something was decided.
type letterAt struct {
	offset      int64
	partition   int32
	incarnation uint32
}

// target is how admin actions name a letter.
func target(id string, inc uint32) string { return fmt.Sprintf("%s@%08x", id, inc) }

// parseTarget is the inverse of target.
func parseTarget(target string) (at letterAt, ok bool) {
	id, hex, ok := strings.Cut(target, "@")
	inc, errInc := strconv.ParseUint(hex, 16, 32)
	partition, offset, err := parseDeadID(id)
	return letterAt{offset, partition, uint32(inc)}, ok && errInc == nil && err == nil
}

// A decision is what the admin topic says of one letter. There may be millions: it holds no text of its own.
type decision struct {
	nanos     int64  // when the newest one was made, since 1970
	first     uint64 // hash of the id of the first one
	saying    int32  // that of the newest one
	times     int32
	discarded bool // else redriven
}

// A saying is who decided, and why: a command says the same of all its letters.
type saying struct{ who, reason string }

// decisions are what the admin topic says of letters.
type decisions struct {
	of      map[letterAt]decision
	further map[uint64]bool // hashes of the ids of decisions that are not the first of their letters
	sayings []saying
	known   map[saying]int32
}

// tell says in l what was decided about it.
func (ds *decisions) tell(l *DeadLetter) {
	at, ok := ds.of[letterAt{l.rec.Offset, l.rec.Partition, l.inc}]
	if !ok {
		return
	}
	said := ds.sayings[at.saying]
	l.State, l.Decided, l.By, l.Reason, l.decisions = DeadRedriven, time.Unix(0, at.nanos).UTC(), said.who, said.reason, int(at.times)
	if at.discarded {
		l.State = DeadDiscarded
	}
}

// add takes in an action. One that was published twice counts once.
func (ds *decisions) add(at letterAt, a *pb.AdminAction) {
	id, nanos := schemas.Hash([]byte(a.GetId())), a.GetTime().AsTime().UnixNano()
	d, decided := ds.of[at]
	switch {
	case !decided:
		d.first = id
	case d.first == id || ds.further[id]:
		return
	default:
		ds.further[id] = true
	}
	d.times++
	if !decided || d.nanos <= nanos {
		d.nanos, d.saying, d.discarded = nanos, ds.say(saying{a.GetWho(), a.GetReason()}), a.GetAction() == actionDiscard
	}
	ds.of[at] = d
}

func (ds *decisions) say(s saying) int32 {
	n, ok := ds.known[s]
	if !ok {
		n = int32(len(ds.sayings))
		ds.sayings, ds.known[s] = append(ds.sayings, s), n
	}
	return n
}

// decisions reads from topic admin what was decided about the letters that are wanted, by their ids; nil is all.
func (d *DeadLetters) decisions(ctx context.Context, wanted map[string]bool) (*decisions, error) {
	name := d.cfg.topic(schemas.Admin)
	parts, err := spans(ctx, d.adm, name)
	if err != nil {
		return nil, fmt.Errorf("look for decisions about dead letters: %w", err)
	}
	ds := &decisions{of: map[letterAt]decision{}, further: map[uint64]bool{}, known: map[saying]int32{}}
	err = d.scan(ctx, name, parts, func(rec *kgo.Record, _ uint32) error {
		body, err := schemas.Decode(schemas.Admin, headersOf(rec), rec.Value)
		if err != nil {
			d.router.log.Warn("an admin action cannot be read", "partition", rec.Partition, "offset", rec.Offset, "err", err)
			return nil
		}
		a := body.(*pb.AdminAction)
		if a.GetAction() != actionRedrive && a.GetAction() != actionDiscard {
			return nil
		}
		at, ok := parseTarget(a.GetTarget())
		if ok && (wanted == nil || wanted[deadID(at.partition, at.offset)]) {
			ds.add(at, a)
		}
		return nil
	})
	return ds, err
}

// scan is that of all, in little memory: what fills a dead letter, texts of errors and stacks, is a twentieth of its size
// when it is compressed.
func (d *DeadLetters) scan(ctx context.Context, topic string, parts map[int32]span, f func(*kgo.Record, uint32) error) error {
	return (&scanner{cfg: d.cfg, topic: topic, fetch: batchFetchBytes}).scan(ctx, parts, f)
}
