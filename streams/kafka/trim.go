package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/schemas"
)

// A Trimmer deletes records of work topics: those that every reader of the catalogue has
// handled and that are older than keep. What only passes through, in delay lanes and on its way back, is not
// kept once it was handled: in a long pause all that waits passes through every few minutes. Where it is not known what a reader has handled,
// nothing is deleted. Topics that are kept or compacted are left alone.
type Trimmer struct {
	admin      *Admin
	keep       time.Duration
	heldTopics []schemas.Topic // that lacking is asked for
	firstHeld  func(context.Context) (map[schemas.Topic]map[int32]int64, error)
	log        *slog.Logger
	blocked    map[trimBlock]bool // as of the last Trim
}

// A block is why a topic could not be trimmed or, without a group, what is wrong with it although it is.
type trimBlock struct {
	group, topic string
	// ahead: the group has committed what the topic does not have, and not nothing.
	ahead bool
}

const (
	// futureSlack is how far another machine's clock may be ahead of ours before a record counts as of the future.
	maxClockSkew = 10 * time.Minute
	// futureLimit bounds the time for which a call of Trim reads records that follow one of the future.
	futureScanTimeout = 30 * time.Second
)

// NewTrimmer returns a Trimmer that uses a, which stays the caller's.
func NewTrimmer(a *Admin, keep time.Duration) *Trimmer {
	return &Trimmer{admin: a, keep: keep, log: a.cfg.logger().With("part", "trimmer"), blocked: map[trimBlock]bool{}}
}

// Keep has the trimmer leave of some topics what lacking returns: by topic and partition, the first record that must
// still be read by other means than a group. If that is not known, nothing of them is trimmed. It is called before the
// first Trim.
func (t *Trimmer) Keep(topics []schemas.Topic, lacking func(context.Context) (map[schemas.Topic]map[int32]int64, error)) {
	t.heldTopics, t.firstHeld = topics, lacking
}

// A ledger is what is known of a topic that may be trimmed.
type trimState struct {
	name        string
	readers     []string // their groups
	passThrough bool     // its records are of other topics, and come and go
	// commits is by group and partition; a group is absent where it is not known what it has committed.
	commits                map[string]map[int32]int64
	starts, ends, keptFrom map[int32]int64 // aged: the first record that is kept for its age
	future                 map[int32]bool  // aged is a record of the future
	heldFrom               map[int32]int64 // the first record that must still be read by other means than a group
	heldUnknown            bool            // which that is
}

// upTo returns up to where a partition may be trimmed, and which groups have it otherwise. The newest record stays: the
// embedded broker keeps in its directory only the end of a log that holds a record. After a restart an empty log would
// begin at offset 0 again, and groups would not read what is written below the offsets that they have committed.
func (l *trimState) trimOffset(id int32) (to int64, blocks []trimBlock) {
	start, okStart := l.starts[id]
	end, okEnd := l.ends[id]
	to, okAged := l.keptFrom[id]
	if !okStart || !okEnd || !okAged || l.heldUnknown || to <= start {
		return start, nil // what is not known is not trimmed
	}
	if first, ok := l.heldFrom[id]; ok {
		to = min(to, first)
	}
	for _, group := range l.readers {
		commits, known := l.commits[group]
		at, ok := commits[id]
		switch {
		case !known:
			to = start
		case !ok:
			to, blocks = start, append(blocks, trimBlock{group, l.name, false})
		case at > end: // of a topic that was made again, or lost its end: it says nothing of this one
			to, blocks = start, append(blocks, trimBlock{group, l.name, true})
		default:
			to = min(to, at)
		}
	}
	return max(min(to, end-1), start), blocks
}

