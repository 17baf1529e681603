package read

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
)

// LiveCopies counts the live copies of a space of a store; without a space, those of all its spaces. space is a copy
// without an item.
func LiveCopies(ctx context.Context, db *clickhouse.DB, space schemas.Copy) (int64, error) {
	where, args := inSpace("store", space)
	return db.Count(ctx, "count the live copies of a space",
		"SELECT count() AS n FROM (SELECT max(content.ver) AS written, max(deleted.ver) AS gone FROM {db}.copy_state"+
			" WHERE "+where+" GROUP BY account, store, space, item HAVING written > gone)"+aggregateInOrder, args...)
}

// inSpace selects, for SQL, the rows of a space of a store; without a space, those of all its spaces.
func inSpace(store string, space schemas.Copy) (string, []any) {
	where, args := "account = ? AND "+store+" = ?", []any{space.Account, space.Store}
	if space.Space == "" {
		return where, args
	}
	return where + " AND space = ?", append(args, space.Space)
}

// Executed is a condition, in SQL, for results of what a brake limits.
type Executed string

// What brakes limit: deletes, copies that were replaced with other content, and missing copies that were repaired.
const (
	// Deletes include copies that were absent when their deleter came: one that was killed may have deleted them.
	Deletes  Executed = "(result = 'deleted' OR result = 'gone' AND position(worker, '/deleter/') > 0)"
	Rewrites Executed = "decision IN ('C4', 'C4n') AND result = 'copied'"
	// Repairs are those that a brake has permitted: they have an effect.
	Repairs Executed = "result IN ('repaired', 'was-lost') AND effect != ''"
)

// ExecutedCount is the number of effects that were executed without an approved list in five minutes.
type ExecutedCount struct {
	At    time.Time `ch:"at"` // their begin
	Count uint64    `ch:"done"`
}

// ExecutedSince counts what was executed in a space of a store, or in all spaces of it, since a time, oldest first.
func ExecutedSince(
	ctx context.Context, db *clickhouse.DB, space schemas.Copy, since time.Time, what Executed,
) ([]ExecutedCount, error) {
	where, args := inSpace("destination_store", space)
	return clickhouse.Query[ExecutedCount](ctx, db, "count what was executed in a space",
		"SELECT toDateTime64(toStartOfFiveMinutes(ts), 3, 'UTC') AS at, uniqExact(command) AS done"+
			" FROM {db}.duplication_log_v WHERE "+where+
			" AND list = '' AND would_be = '' AND ts >= fromUnixTimestamp64Milli(?, 'UTC') AND "+string(what)+
			" GROUP BY at ORDER BY at", append(args, since.UnixMilli())...)
}

// A ListQuery selects what is on a list: the deletes, rewrites or repairs of a kind that were held first after the
// decisions about earlier lists, and before the one about it.
type ListQuery struct {
	Space  schemas.Copy // without an item
	Kind   string       // of the list: its name, without the number
	Name   string       // the cause of what was ordered from it
	Before []schemas.Seen
	Until  *schemas.Seen // nil: it was not decided about
	After  string        // only items after this one; empty: all, and the space
	// Waiting selects those without a result since the decision.
	Waiting bool
	Limit   int
}

// seen returns an expression that is true for rows that were seen.
func seen(s schemas.Seen) string {
	if len(s.Ends) == 0 {
		return "false"
	}
	var ids, ends []string
	for _, id := range slices.Sorted(maps.Keys(s.Ends)) {
		ids, ends = append(ids, strconv.Itoa(int(id))), append(ends, strconv.FormatInt(s.Ends[id], 10))
	}
	return fmt.Sprintf("(inc = %d AND off < transform(toUInt64(part), [%s]::Array(UInt64), [%s]::Array(UInt64),"+
		" 0::UInt64))", s.Incarnation, strings.Join(ids, ","), strings.Join(ends, ","))
}

