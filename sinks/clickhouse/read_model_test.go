package clickhouse_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/clickhousetest"
	"github.com/millrace/millrace/sinks/clickhouse/read"
)

// histories returns the records of 6 partitions: changes, checks and an incident in each.
func histories() [][]*schemas.Delivery {
	var all [][]*schemas.Delivery
	for part := range int32(6) {
		var of []schemas.Body
		var checks []schemas.Body
		for i := range 20 {
			c := clickhousetest.Change(fmt.Sprintf("p%02d/%02d", part, i), time.Duration(i)*time.Hour)
			if i == 7 {
				c.Properties = map[string]string{"by": "me"}
			}
			of = append(of, c)
			checks = append(checks, clickhousetest.Result(c, time.Duration(i+1)*time.Hour))
		}
		lost := clickhousetest.Change(fmt.Sprintf("p%02d/07", part), 30*time.Hour)
		lost.MediaType, lost.PropertiesUnknown = "", true
		of = append(of, lost)
		pending := clickhousetest.Result(clickhousetest.Change(fmt.Sprintf("p%02d/00", part), 0), 40*time.Hour)
		pending.Verdict, pending.Row, pending.Finding, pending.Final, pending.Next = pb.Verdict_VERDICT_UNDECIDED, 8,
			"content-missing", false, clickhousetest.At(64*time.Hour)
		checks = append(checks, pending)
		incident := &pb.Incident{Id: schemas.ID("incident", fmt.Sprint(part)), Account: "acme", Store: "1", Space: "photos",
			Item: fmt.Sprintf("p%02d/00", part),
			Kind: "x", State: pb.IncidentState_INCIDENT_STATE_OPEN, Opened: clickhousetest.At(0),
			Updated: clickhousetest.At(0), StepCount: 1,
			Steps: []*pb.IncidentStep{{Time: clickhousetest.At(0), Action: "opened"}}}
		for topic, bodies := range map[schemas.Topic][]schemas.Body{schemas.Changes: of, schemas.FixityResults: checks,
			schemas.Incidents: {incident}} {
			batch := clickhousetest.Deliver(topic, 0, bodies...)
			for _, d := range batch {
				d.Partition = part
			}
			all = append(all, batch)
		}
	}
	return all
}

// store stores records in the logs and the state.
func store(t *testing.T, db *clickhouse.DB, all [][]*schemas.Delivery) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	logs, state := clickhouse.NewSink(db), clickhouse.NewState(db)
	for _, batch := range all {
		must(t, logs.Store(ctx, batch))
		if batch[0].Topic != schemas.Incidents {
			must(t, state.Store(ctx, batch))
		}
	}
}