// Trim trims all topics, and returns how many records it deleted of which. An error does not keep
// it from the other topics and partitions; what was not deleted, or was but is reported not to
// have been, is left to the next call. It is not called twice at a time.
func (t *Trimmer) Trim(ctx context.Context) (removed map[schemas.Topic]int64, err error) {
	ledgers, err := t.trimStates(ctx)
	if ledgers == nil {
		return nil, err
	}
	errs := []error{err}
	var (
		cut     kadm.Offsets
		from    = offsets{}
		blocked = map[trimBlock]bool{}
	)
	for _, l := range ledgers {
		from[l.name] = l.starts
		if len(l.future) > 0 {
			blocked[trimBlock{topic: l.name}] = true
			errs = append(errs, t.passFutureRecords(ctx, l))
		}
		for id, start := range l.starts {
			to, blocks := l.trimOffset(id)
			for _, b := range blocks {
				blocked[b] = true
			}
			if to > start {
				cut.AddOffset(l.name, id, to, -1)
			}
		}
	}
	t.report(ledgers, blocked)
	if len(cut) == 0 {
		return nil, errors.Join(errs...)
	}
	resp, err := t.admin.adm.DeleteRecords(ctx, cut)
	if err != nil {
		errs = append(errs, fmt.Errorf("delete records: %w", err))
	}
	removed = map[schemas.Topic]int64{}
	for topic, ps := range resp {
		for id, r := range ps {
			switch at, _ := cut.Lookup(topic, id); {
			case r.Err == nil:
				removed[t.admin.cfg.schemaTopic(topic)] += at.At - from[topic][id]
			case !errors.Is(r.Err, kerr.OffsetOutOfRange): // another process was faster
				errs = append(errs, fmt.Errorf("delete records of %s: %w", partition{topic, id}, r.Err))
			}
		}
	}
	return removed, errors.Join(errs...)
}

// pass has partitions whose first record that is kept is of the future trimmed by the records that follow: its clock was
// wrong, and it is at least as old as they are. Up to the last of them that is older than keep all is; with one that is
// not, or with none, nothing is known of those before it.
func (t *Trimmer) passFutureRecords(ctx context.Context, l *trimState) error {
	now := time.Now()
	behind := map[int32]offsetRange{}
	for id := range l.future {
		free := *l
		free.keptFrom = l.ends
		if to, _ := free.trimOffset(id); to > l.keptFrom[id] {
			behind[id] = offsetRange{l.keptFrom[id], to}
		}
	}
	if len(behind) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, futureScanTimeout, errScanDone)
	defer cancel()
	kept := map[int32]bool{}
	err := scan(ctx, t.admin.cfg, l.name, behind, func(rec *kgo.Record, _ uint32) error {
		id := rec.Partition
		if kept[id] {
			return nil
		}
		switch {
		case !rec.Timestamp.After(now.Add(-t.keep)):
			l.keptFrom[id] = rec.Offset + 1
		case !rec.Timestamp.After(now.Add(maxClockSkew)):
			kept[id] = true
		}
		if len(kept) == len(behind) {
			return errScanDone
		}
		return nil
	})
	if err != nil && !errors.Is(err, errScanDone) {
		return fmt.Errorf("read what follows records of the future: %w", err)
	}
	return nil
}

// errPassed says that enough was read.
var errScanDone = errors.New("enough was read")

// report logs what cannot be trimmed, and what can be again: each once.
func (t *Trimmer) report(ledgers map[string]*trimState, now map[trimBlock]bool) {
	for b := range t.blocked {
		l := ledgers[b.topic]
		if l == nil || b.group != "" && l.commits[b.group] == nil || len(l.keptFrom) == 0 { // not known this time
			now[b] = true
		} else if !now[b] && b.group != "" {
			t.log.Info("a topic can be trimmed again", "group", b.group, "topic", b.topic)
		}
	}
	for b := range now {
		switch {
		case t.blocked[b]:
		case b.group == "":
			for id := range ledgers[b.topic].future {
				t.log.Warn("a topic has records of the future: a clock is, or was, wrong", "topic", b.topic, "partition", id)
			}
		case b.ahead:
			t.log.Warn("a topic is not trimmed: a group has committed an offset beyond its end", "group", b.group, "topic", b.topic)
		default:
			t.log.Warn("a topic is not trimmed: a group that reads it has committed nothing", "group", b.group, "topic", b.topic)
		}
	}
	t.blocked = now
}