// effects returns a query, and its arguments, for the effects of a list and the results since the decision: a row for
// each effect, of which those that are listed are on the list, unless a later result of the item, mooted, shows that
// they are not to be done any more.
//
// The restores of a refused list go the other way: from the destination of the list.
func (q ListQuery) effects() (string, []any) {
	before := "false"
	if len(q.Before) > 0 {
		all := make([]string, len(q.Before))
		for i, s := range q.Before {
			all[i] = seen(s)
		}
		before = strings.Join(all, " OR ")
	}
	there := []any{q.Space.Account, q.Space.Space, q.Space.Store}
	// Without a decision, of the present topic: of one that was deleted nothing can be seen any more.
	until, args := "inc = (SELECT argMax(inc, ts) FROM {db}.duplication_log_v WHERE account = ? AND space = ?"+
		" AND destination_store = ? AND result = 'awaiting-approval' AND startsWith(list, ?))",
		slices.Concat([]any{q.Kind + "-", q.Name}, there, []any{q.Kind + "-"})
	if q.Until != nil {
		until, args = seen(*q.Until), args[:2]
	}
	return "WITH result = 'awaiting-approval' AND startsWith(list, ?) AS held, cause = ? AS ended," +
			" (" + until + ") AS seen, NOT ended AND reason != 'restore' AND" +
			" has(['" + strings.Join(schemas.Mooting(q.Kind), "', '") + "'], result::String) AS moots" +
			" SELECT item, effect, maxIf(off + 1, moots AND seen) AS mooted, maxIf(off + 1, held AND seen) AS held_at," +
			" maxIf(ts, moots AND NOT seen) AS over_at," +
			" argMaxIf(source_store::String, off, held AND seen) AS source," +
			" argMaxIf(assumeNotNull(change_time), off, held AND seen) AS gone," +
			" argMaxIf(reason::String, off, held AND seen) AS reported," +
			" argMaxIf(source_version, off, held AND seen) AS version, argMaxIf(digests, off, held AND seen) AS known," +
			" argMaxIf(detail, off, held AND seen) AS about, argMaxIf(incident, off, held AND seen) AS ordered_by," +
			" minIf(ts, held) AS first, maxIf(ts, held) AS last," +
			" max(held AND seen) AND NOT max(held AND (" + before + ")) AS listed," +
			" max(ended) AS has_ended, maxIf(ts, ended) AS ended_at, argMaxIf(result::String, ts, ended) AS outcome_of_it," +
			" argMaxIf(if(error != '', error, detail), ts, ended) AS why_so," +
			" max(ended AND result IN ('deleted', 'copied', 'repaired')) AS done," +
			" max(ended AND result IN ('restored', 'already-restored')) AS back" +
			" FROM {db}.duplication_log_v WHERE account = ? AND space = ?" +
			" AND if(reason = 'restore', source_store, destination_store) = ? AND would_be = ''" +
			" AND (held OR ended OR moots AND item IN (SELECT item FROM {db}.duplication_log_v WHERE account = ?" +
			" AND space = ? AND destination_store = ? AND result = 'awaiting-approval' AND startsWith(list, ?)))" +
			" AND (item > ? OR ? = '') GROUP BY item, effect",
		slices.Concat(args, there, there, []any{q.Kind + "-", q.After, q.After})
}

// A ListedDelete is an item whose delete, rewrite or repair is or was on a list: its newest effect there. The delete of
// the space itself has no item.
type ListedDelete struct {
	Item        string
	SourceStore string
	Effect      string
	Deleted     time.Time // when the source was deleted or changed
	Listed      time.Time // when it was first put on the list
	Reason      pb.DuplicationReason
	Version     string            // of the source's content; of a rewrite, as Deleted is of a delete
	Digests     map[string]string // those known of that content
	Detail      string            // why it waits
	Incident    string            // that ordered a repair
	Result      string            // after the decision, also of the restore; empty: none yet
	Why         string            // the detail or the error of that result
}

// onList selects the items on a list, of the effects of each of them.
const onList = " HAVING max(listed) AND maxIf(held_at, listed) > max(mooted)"

// ListedDeletes returns the deletes, rewrites or repairs on a list, in the order of items.
func ListedDeletes(ctx context.Context, db *clickhouse.DB, q ListQuery) ([]ListedDelete, error) {
	type row struct {
		Item    string            `ch:"item"`
		Source  string            `ch:"of_store"`
		Effect  string            `ch:"newest"`
		Deleted time.Time         `ch:"deleted"`
		Listed  time.Time         `ch:"since"`
		Reason  string            `ch:"reason_of_it"`
		Version string            `ch:"content"`
		Digests map[string]string `ch:"digests_of_it"`
		Detail  string            `ch:"cause_of_it"`
		Ordered string            `ch:"ordered_by_it"`
		Result  string            `ch:"result_of_it"`
		Why     string            `ch:"why_of_it"`
	}
	having := onList
	if q.Waiting {
		having += " AND NOT max(has_ended)"
	}
	effects, args := q.effects()
	rows, err := clickhouse.Query[row](ctx, db, "list the deletes that wait for approval",
		"SELECT item, argMaxIf(source, held_at, listed) AS of_store, argMaxIf(effect, held_at, listed) AS newest,"+
			" argMaxIf(gone, held_at, listed) AS deleted, minIf(first, listed) AS since,"+
			" argMaxIf(reported, held_at, listed) AS reason_of_it, argMaxIf(version, held_at, listed) AS content,"+
			" argMaxIf(known, held_at, listed) AS digests_of_it, argMaxIf(about, held_at, listed) AS cause_of_it,"+
			" argMaxIf(ordered_by, held_at, listed) AS ordered_by_it,"+
			" argMaxIf(outcome_of_it, ended_at, has_ended) AS result_of_it, argMaxIf(why_so, ended_at, has_ended) AS why_of_it"+
			" FROM ("+effects+") GROUP BY item"+having+" ORDER BY item LIMIT ?", append(args, q.Limit)...)
	all := make([]ListedDelete, len(rows))
	for i, r := range rows {
		all[i] = ListedDelete{r.Item, r.Source, r.Effect, r.Deleted, r.Listed,
			pb.DuplicationReason(enumValue(pb.DuplicationReason_value, "DUPLICATION_REASON_", r.Reason)),
			r.Version, r.Digests, r.Detail, r.Ordered, r.Result, r.Why}
	}
	return all, err
}

