package read

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace/sinks/clickhouse"
)

// An Event is a change, copy, check or step of an incident of one item in one store.
type Event struct {
	Time   time.Time `json:"time"`
	Kind   string    `json:"kind"` // change, duplication, check, incident
	Store  string    `json:"store"`
	What   string    `json:"what"`   // such as: add, C5 copied, row 2 fail content-corrupt, opened
	Detail string    `json:"detail"` // size and digests, an error, the detail of a step
	By     string    `json:"by"`     // user, worker or operator
	ID     string    `json:"id"`     // of the message, or of the incident
}

// A timelineQuery selects the events of an item in all stores.
type timelineQuery struct {
	Account, Space, Item string
	After                eventCursor
	Limit                int
}

// An eventCursor is the end of a page of events. The zero cursor is the start.
type eventCursor struct {
	Time time.Time
	Kind string
	ID   string
	Step int64 // of an incident; otherwise 0
}

// Timeline returns all events of an item in all stores, oldest first.
func Timeline(ctx context.Context, db *clickhouse.DB, account, space, item string) ([]Event, error) {
	q := timelineQuery{Account: account, Space: space, Item: item, Limit: 10_000}
	var all []Event
	for {
		page, after, err := timelinePage(ctx, db, q)
		if err != nil {
			return nil, err
		}
		if all = append(all, page...); len(page) < q.Limit {
			return all, nil
		}
		q.After = after
	}
}

// timelinePage returns events of an item after the cursor, oldest first, and the cursor of the next page. A page
// with fewer than Limit events is the last one.
func timelinePage(ctx context.Context, db *clickhouse.DB, q timelineQuery) ([]Event, eventCursor, error) {
	var all []orderedEvent
	for _, part := range []struct {
		kind string
		read func(context.Context, *clickhouse.DB, eventFilter) ([]orderedEvent, error)
	}{
		{"change", changeEvents}, {"duplication", duplicationEvents},
		{"check", checkEvents}, {"incident", incidentEvents},
	} {
		events, err := part.read(ctx, db, q.filter(part.kind))
		if err != nil {
			return nil, q.After, fmt.Errorf("read the timeline of %s/%s/%s: %w", q.Account, q.Space, q.Item, err)
		}
		all = append(all, events...)
	}
	slices.SortStableFunc(all, func(a, b orderedEvent) int { return a.cursor().compare(b.cursor()) })
	all = all[:min(len(all), q.Limit)]
	if len(all) == 0 {
		return nil, q.After, nil
	}
	page := make([]Event, len(all))
	for i, e := range all {
		page[i] = e.Event
	}
	return page, all[len(all)-1].cursor(), nil
}

// An orderedEvent is an event with its step, which orders the events of an incident.
type orderedEvent struct {
	Event
	step int64
}

func (e orderedEvent) cursor() eventCursor { return eventCursor{e.Time, e.Kind, e.ID, e.step} }

func (c eventCursor) compare(o eventCursor) int {
	return cmp.Or(c.Time.Compare(o.Time), cmp.Compare(kindRank(c.Kind), kindRank(o.Kind)),
		cmp.Compare(c.ID, o.ID), cmp.Compare(c.Step, o.Step))
}

// kindRank orders the kinds of events of the same millisecond.
func kindRank(kind string) int {
	return slices.Index([]string{"change", "duplication", "check", "incident"}, kind)
}

// An eventFilter selects the events of one kind after a cursor: those after (millis, id, step).
type eventFilter struct {
	account, space, item string
	millis               int64
	id                   string
	step                 int64
	limit                int
}

// maxID is greater than every id.
const maxID = "g"

func (q timelineQuery) filter(kind string) eventFilter {
	f := eventFilter{q.Account, q.Space, q.Item, afterMillis(q.After.Time), "", -1, q.Limit}
	if q.After == (eventCursor{}) {
		return f
	}
	switch cmp.Compare(kindRank(kind), kindRank(q.After.Kind)) {
	case -1:
		f.id = maxID
	case 0:
		f.id, f.step = q.After.ID, q.After.Step
	}
	return f
}

// logQuery returns the WHERE, ORDER BY and LIMIT of a query of the view of a log, with its arguments.
func (f eventFilter) logQuery() (string, []any) {
	return " WHERE account = ? AND space = ? AND item = ? AND ts >= " + milliParam +
			" AND (ts, id) > (" + milliParam + ", ?) ORDER BY ts, id LIMIT ?",
		[]any{f.account, f.space, f.item, f.millis, f.millis, f.id, f.limit}
}

func changeEvents(ctx context.Context, db *clickhouse.DB, f eventFilter) ([]orderedEvent, error) {
	type change struct {
		Time    time.Time         `ch:"ts"`
		ID      string            `ch:"id"`
		Op      string            `ch:"op"`
		Store   string            `ch:"store"`
		Origin  string            `ch:"origin"`
		Size    *int64            `ch:"size"`
		Digests map[string]string `ch:"digests"`
		User    string            `ch:"user"`
		Agent   string            `ch:"agent"`
	}
	rest, args := f.logQuery()
	rows, err := clickhouse.Query[change](ctx, db, "read changes",
		"SELECT ts, id, op, store, origin, size, digests, user, agent FROM {db}.audit_log_v"+rest, args...)
	events := make([]orderedEvent, len(rows))
	for i, r := range rows {
		detail := formatDigests(r.Digests)
		if r.Op == "add" || r.Op == "update" || r.Op == "copy" {
			size := "unknown size"
			if r.Size != nil {
				size = fmt.Sprintf("%d bytes", *r.Size)
			}
			detail = joinNonEmpty(size, detail)
		}
		events[i].Event = Event{
			r.Time, "change", r.Store, joinNonEmpty(r.Op, "("+r.Origin+")"), detail, cmp.Or(r.User, r.Agent), r.ID,
		}
	}
	return events, err
}