// ledgers returns what is known of the topics to be trimmed, by name. Its error says what is not
// known; without any ledger, nothing is.
func (t *Trimmer) trimStates(ctx context.Context) (map[string]*trimState, error) {
	ledgers, read, err := t.topics(ctx)
	if err != nil {
		return nil, fmt.Errorf("list topics: %w", err)
	}
	var errs []error
	// First what was committed: what is committed meanwhile is not trimmed yet.
	for role, topics := range read {
		done, err := t.admin.committed(ctx, role, topics...)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for group, topics := range t.admin.groupTopics(role, topics) {
			for _, name := range topics {
				if ledgers[name].commits[group] = done[name]; done[name] == nil {
					ledgers[name].commits[group] = map[int32]int64{}
				}
			}
		}
	}
	// Then what is lacking of that.
	if err := t.setHeld(ctx, ledgers); err != nil {
		errs = append(errs, err)
	}
	names := slices.Sorted(maps.Keys(ledgers))
	note := func(listed kadm.ListedOffsets, err error, what string, into func(*trimState) *map[int32]int64) {
		if err != nil {
			errs = append(errs, fmt.Errorf("list %s: %w", what, err))
		}
		for topic, ps := range listed {
			at := into(ledgers[topic])
			*at = map[int32]int64{}
			for id, l := range ps {
				if l.Err != nil && !errors.Is(l.Err, kerr.UnknownTopicOrPartition) {
					errs = append(errs, fmt.Errorf("list %s: %s: %w", what, partition{topic, id}, l.Err))
				} else if l.Err == nil && l.Offset >= 0 {
					(*at)[id] = l.Offset
				}
			}
		}
	}
	listed, err := t.admin.adm.ListStartOffsets(ctx, names...)
	note(listed, err, "start offsets", func(l *trimState) *map[int32]int64 { return &l.starts })
	listed, err = t.admin.adm.ListEndOffsets(ctx, names...)
	note(listed, err, "end offsets", func(l *trimState) *map[int32]int64 { return &l.ends })
	kept := slices.DeleteFunc(names, func(name string) bool { return ledgers[name].passThrough })
	if len(kept) > 0 { // without a name, it would be all topics that there are
		listed, err = t.admin.adm.ListOffsetsAfterMilli(ctx, time.Now().Add(-t.keep).UnixMilli(), kept...)
		note(listed, err, "offsets by time", func(l *trimState) *map[int32]int64 { return &l.keptFrom })
		listed.Each(func(o kadm.ListedOffset) {
			if o.Err == nil && o.Timestamp > time.Now().Add(maxClockSkew).UnixMilli() {
				ledgers[o.Topic].future[o.Partition] = true
			}
		})
	}
	for _, l := range ledgers {
		if l.passThrough {
			l.keptFrom = l.ends
		}
	}
	return ledgers, errors.Join(errs...)
}

// lack notes which records must still be read by other means than a group.
func (t *Trimmer) setHeld(ctx context.Context, ledgers map[string]*trimState) error {
	if t.firstHeld == nil {
		return nil
	}
	lacked, err := t.firstHeld(ctx)
	for _, topic := range t.heldTopics {
		if l := ledgers[t.admin.cfg.topic(topic)]; l != nil {
			l.heldFrom, l.heldUnknown = lacked[topic], err != nil
		}
	}
	if err != nil {
		return fmt.Errorf("look for records that are still to be read, so %v are not trimmed: %w", t.heldTopics, err)
	}
	return nil
}

// topics returns a ledger for each topic that is there and trimmed, and which roles read which of
// them. Delay lanes that the settings no longer name count too.
func (t *Trimmer) topics(ctx context.Context) (map[string]*trimState, map[schemas.Role][]string, error) {
	cfg := t.admin.cfg
	there, err := t.admin.adm.ListTopics(ctx)
	if err != nil {
		return nil, nil, err
	}
	entries := map[string]schemas.Entry{}
	for _, e := range schemas.Catalogue(cfg.laneNames()...) {
		entries[cfg.topic(e.Topic)] = e
	}
	lane, _ := strings.CutSuffix(cfg.topic(schemas.Delay("x")), "x")
	ledgers, read := map[string]*trimState{}, map[schemas.Role][]string{}
	for _, name := range there.Names() {
		e, ok := entries[name]
		if !ok && strings.HasPrefix(name, lane) {
			e = schemas.Entry{Topic: cfg.schemaTopic(name), Cleanup: schemas.Trim, Raw: true, Readers: []schemas.Role{schemas.RoleDelayer}}
		}
		if e.Cleanup != schemas.Trim || len(e.Readers) == 0 {
			continue
		}
		l := &trimState{name: name, passThrough: e.Raw, commits: map[string]map[int32]int64{}, future: map[int32]bool{}}
		for _, role := range e.Readers {
			l.readers = append(l.readers, cfg.group(role, classOf(e, role)))
			read[role] = append(read[role], name)
		}
		ledgers[name] = l
	}
	return ledgers, read, nil
}