// ListProgress counts the deletes, rewrites or repairs of a list.
type ListProgress struct {
	Items    uint64    `ch:"items"`
	Ended    uint64    `ch:"ended_items"`  // with a result since the decision
	Done     uint64    `ch:"done_items"`   // with the result deleted, copied or repaired since then
	Restored uint64    `ch:"back_items"`   // of a refused list: whose source is back
	Moot     uint64    `ch:"moot_items"`   // not in Items: what was held of them is not to be done any more
	Source   string    `ch:"source_of_it"` // the store whose items were deleted or replaced
	First    time.Time `ch:"since"`        // when the first and the last were put on the list
	Last     time.Time `ch:"until"`
}

// ProgressOfList counts the deletes, rewrites or repairs of a list. Of q, After, Waiting and Limit do not count.
func ProgressOfList(ctx context.Context, db *clickhouse.DB, q ListQuery) (p ListProgress, err error) {
	q.After = ""
	effects, args := q.effects()
	rows, err := clickhouse.Query[ListProgress](ctx, db, "count the deletes that wait for approval",
		"SELECT countIf(is_listed) AS items, countIf(is_listed AND is_over) AS ended_items,"+
			" countIf(is_listed AND is_done) AS done_items, countIf(is_listed AND is_back) AS back_items,"+
			" countIf(was_listed AND NOT is_listed) AS moot_items,"+
			" anyIf(source_of, is_listed) AS source_of_it,"+
			" minIf(begun, is_listed) AS since, maxIf(newest, is_listed) AS until FROM ("+
			"SELECT item, max(listed) AS was_listed, was_listed AND maxIf(held_at, listed) > max(mooted) AS is_listed,"+
			" max(has_ended) AS is_over, max(done) AS is_done, max(back) AS is_back,"+
			" anyIf(source, listed) AS source_of, minIf(first, listed) AS begun, maxIf(last, listed) AS newest FROM ("+
			effects+") GROUP BY item)", args...)
	if err == nil && len(rows) > 0 {
		p = rows[0]
	}
	return p, err
}

// KeptOfList counts the copies that the decision about a list keeps still: no source of them is back, and no later
// result of the item shows that it is over. Of q, After, Waiting and Limit do not count.
func KeptOfList(ctx context.Context, db *clickhouse.DB, q ListQuery) (int64, error) {
	q.After = ""
	effects, args := q.effects()
	where, space := inSpace("store", q.Space)
	return db.Count(ctx, "count the copies that a decision keeps", "SELECT count() AS n FROM (SELECT item FROM ("+effects+
		") GROUP BY item"+onList+" AND maxIf(last, listed) >= max(over_at) AND NOT max(back)) WHERE item IN (SELECT item"+
		" FROM {db}.copy_state WHERE "+where+" AND item IN (SELECT item FROM {db}.duplication_log_v WHERE account = ?"+
		" AND space = ? AND destination_store = ? AND result = 'awaiting-approval')"+
		" GROUP BY account, store, space, item HAVING max(content.ver) > max(deleted.ver))",
		slices.Concat(args, space, []any{q.Space.Account, q.Space.Space, q.Space.Store})...)
}

// SeenResults says how far duplication.results is stored for a space at a destination. The positions are those of the
// newest incarnation of the topic.
func SeenResults(ctx context.Context, db *clickhouse.DB, space schemas.Copy) (s schemas.Seen, err error) {
	rows, err := clickhouse.Query[struct {
		Incarnation uint32 `ch:"inc"`
		Partition   uint16 `ch:"part"`
		End         uint64 `ch:"end"`
	}](ctx, db, "read how far the deletes that wait for approval are stored",
		"SELECT inc, part, max(off) + 1 AS end FROM {db}.duplication_log_v WHERE account = ? AND space = ?"+
			" AND destination_store = ? AND topic = 'duplication.results' GROUP BY inc, part ORDER BY max(ts)",
		space.Account, space.Space, space.Store)
	for _, r := range rows {
		if s.Incarnation != r.Incarnation || s.Ends == nil {
			s = schemas.Seen{Incarnation: r.Incarnation, Ends: map[int32]int64{}}
		}
		s.Ends[int32(r.Partition)] = int64(r.End)
	}
	return s, err
}

