package admin

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

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/kafka/internal/core"
)

// A Trimmer deletes records of work topics that are older than keep and that every reader of the catalogue has
// committed. Records of pass-through topics (delay.*, again.*, backlog.*) are deleted as soon as they are committed,
// whatever their age: during a long pause all waiting records pass through these topics every few minutes. If the
// commits of a reader are unknown, nothing is deleted. Topics that are kept or compacted are never trimmed.
type Trimmer struct {
	admin      *Admin
	keep       time.Duration
	heldTopics []schemas.Topic // topics for which firstHeld is called
	firstHeld  func(context.Context) (map[schemas.Topic]map[int32]int64, error)
	log        *slog.Logger
	blocked    map[trimBlock]bool // at the last Trim
}

// A trimBlock is a reason why a topic could not be trimmed.
type trimBlock struct {
	group, topic string
	// ahead: the group has committed an offset beyond the log end. Otherwise it has committed nothing.
	ahead bool
}

// NewTrimmer returns a Trimmer that uses a. The caller still has to close a.
func NewTrimmer(a *Admin, keep time.Duration) *Trimmer {
	return &Trimmer{admin: a, keep: keep, log: a.cfg.Logger().With("part", "trimmer"), blocked: map[trimBlock]bool{}}
}

// Hold makes the trimmer keep records that are still needed by readers without a group. firstHeld returns, by topic
// and partition, the first offset to keep. If it fails, none of topics is trimmed. Hold must be called before the
// first Trim.
func (t *Trimmer) Hold(
	topics []schemas.Topic, firstHeld func(context.Context) (map[schemas.Topic]map[int32]int64, error),
) {
	t.heldTopics, t.firstHeld = topics, firstHeld
}

// LogTo sets the log of what later calls of Trim find.
func (t *Trimmer) LogTo(log *slog.Logger) { t.log = log.With("part", "trimmer") }

// A trimState is the state of a topic that may be trimmed.
type trimState struct {
	name        string
	readers     []string // groups
	passThrough bool     // records are deleted as soon as they are committed
	// commits holds offsets by group and partition. A group is absent if its commits are unknown.
	commits                map[string]map[int32]int64
	starts, ends, keptFrom map[int32]int64 // keptFrom: first offset that is not older than keep
	heldFrom               map[int32]int64 // first offset that a reader without a group needs
	heldUnknown            bool            // heldFrom could not be read
}

// trimOffset returns the offset up to which a partition may be trimmed, and the groups that prevent it. The
// latest record is always kept: the embedded broker stores the end of a log only together with a record. After a
// restart an empty log would start at offset 0 again, and groups would skip records below the offsets that they
// have committed.
func (l *trimState) trimOffset(id int32) (to int64, blocks []trimBlock) {
	start, okStart := l.starts[id]
	end, okEnd := l.ends[id]
	to, okAged := l.keptFrom[id]
	if !okStart || !okEnd || !okAged || l.heldUnknown || to <= start {
		return start, nil // some offset is unknown
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
		case at > end: // the topic was recreated, or its log truncated: the commit is of another log
			to, blocks = start, append(blocks, trimBlock{group, l.name, true})
		default:
			to = min(to, at)
		}
	}
	return max(min(to, end-1), start), blocks
}

// Trim trims all topics, and returns the number of deleted records by topic. An error in one partition does not
// stop the others; the next call tries again. Calls must not overlap.
func (t *Trimmer) Trim(ctx context.Context) (removed map[schemas.Topic]int64, err error) {
	states, err := t.trimStates(ctx)
	if states == nil {
		return nil, err
	}
	errs := []error{err}
	var (
		cut     kadm.Offsets
		from    = core.Offsets{}
		blocked = map[trimBlock]bool{}
	)
	for _, l := range states {
		from[l.name] = l.starts
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
	t.report(states, blocked)
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
				removed[t.admin.cfg.SchemaTopic(topic)] += at.At - from[topic][id]
			case !errors.Is(r.Err, kerr.OffsetOutOfRange): // another process has trimmed it
				err := fmt.Errorf("delete records of %s: %w", core.Partition{Topic: topic, ID: id}, r.Err)
				errs = append(errs, client.Refused(err, "Delete", topic, ""))
			}
		}
	}
	return removed, errors.Join(errs...)
}

// report logs topics that cannot be trimmed, and those that can be trimmed again. Each change is logged once.
func (t *Trimmer) report(states map[string]*trimState, now map[trimBlock]bool) {
	for b := range t.blocked {
		l := states[b.topic]
		if l == nil || l.commits[b.group] == nil || len(l.keptFrom) == 0 { // unknown this time
			now[b] = true
		} else if !now[b] {
			t.log.Info("trim topic again", "group", b.group, "topic", b.topic)
		}
	}
	for b := range now {
		switch {
		case t.blocked[b]:
		case b.ahead:
			t.log.Warn("skip trimming topic: a group has committed an offset beyond its end",
				"group", b.group, "topic", b.topic)
		default:
			t.log.Warn("skip trimming topic: a group that reads it has committed nothing", "group", b.group, "topic", b.topic)
		}
	}
	t.blocked = now
}

