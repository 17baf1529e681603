package deadletter

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unique"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka/internal/core"
)

// A deadLetterKey identifies a dead letter. The incarnation of the topic is part of it: if topic dead is deleted
// and recreated, its new letters have the same offsets as old ones.
type letterKey struct {
	offset      int64
	partition   int32
	incarnation uint32
}

// formatTarget is the target of admin actions about a dead letter.
func formatTarget(id string, inc uint32) string { return fmt.Sprintf("%s@%08x", id, inc) }

// parseTarget parses the result of deadTarget.
func parseTarget(target string) (at letterKey, ok bool) {
	id, hex, ok := strings.Cut(target, "@")
	inc, errInc := strconv.ParseUint(hex, 16, 32)
	partition, offset, err := parseID(id)
	return letterKey{offset, partition, uint32(inc)}, ok && errInc == nil && err == nil
}

// A decision sums up the decisions about one letter. There may be millions, so it holds no text of its own.
type decision struct {
	nanos     int64  // time of the latest decision, in Unix nanoseconds
	first     uint64 // hash of the id of the first decision
	latest    unique.Handle[attribution]
	times     int32
	discarded bool // otherwise redriven
}

// An attribution is the author and the reason of decisions. All letters of one command share it.
type attribution struct{ who, reason string }

// decisions holds the decisions about letters that topic admin records.
type decisions struct {
	byLetter map[letterKey]decision
	laterIDs map[uint64]bool // hashes of the ids of all but the first decision of each letter
}

// annotate sets the state of l from the decisions about it.
func (ds *decisions) annotate(l *Letter) {
	at, ok := ds.byLetter[letterKey{l.rec.Offset, l.rec.Partition, l.inc}]
	if !ok {
		return
	}
	by := at.latest.Value()
	l.State, l.Decided, l.decisions = Redriven, time.Unix(0, at.nanos).UTC(), int(at.times)
	l.By, l.Reason = by.who, by.reason
	if at.discarded {
		l.State = Discarded
	}
}

// add adds an action. An action that was published twice counts once.
func (ds *decisions) add(at letterKey, a *pb.AdminAction) {
	id, nanos := schemas.Hash([]byte(a.GetId())), a.GetTime().AsTime().UnixNano()
	d, decided := ds.byLetter[at]
	switch {
	case !decided:
		d.first = id
	case d.first == id || ds.laterIDs[id]:
		return
	default:
		ds.laterIDs[id] = true
	}
	d.times++
	if !decided || d.nanos <= nanos {
		d.nanos, d.discarded = nanos, a.GetAction() == actionDiscard
		d.latest = unique.Make(attribution{a.GetWho(), a.GetReason()})
	}
	ds.byLetter[at] = d
}

// decisions reads the decisions about the wanted letters, by id, from topic admin; nil selects all.
func (d *Letters) decisions(ctx context.Context, wanted map[string]bool) (*decisions, error) {
	name := d.cfg.Topic(schemas.Admin)
	parts, err := core.TopicRanges(ctx, d.adm, name)
	if err != nil {
		return nil, fmt.Errorf("read decisions about dead letters: %w", err)
	}
	ds := &decisions{byLetter: map[letterKey]decision{}, laterIDs: map[uint64]bool{}}
	err = d.scan(ctx, name, parts, func(rec *kgo.Record, _ uint32) error {
		body, err := schemas.Decode(schemas.Admin, core.HeadersOf(rec), rec.Value)
		if err != nil {
			d.router.Log.Warn("skip unreadable admin action", "partition", rec.Partition, "offset", rec.Offset, "err", err)
			return nil
		}
		a := body.(*pb.AdminAction)
		if a.GetAction() != actionRedrive && a.GetAction() != actionDiscard {
			return nil
		}
		at, ok := parseTarget(a.GetTarget())
		if ok && (wanted == nil || wanted[formatID(at.partition, at.offset)]) {
			ds.add(at, a)
		}
		return nil
	})
	return ds, err
}

// maxFetch is the maximum size of a fetch response, compressed.
const maxFetch = 512 << 10

// scan is the function core.Scan with smaller fetches. Dead letters hold error texts and stacks, which compress to a
// twentieth of their size, so a fetch of the usual size would take too much memory.
func (d *Letters) scan(
	ctx context.Context, topic string, parts map[int32]core.Range, f func(*kgo.Record, uint32) error,
) error {
	return (&core.Scanner{Config: d.cfg, Topic: topic, Fetch: maxFetch}).Scan(ctx, parts, f)
}