// FirstOfList returns the first offset of a list by partition, in the newest incarnation of the topic. Of q, After,
// Waiting and Limit do not count.
func FirstOfList(ctx context.Context, db *clickhouse.DB, q ListQuery) (first map[int32]int64, err error) {
	q.After = ""
	effects, args := q.effects()
	rows, err := clickhouse.Query[struct {
		Incarnation uint32 `ch:"incarnation"`
		Partition   uint16 `ch:"in_part"`
		Offset      uint64 `ch:"first_off"`
	}](ctx, db, "read where a list begins",
		"SELECT inc AS incarnation, part AS in_part, min(off) AS first_off FROM {db}.duplication_log_v"+
			" WHERE account = ? AND space = ? AND destination_store = ? AND result = 'awaiting-approval'"+
			" AND startsWith(list, ?) AND effect IN (SELECT effect FROM ("+effects+") WHERE listed)"+
			" GROUP BY inc, part ORDER BY max(ts)",
		append([]any{q.Space.Account, q.Space.Space, q.Space.Store, q.Kind + "-"}, args...)...)
	incarnation := uint32(0)
	for _, r := range rows {
		if first == nil || incarnation != r.Incarnation {
			first, incarnation = map[int32]int64{}, r.Incarnation
		}
		first[int32(r.Partition)] = int64(r.Offset)
	}
	return first, err
}

// An EffectResult is a result about an effect on a copy.
type EffectResult struct {
	schemas.Coordinates
	List, Effect string
	Held, Done   bool
}

// ResultsOfEffect returns the results that say that an effect on a copy, or another one for the same reason, was held,
// and those that say that the effect was done. The id of an effect begins with its reason; see held.ReasonOf.
func ResultsOfEffect(
	ctx context.Context, db *clickhouse.DB, at schemas.Copy, effect, reason string,
) (all []EffectResult, err error) {
	rows, err := clickhouse.Query[struct {
		Incarnation uint32 `ch:"inc"`
		Partition   uint16 `ch:"part"`
		Offset      uint64 `ch:"off"`
		List        string `ch:"list"`
		Effect      string `ch:"effect"`
		Held        bool   `ch:"is_held"`
	}](ctx, db, "read what is known of an effect",
		"SELECT inc, part, off, list, effect, result = 'awaiting-approval' AS is_held FROM {db}.duplication_log_v"+
			" WHERE account = ? AND space = ? AND item = ? AND destination_store = ? AND (is_held"+
			" AND splitByChar('-', effect)[1] = ? OR effect = ? AND outcome = 'done')",
		at.Account, at.Space, at.Item, at.Store, reason, effect)
	for _, r := range rows {
		all = append(all, EffectResult{schemas.Coordinates{Incarnation: r.Incarnation, Partition: int32(r.Partition),
			Offset: int64(r.Offset)}, r.List, r.Effect, r.Held, !r.Held})
	}
	return all, err
}

// DecisionsAbout returns the decisions of operators about lists of a space, in the order of the topic.
func DecisionsAbout(ctx context.Context, db *clickhouse.DB, account, space string) ([]*pb.AdminAction, error) {
	rows, err := clickhouse.Query[struct {
		ID     string    `ch:"id"`
		Action string    `ch:"action"`
		Who    string    `ch:"who"`
		Target string    `ch:"target"`
		Reason string    `ch:"reason"`
		Before string    `ch:"before"`
		After  string    `ch:"after"`
		At     time.Time `ch:"ts"`
	}](ctx, db, "read the decisions about lists",
		"SELECT id, action::String AS action, who, target, reason, before, after, ts FROM {db}.admin_log_v"+
			" WHERE account = ? AND space = ? AND action IN ('approve-list', 'refuse-list', 'close-list')"+
			" ORDER BY min(ts) OVER (PARTITION BY inc), part, off", account, space)
	all := make([]*pb.AdminAction, len(rows))
	for i, r := range rows {
		all[i] = &pb.AdminAction{Id: r.ID, Action: r.Action, Who: r.Who, Target: r.Target, Reason: r.Reason,
			Before: r.Before, After: r.After, Time: timestamppb.New(r.At)}
	}
	return all, err
}