// readModel returns all queries of the read model, with the arguments for histories.
func readModel() map[string]func(context.Context, *clickhouse.DB) (any, error) {
	type page struct {
		Copies []schemas.DueCopy
		Cursor schemas.DueCursor
	}
	due := func(ctx context.Context, db *clickhouse.DB, after schemas.DueCursor) (p page, err error) {
		p.Copies, p.Cursor, err = read.NewDue(db).Due(ctx,
			schemas.DueQuery{Account: "acme", Store: "1", Space: "photos", Limit: 33, After: after})
		return p, err
	}
	var copies []schemas.Copy
	for part := range 6 {
		copies = append(copies, schemas.Copy{Account: "acme", Store: "1", Space: "photos",
			Item: fmt.Sprintf("p%02d/07", part)})
	}
	copies = append(copies, schemas.Copy{Account: "acme", Store: "1", Space: "photos", Item: "none"})
	round := read.SpaceRound{Space: schemas.Copy{Account: "acme", Store: "1", Space: "photos"}, Round: "round-1",
		Started: clickhousetest.Epoch.Add(time.Hour), PassedBefore: clickhousetest.Epoch.Add(time.Hour),
		AttemptedBefore: clickhousetest.Epoch.Add(time.Hour), Asserted: true}
	return map[string]func(context.Context, *clickhouse.DB) (any, error){
		"described": func(ctx context.Context, db *clickhouse.DB) (any, error) { return freshRecords(ctx, db, copies) },
		"manifest": func(ctx context.Context, db *clickhouse.DB) (any, error) {
			return liveCopies(ctx, db, schemas.Copy{Account: "acme", Store: "1", Space: "photos", Item: "p03/10"})
		},
		"items": func(ctx context.Context, db *clickhouse.DB) (any, error) {
			all := map[string][]read.StoredCopy{}
			err := read.EachItem(ctx, db, "acme", func(space, item string, copies []read.StoredCopy) error {
				all[space+"/"+item] = slices.Clone(copies)
				return nil
			})
			return all, err
		},
		"due": func(ctx context.Context, db *clickhouse.DB) (any, error) { return due(ctx, db, schemas.DueCursor{}) },
		"due, next page": func(ctx context.Context, db *clickhouse.DB) (any, error) {
			first, err := due(ctx, db, schemas.DueCursor{})
			if err != nil {
				return nil, err
			}
			return due(ctx, db, first.Cursor)
		},
		"counts": func(ctx context.Context, db *clickhouse.DB) (any, error) {
			return read.CopyCounts(ctx, db, "acme")
		},
		"delays": func(ctx context.Context, db *clickhouse.DB) (any, error) {
			return read.PairDelays(ctx, db, "acme", clickhousetest.Epoch)
		},
		"timeline": func(ctx context.Context, db *clickhouse.DB) (any, error) {
			return read.Timeline(ctx, db, "acme", "photos", "p05/00")
		},
		"incidents": func(ctx context.Context, db *clickhouse.DB) (any, error) {
			return read.OpenIncidents(ctx, db, "acme")
		},
		"pending": func(ctx context.Context, db *clickhouse.DB) (any, error) {
			return read.Pending(ctx, db, schemas.Copy{Account: "acme"}, clickhousetest.Epoch)
		},
		"records": func(ctx context.Context, db *clickhouse.DB) (any, error) { return read.Records(ctx, db, copies) },
		"progress of a round": func(ctx context.Context, db *clickhouse.DB) (any, error) {
			return read.SpaceRoundProgress(ctx, db, round)
		},
		"counts of a round": func(ctx context.Context, db *clickhouse.DB) (any, error) {
			return read.SpaceRoundCounts(ctx, db, round)
		},
		"failures of jobs": func(ctx context.Context, db *clickhouse.DB) (any, error) {
			return read.FailuresOfJobs(ctx, db, clickhousetest.Epoch)
		},
		"checks of a round": func(ctx context.Context, db *clickhouse.DB) (any, error) {
			return read.RoundChecks(ctx, db, read.RoundCheckQuery{Space: schemas.Copy{Account: "acme", Store: "1",
				Space: "photos"}, Round: "round-1", Started: clickhousetest.Epoch})
		},
		"overdue copies": func(ctx context.Context, db *clickhouse.DB) (any, error) {
			return read.Overdue(ctx, db, schemas.DueQuery{Account: "acme", Store: "1", Space: "photos", Prefix: "p0"})
		},
		"failures": func(ctx context.Context, db *clickhouse.DB) (any, error) {
			totals, groups, err := read.Failures(ctx, db, read.FailureQuery{Account: "acme"})
			return []any{totals, groups}, err
		},
		"incidents by kind": func(ctx context.Context, db *clickhouse.DB) (any, error) {
			return read.CountIncidents(ctx, db, "acme")
		},
		"rates of spaces": func(ctx context.Context, db *clickhouse.DB) (any, error) {
			return read.SpaceRates(ctx, db, "acme", clickhousetest.Epoch)
		},
		"rates of checks": func(ctx context.Context, db *clickhouse.DB) (any, error) {
			return read.CheckRates(ctx, db, "acme", clickhousetest.Epoch)
		},
		"sizes of a space": func(ctx context.Context, db *clickhouse.DB) (any, error) {
			return read.SizesSince(ctx, db, "acme", "photos", clickhousetest.Epoch)
		},
		"space": func(ctx context.Context, db *clickhouse.DB) (any, error) {
			return freshRecords(ctx, db, []schemas.Copy{{Account: "acme", Store: "1", Space: "photos"}})
		},
		"gaps": func(ctx context.Context, db *clickhouse.DB) (any, error) {
			return clickhouse.Gaps(ctx, db, committedOf(5))
		},
	}
}

// freshRecords returns the records of copies and spaces, of a fresh read that does not wait.
func freshRecords(ctx context.Context, db *clickhouse.DB, copies []schemas.Copy) (_ []*pb.CopyRecord, err error) {
	ctx, stop := context.WithCancel(ctx)
	var g errgroup.Group
	defer func() {
		stop()
		err = errors.Join(err, g.Wait())
	}()
	r := read.NewReader(db, clickhousetest.MarkFunc(clickhousetest.Reached), read.ReaderConfig{})
	g.Go(func() error { return r.Run(ctx) })
	return r.Fresh(ctx, copies)
}

// liveCopies returns the live copies of a space in a store, after an item.
func liveCopies(ctx context.Context, db *clickhouse.DB, of schemas.Copy) (all []schemas.KnownCopy, err error) {
	err = read.EachLive(ctx, db, of, func(k schemas.KnownCopy) error {
		all = append(all, k)
		return nil
	})
	return all, err
}

// committedOf returns committed offsets of both groups in the 6 partitions of changes.
func committedOf(next int64) map[schemas.Role][]schemas.Progress {
	all := map[schemas.Role][]schemas.Progress{}
	for part := range int32(6) {
		p := schemas.Progress{Topic: schemas.Changes, Incarnation: 7, Partition: part, Next: next}
		all[schemas.RoleSink], all[schemas.RoleState] = append(all[schemas.RoleSink], p), append(all[schemas.RoleState], p)
	}
	return all
}

// reads returns the results of all queries of the read model as text.
func reads(t *testing.T, db *clickhouse.DB) string {
	t.Helper()
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(readModel())) {
		if name == "gaps" {
			continue // the test moves the positions
		}
		fmt.Fprintf(&b, "%s: %s\n", name, answerTo(t, db, name))
	}
	views, err := clickhousetest.Views(t.Context(), db.Config().Addresses[0], db.Config().Database)
	must(t, err)
	fmt.Fprintf(&b, "views: %v\n", views)
	return b.String()
}

func answerTo(t *testing.T, db *clickhouse.DB, name string) string {
	t.Helper()
	answer, err := readModel()[name](t.Context(), db)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return asText(t, answer)
}

func asText(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	must(t, err)
	return string(text)
}
