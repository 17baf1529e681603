package clickhouse

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// An Event is one thing that happened to an item in one store, or that was found out about it.
type Event struct {
	Time   time.Time `json:"time"`
	Kind   string    `json:"kind"` // change, duplication, check, incident
	Store  string    `json:"store"`
	What   string    `json:"what"`   // a few words: add, C5 copied, row 2 fail content-corrupt, opened
	Detail string    `json:"detail"` // size and digests, an error, a step's detail
	By     string    `json:"by"`     // user, worker, who
	ID     string    `json:"id"`     // of the message; incidents: of the incident
}

// Timeline returns all that is on record of an item in every store, oldest first.
func (db *DB) Timeline(ctx context.Context, account, space, item string) ([]Event, error) {
	var all []Event
	for _, part := range []func(context.Context, ...any) ([]Event, error){
		db.changeEvents, db.duplicationEvents, db.checkEvents, db.incidentEvents,
	} {
		events, err := part(ctx, account, space, item)
		if err != nil {
			return nil, fmt.Errorf("reading the timeline of %s/%s/%s: %w", account, space, item, err)
		}
		all = append(all, events...)
	}
	slices.SortStableFunc(all, func(a, b Event) int { return a.Time.Compare(b.Time) })
	return all, nil
}

const itemFilter = " WHERE account = ? AND space = ? AND item = ? ORDER BY ts, off"

func (db *DB) changeEvents(ctx context.Context, args ...any) ([]Event, error) {
	type change struct {
		Time    time.Time         `ch:"ts"`
		ID      string            `ch:"id"`
		Op      string            `ch:"op"`
		Store   string            `ch:"store"`
		Origin  string            `ch:"origin"`
		Size    int64             `ch:"size"`
		Digests map[string]string `ch:"digests"`
		User    string            `ch:"user"`
		Agent   string            `ch:"agent"`
	}
	rows, err := query[change](ctx, db, "reading changes",
		"SELECT ts, id, op, store, origin, size, digests, user, agent FROM {db}.audit_log_v"+itemFilter, args...)
	events := make([]Event, len(rows))
	for i, r := range rows {
		detail := digestWords(r.Digests)
		if r.Op == "add" || r.Op == "update" || r.Op == "copy" {
			detail = join(fmt.Sprintf("%d bytes", r.Size), detail)
		}
		events[i] = Event{r.Time, "change", r.Store, join(r.Op, "("+r.Origin+")"), detail, cmp.Or(r.User, r.Agent), r.ID}
	}
	return events, err
}

func (db *DB) duplicationEvents(ctx context.Context, args ...any) ([]Event, error) {
	type result struct {
		Time     time.Time `ch:"ts"`
		ID       string    `ch:"id"`
		Source   string    `ch:"source_store"`
		Store    string    `ch:"destination_store"`
		Decision string    `ch:"decision"`
		Result   string    `ch:"result"`
		Reason   string    `ch:"reason"`
		Bytes    int64     `ch:"bytes"`
		Error    string    `ch:"error"`
		Detail   string    `ch:"detail"`
		Worker   string    `ch:"worker"`
	}
	rows, err := query[result](ctx, db, "reading results of duplication",
		"SELECT ts, id, source_store, destination_store, decision, result, reason, bytes, error, detail, worker FROM {db}.duplication_log_v"+
			itemFilter, args...)
	events := make([]Event, len(rows))
	for i, r := range rows {
		events[i] = Event{r.Time, "duplication", r.Store, join(r.Decision, r.Result),
			join("from "+r.Source, "("+r.Reason+")", fmt.Sprintf("%d bytes", r.Bytes), r.Detail, r.Error), r.Worker, r.ID}
	}
	return events, err
}

func (db *DB) checkEvents(ctx context.Context, args ...any) ([]Event, error) {
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
	}
	rows, err := query[check](ctx, db, "reading checks",
		"SELECT ts, id, store, row, verdict, finding, reason, level, final, detail, worker FROM {db}.bit_log_v"+itemFilter, args...)
	events := make([]Event, len(rows))
	for i, r := range rows {
		what := join(r.Verdict, r.Finding)
		if r.Row > 0 {
			what = join(fmt.Sprintf("row %d", r.Row), what)
		}
		pending := ""
		if !r.Final {
			pending = "not final"
		}
		events[i] = Event{r.Time, "check", r.Store, what, join(fmt.Sprintf("E%d", r.Level), "("+r.Reason+")", pending, r.Detail), r.Worker, r.ID}
	}
	return events, err
}

// incidentEvents returns every step once: each record carries the last ones only, and its
// first step's number.
func (db *DB) incidentEvents(ctx context.Context, args ...any) ([]Event, error) {
	type step struct {
		Time   time.Time `ch:"happened"`
		ID     string    `ch:"incident"`
		Store  string    `ch:"store"`
		Kind   string    `ch:"kind"`
		Number int64     `ch:"number"`
		Action string    `ch:"act"`
		By     string    `ch:"who"`
		Detail string    `ch:"told"`
	}
	rows, err := query[step](ctx, db, "reading incidents",
		"SELECT lower(hex(id)) AS incident, store, kind, toInt64(first_step + i) AS number,"+
			" argMax(t, (step_count, revision)) AS happened, argMax(a, (step_count, revision)) AS act,"+
			" argMax(b, (step_count, revision)) AS who, argMax(d, (step_count, revision)) AS told"+
			" FROM {db}.incidents ARRAY JOIN step.time AS t, step.action AS a, step.by AS b, step.detail AS d, arrayEnumerate(step.time) AS i"+
			" WHERE account = ? AND space = ? AND item = ? GROUP BY id, store, kind, number ORDER BY incident, number", args...)
	events := make([]Event, len(rows))
	for i, r := range rows {
		events[i] = Event{r.Time, "incident", r.Store, join(r.Kind, r.Action), r.Detail, r.By, r.ID}
	}
	return events, err
}

// join joins what is not empty.
func join(parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" || s == "()" }), " ")
}

func digestWords(set map[string]string) string {
	var b strings.Builder
	for i, k := range sortedKeys(nil, set) {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(k + ":" + set[k])
	}
	return b.String()
}