func duplicationEvents(ctx context.Context, db *clickhouse.DB, f eventFilter) ([]orderedEvent, error) {
	type result struct {
		Time     time.Time `ch:"ts"`
		ID       string    `ch:"id"`
		Source   string    `ch:"source_store"`
		Store    string    `ch:"destination_store"`
		Decision string    `ch:"decision"`
		Result   string    `ch:"result"`
		WouldBe  string    `ch:"would_be"`
		Reason   string    `ch:"reason"`
		Bytes    int64     `ch:"bytes"`
		Error    string    `ch:"error"`
		Detail   string    `ch:"detail"`
		Worker   string    `ch:"worker"`
	}
	rest, args := f.logQuery()
	rows, err := clickhouse.Query[result](ctx, db, "read results of duplication",
		"SELECT ts, id, source_store, destination_store, decision, result, would_be, reason,"+
			" bytes, error, detail, worker FROM {db}.duplication_log_v"+
			rest, args...)
	events := make([]orderedEvent, len(rows))
	for i, r := range rows {
		if r.WouldBe != "" {
			r.Result += " would be " + r.WouldBe
		}
		events[i].Event = Event{r.Time, "duplication", r.Store, joinNonEmpty(r.Decision, r.Result),
			joinNonEmpty("from "+r.Source, "("+r.Reason+")", fmt.Sprintf("%d bytes", r.Bytes), r.Detail, r.Error),
			r.Worker, r.ID}
	}
	return events, err
}

func checkEvents(ctx context.Context, db *clickhouse.DB, f eventFilter) ([]orderedEvent, error) {
	type check struct {
		Time    time.Time `ch:"ts"`
		ID      string    `ch:"id"`
		Store   string    `ch:"store"`
		Row     uint8     `ch:"row"`
		Verdict string    `ch:"verdict"`
		Finding string    `ch:"finding"`
		Reason  string    `ch:"reason"`
		Level   uint8     `ch:"level"`
		Final   bool      `ch:"final"`
		Detail  string    `ch:"detail"`
		Worker  string    `ch:"worker"`
		Damaged bool      `ch:"damaged"`
		Lost    string    `ch:"metadata_detail"`
	}
	rest, args := f.logQuery()
	rows, err := clickhouse.Query[check](ctx, db, "read checks",
		"SELECT ts, id, store, row, verdict, finding, reason, level, final, detail, worker,"+
			" metadata = 'damaged' AS damaged, metadata_detail FROM {db}.bit_log_v"+rest, args...)
	events := make([]orderedEvent, len(rows))
	for i, r := range rows {
		what := joinNonEmpty(r.Verdict, r.Finding)
		if r.Row > 0 {
			what = joinNonEmpty(fmt.Sprintf("row %d", r.Row), what)
		}
		if r.Damaged {
			what, r.Detail = joinNonEmpty(what, metadataDamaged), joinNonEmpty(r.Detail, "on record:", r.Lost)
		}
		pending := ""
		if !r.Final {
			pending = "not final"
		}
		detail := joinNonEmpty(fmt.Sprintf("E%d", r.Level), "("+r.Reason+")", pending, r.Detail)
		events[i].Event = Event{r.Time, "check", r.Store, what, detail, r.Worker, r.ID}
	}
	return events, err
}

// incidentEvents returns every step of every incident once. A record has only the last steps, and the number of the
// first of them.
func incidentEvents(ctx context.Context, db *clickhouse.DB, f eventFilter) ([]orderedEvent, error) {
	type step struct {
		Time   time.Time `ch:"happened"`
		ID     string    `ch:"incident"`
		Store  string    `ch:"store"`
		Kind   string    `ch:"kind"`
		Number int64     `ch:"number"`
		Action string    `ch:"act"`
		By     string    `ch:"who"`
		Detail string    `ch:"info"`
	}
	rows, err := clickhouse.Query[step](ctx, db, "read incidents",
		"SELECT lower(hex(id)) AS incident, store, kind, toInt64(first_step + i) AS number,"+
			" argMax(t, (step_count, revision)) AS happened, argMax(a, (step_count, revision)) AS act,"+
			" argMax(b, (step_count, revision)) AS who, argMax(d, (step_count, revision)) AS info"+
			" FROM {db}.incidents ARRAY JOIN step.time AS t, step.action AS a, step.by AS b, step.detail AS d,"+
			" arrayEnumerate(step.time) AS i"+
			" WHERE account = ? AND space = ? AND item = ? GROUP BY id, store, kind, number"+
			" HAVING (happened, incident, number) > ("+milliParam+", ?, ?) ORDER BY happened, incident, number LIMIT ?",
		f.account, f.space, f.item, f.millis, f.id, f.step, f.limit)
	events := make([]orderedEvent, len(rows))
	for i, r := range rows {
		events[i] = orderedEvent{
			Event{r.Time, "incident", r.Store, joinNonEmpty(r.Kind, r.Action), r.Detail, r.By, r.ID}, r.Number,
		}
	}
	return events, err
}

// joinNonEmpty joins the parts with spaces. It leaves out "" and "()".
func joinNonEmpty(parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" || s == "()" }), " ")
}

func formatDigests(set map[string]string) string {
	var b strings.Builder
	for i, k := range slices.Sorted(maps.Keys(set)) {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(k + ":" + set[k])
	}
	return b.String()
}
