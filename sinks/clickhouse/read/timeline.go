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

// Timeline returns all events of an item in all stores, oldest first. Those of one millisecond are in the order of
// their kinds: change, duplication, check, incident.
func Timeline(ctx context.Context, db *clickhouse.DB, account, space, item string) ([]Event, error) {
	var all []Event
	for _, events := range []func(context.Context, *clickhouse.DB, ...any) ([]Event, error){
		changeEvents, duplicationEvents, checkEvents, incidentEvents,
	} {
		some, err := events(ctx, db, account, space, item)
		if err != nil {
			return nil, fmt.Errorf("read the timeline of %s/%s/%s: %w", account, space, item, err)
		}
		all = append(all, some...)
	}
	slices.SortStableFunc(all, func(a, b Event) int { return a.Time.Compare(b.Time) })
	return all, nil
}

// ofItem selects, for SQL, the rows of an item in all stores.
const ofItem = " WHERE account = ? AND space = ? AND item = ?"

func changeEvents(ctx context.Context, db *clickhouse.DB, of ...any) ([]Event, error) {
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
	rows, err := clickhouse.Query[change](ctx, db, "read changes",
		"SELECT ts, id, op, store, origin, size, digests, user, agent FROM {db}.audit_log_v"+ofItem+" ORDER BY ts, id", of...)
	events := make([]Event, len(rows))
	for i, r := range rows {
		detail := formatDigests(r.Digests)
		if r.Op == "add" || r.Op == "update" || r.Op == "copy" {
			size := "unknown size"
			if r.Size != nil {
				size = fmt.Sprintf("%d bytes", *r.Size)
			}
			detail = joinNonEmpty(size, detail)
		}
		events[i] = Event{
			r.Time, "change", r.Store, joinNonEmpty(r.Op, "("+r.Origin+")"), detail, cmp.Or(r.User, r.Agent), r.ID,
		}
	}
	return events, err
}

func duplicationEvents(ctx context.Context, db *clickhouse.DB, of ...any) ([]Event, error) {
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
	rows, err := clickhouse.Query[result](ctx, db, "read results of duplication",
		"SELECT ts, id, source_store, destination_store, decision, result, would_be, reason,"+
			" bytes, error, detail, worker FROM {db}.duplication_log_v"+ofItem+" ORDER BY ts, id", of...)
	events := make([]Event, len(rows))
	for i, r := range rows {
		if r.WouldBe != "" {
			r.Result += " would be " + r.WouldBe
		}
		events[i] = Event{r.Time, "duplication", r.Store, joinNonEmpty(r.Decision, r.Result),
			joinNonEmpty("from "+r.Source, "("+r.Reason+")", fmt.Sprintf("%d bytes", r.Bytes), r.Detail, r.Error),
			r.Worker, r.ID}
	}
	return events, err
}

func checkEvents(ctx context.Context, db *clickhouse.DB, of ...any) ([]Event, error) {
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
	rows, err := clickhouse.Query[check](ctx, db, "read checks",
		"SELECT ts, id, store, row, verdict, finding, reason, level, final, detail, worker,"+
			" metadata = 'damaged' AS damaged, metadata_detail FROM {db}.bit_log_v"+ofItem+" ORDER BY ts, id", of...)
	events := make([]Event, len(rows))
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
		events[i] = Event{r.Time, "check", r.Store, what, detail, r.Worker, r.ID}
	}
	return events, err
}

// incidentEvents returns every step of every incident once. A record has only the last steps, and the number of the
// first of them.
func incidentEvents(ctx context.Context, db *clickhouse.DB, of ...any) ([]Event, error) {
	type step struct {
		Time   time.Time `ch:"happened"`
		ID     string    `ch:"incident"`
		Store  string    `ch:"store"`
		Kind   string    `ch:"kind"`
		Action string    `ch:"act"`
		By     string    `ch:"who"`
		Detail string    `ch:"info"`
	}
	rows, err := clickhouse.Query[step](ctx, db, "read incidents",
		"WITH first_step + i AS number SELECT lower(hex(id)) AS incident, store, kind,"+
			" argMax(t, (step_count, revision)) AS happened, argMax(a, (step_count, revision)) AS act,"+
			" argMax(b, (step_count, revision)) AS who, argMax(d, (step_count, revision)) AS info"+
			" FROM {db}.incidents ARRAY JOIN step.time AS t, step.action AS a, step.by AS b, step.detail AS d,"+
			" arrayEnumerate(step.time) AS i"+
			ofItem+" GROUP BY id, store, kind, number ORDER BY happened, incident, number", of...)
	events := make([]Event, len(rows))
	for i, r := range rows {
		events[i] = Event{r.Time, "incident", r.Store, joinNonEmpty(r.Kind, r.Action), r.Detail, r.By, r.ID}
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