// trimStates returns the states of the topics to trim, by name. Its error lists what is unknown; the result is
// nil if nothing is known.
func (t *Trimmer) trimStates(ctx context.Context) (map[string]*trimState, error) {
	states, read, err := t.topics(ctx)
	if err != nil {
		return nil, fmt.Errorf("list topics: %w", err)
	}
	var errs []error
	// Read commits before log offsets: records that are committed in between are left to the next Trim.
	for role, topics := range read {
		done, err := t.admin.committed(ctx, role, topics...)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for group, topics := range t.admin.groupTopics(role, topics) {
			for _, name := range topics {
				if states[name].commits[group] = done[name]; done[name] == nil {
					states[name].commits[group] = map[int32]int64{}
				}
			}
		}
	}
	// Read the held offsets after the commits, which they limit.
	if err := t.setHeld(ctx, states); err != nil {
		errs = append(errs, err)
	}
	names := slices.Sorted(maps.Keys(states))
	fill := func(listed kadm.ListedOffsets, err error, kind string, into func(*trimState) *map[int32]int64) {
		if err != nil {
			errs = append(errs, fmt.Errorf("list %s: %w", kind, err))
		}
		for topic, ps := range listed {
			at := into(states[topic])
			*at = map[int32]int64{}
			for id, l := range ps {
				if l.Err != nil && !errors.Is(l.Err, kerr.UnknownTopicOrPartition) {
					errs = append(errs, fmt.Errorf("list %s: %s: %w", kind, core.Partition{Topic: topic, ID: id}, l.Err))
				} else if l.Err == nil && l.Offset >= 0 {
					(*at)[id] = l.Offset
				}
			}
		}
	}
	listed, err := t.admin.adm.ListStartOffsets(ctx, names...)
	fill(listed, err, "start offsets", func(l *trimState) *map[int32]int64 { return &l.starts })
	listed, err = t.admin.adm.ListEndOffsets(ctx, names...)
	fill(listed, err, "end offsets", func(l *trimState) *map[int32]int64 { return &l.ends })
	kept := slices.DeleteFunc(names, func(name string) bool { return states[name].passThrough })
	if len(kept) > 0 { // without names the request would be for all topics
		listed, err = t.admin.adm.ListOffsetsAfterMilli(ctx, t.admin.cfg.Clock.Now().Add(-t.keep).UnixMilli(), kept...)
		fill(listed, err, "offsets by time", func(l *trimState) *map[int32]int64 { return &l.keptFrom })
	}
	for _, l := range states {
		if l.passThrough {
			l.keptFrom = l.ends
		}
	}
	return states, errors.Join(errs...)
}

// setHeld sets the first offsets that readers without a group need.
func (t *Trimmer) setHeld(ctx context.Context, states map[string]*trimState) error {
	if t.firstHeld == nil {
		return nil
	}
	held, err := t.firstHeld(ctx)
	for _, topic := range t.heldTopics {
		if l := states[t.admin.cfg.Topic(topic)]; l != nil {
			l.heldFrom, l.heldUnknown = held[topic], err != nil
		}
	}
	if err != nil {
		return fmt.Errorf("look up held records, so %v are not trimmed: %w", t.heldTopics, err)
	}
	return nil
}

// topics returns a trimState for each existing topic to trim, and the topics that each role reads. It includes
// delay lanes that are no longer configured.
func (t *Trimmer) topics(ctx context.Context) (map[string]*trimState, map[schemas.Role][]string, error) {
	cfg := t.admin.cfg
	there, err := t.admin.adm.ListTopics(ctx)
	if err != nil {
		return nil, nil, err
	}
	entries := map[string]schemas.Entry{}
	for _, e := range schemas.Catalogue(cfg.LaneNames()...) {
		entries[cfg.Topic(e.Topic)] = e
	}
	lane, _ := strings.CutSuffix(cfg.Topic(schemas.Delay("x")), "x")
	states, read := map[string]*trimState{}, map[schemas.Role][]string{}
	for _, name := range there.Names() {
		e, ok := entries[name]
		if !ok && strings.HasPrefix(name, lane) {
			e = schemas.Entry{
				Topic: cfg.SchemaTopic(name), Cleanup: schemas.Trim, Raw: true,
				Readers: []schemas.Role{schemas.RoleDelayer},
			}
		}
		if e.Cleanup != schemas.Trim || len(e.Readers) == 0 {
			continue
		}
		l := &trimState{name: name, passThrough: e.Raw, commits: map[string]map[int32]int64{}}
		for _, role := range e.Readers {
			l.readers = append(l.readers, cfg.Group(role, client.ClassOf(e, role)))
			read[role] = append(read[role], name)
		}
		states[name] = l
	}
	return states, read, nil
}
