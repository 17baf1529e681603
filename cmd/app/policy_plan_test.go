package app

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/cmd/precondition"
	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/policy/preview"
)

// plannedRecords returns the records of a site with a policy from store 1 to 2: an item in all stores, one in the
// first only, one of unknown size, one that differs, one with a deleted source, and one whose
// source was ahead and is deleted.
func plannedRecords() (all []schemas.Message) {
	now := time.Now()
	add := func(store, item, content string, at time.Time, set func(*pb.Change)) {
		c := &pb.Change{Op: pb.Op_OP_ADD, Account: "acme", Store: store, Space: "photos", Item: item, Version: "v" + content,
			Size: 100, Digests: map[string]string{"md5": schemas.ID(content)}, Time: timestamppb.New(at),
			Origin: pb.Origin_ORIGIN_CLIENT}
		if set != nil {
			set(c)
		}
		c.Id = schemas.ChangeID(c)
		all = append(all, schemas.Message{Topic: schemas.Changes, Body: c})
	}
	for _, store := range []string{"1", "2", "3"} {
		add(store, "same", "same", now.Add(-time.Hour), nil)
	}
	add("1", "new", "new", now, nil)
	add("1", "unsized", "unsized", now, func(c *pb.Change) { c.SizeUnknown, c.Size = true, 0 })
	add("1", "differs", "one", now, nil)
	add("2", "differs", "two", now, nil)
	add("2", "deleted", "deleted", now.Add(-time.Hour), nil)
	gone := func(c *pb.Change) { c.Op, c.Digests, c.Size = pb.Op_OP_DELETE, nil, 0 }
	add("1", "deleted", "", now, gone)
	add("2", "disputed", "disputed", now.Add(-time.Hour), nil)
	add("1", "disputed", "disputed", now.Add(time.Hour), nil)
	add("1", "disputed", "", now.Add(time.Minute), gone)
	add("3", "ahead", "ahead", now.Add(time.Hour), nil)
	for i := range 3 {
		all = append(all, schemas.Message{Topic: schemas.DuplicationResults, Body: &pb.DuplicationResult{
			Id: schemas.NewID(), Command: fmt.Sprint("c", i), Account: "acme", Space: "photos", Item: fmt.Sprint("i", i),
			SourceStore: "1", DestinationStore: "2", Reason: pb.DuplicationReason_DUPLICATION_REASON_CHANGE, Decision: "C5",
			Result: "copied", Bytes: 100, Outcome: pb.Outcome_OUTCOME_DONE,
			Planned: timestamppb.New(now.Add(-time.Hour)),
			Started: timestamppb.New(now), Finished: timestamppb.New(now.Add(time.Second))}})
	}
	return all
}

// A plan has the deletes, the unmanaged copies and the work of each destination as they are on record. What is pending
// under the policy in force is exported as metrics.
func TestPolicyPlan(t *testing.T) {
	need.Integration(t)
	s := newSite(t)
	s.hasClickHouse()
	sink := s.run(schemas.RoleSink)
	s.await("/startupz", 200) // the topics exist
	s.set("acme", to("2"))
	must(t, sink.producer.Publish(t.Context(), plannedRecords()...))
	a, err := Open(t.Context(), s.cfg, Options{Log: s.said.Log()})
	must(t, err)
	defer a.Close()
	s.until(func() error {
		status, err := a.PolicyStatus(t.Context(), "acme", time.Hour)
		if err != nil || status.Behind > 0 || len(status.Pairs) != 1 || status.Pairs[0].Copies != 3 {
			return fmt.Errorf("status is %+v, %w", status, err)
		}
		p := status.Pairs[0]
		late := *p.P50 - time.Hour.Seconds() // Kafka's time of the results
		if p.Pending != (PlannedCount{Items: 3, Bytes: 200, Unsized: 1}) || p.Oldest == nil || late < 0 || late > 60 ||
			status.Unmanaged != (PlannedCount{Items: 2, Bytes: 200}) {
			t.Fatalf("status is %+v", status)
		}
		return nil
	})
	doc := document(t, "defaults: {copy: [{from: 1, to: [2, 3]}], exclude: [new]}")
	plan, err := a.PlanPolicy(t.Context(), "acme", doc)
	must(t, err)
	want := []PlannedDestination{
		{Account: "acme", Source: "1", Destination: "2", Change: preview.Altered, Spaces: []string{"photos"}, Items: 2,
			Bytes: 100, Commands: 4, Copy: PlannedCount{1, 0, 1}, Update: PlannedCount{1, 100, 0},
			Unchanged: PlannedCount{1, 100, 0}, Excluded: PlannedCount{1, 100, 0}, Delete: PlannedCount{1, 100, 0},
			Approve: PlannedCount{1, 100, 0}},
		{Account: "acme", Source: "1", Destination: "3", Change: preview.Added, Spaces: []string{"photos"}, Items: 2,
			Bytes: 100, Commands: 2, Copy: PlannedCount{2, 100, 1}, Unchanged: PlannedCount{1, 100, 0},
			Excluded: PlannedCount{1, 100, 0}, Orphan: PlannedCount{1, 100, 0}},
	}
	if got := text(t, plan.Destinations); got != text(t, want) {
		t.Errorf("got  %s\nwant %s", got, text(t, want))
	}
	deletes := []PlannedDeletes{{"photos", "1", "2", false, PlannedCount{1, 100, 0}},
		{"photos", "1", "2", true, PlannedCount{1, 100, 0}}}
	if got := text(t, plan.Deletes); got != text(t, deletes) {
		t.Errorf("deletes: got %s", got)
	}
	if plan.Revision != 1 || plan.Behind != 0 || len(plan.Unmanaged) != 0 {
		t.Errorf("got %+v", plan)
	}
	// With a size for each item, the rate of the pair gives the time; nothing was copied to store 3.
	plan, err = a.PlanPolicy(t.Context(), "acme", document(t, "defaults: {copy: [{from: 1, to: 3}], exclude: [unsized]}"))
	if err != nil || len(plan.Destinations) != 2 || len(plan.Unmanaged) != 1 || plan.Unmanaged[0].Store != "2" ||
		!plan.Unmanaged[0].Configured || plan.Destinations[0].Change != preview.Removed ||
		plan.Destinations[1].Seconds != nil {
		t.Errorf("got %s, %v", text(t, plan), err)
	}
	plan, err = a.PlanPolicy(t.Context(), "acme", document(t, "defaults: {copy: [{from: 1, to: 2}], exclude: [unsized]}"))
	if err != nil || plan.Destinations[0].Seconds == nil || *plan.Destinations[0].Seconds != 40 { // 2 of 3 a minute
		t.Errorf("got %s, %v", text(t, plan), err)
	}
	unmanaged, err := a.Unmanaged(t.Context(), "")
	if err != nil || len(unmanaged) != 1 || unmanaged[0].Store != "3" || unmanaged[0].Items != 2 {
		t.Errorf("unmanaged: %+v, %v", unmanaged, err)
	}
	var items []UnmanagedItem
	err = a.UnmanagedItems(t.Context(), unmanaged[0], func(page []UnmanagedItem) error {
		items = append(items, page...)
		return nil
	})
	if err != nil || len(items) != 2 || items[1].Item != "same" || items[1].Size == nil || *items[1].Size != 100 ||
		items[0].Item != "ahead" || time.Until(items[0].Time) < 50*time.Minute {
		t.Errorf("unmanaged items: %+v, %v", items, err)
	}
	if _, err := a.Unmanaged(t.Context(), "nobody"); !errors.Is(err, errNoRecords) {
		t.Errorf("an unknown account: %v", err)
	}
	two := a.stores.accounts["acme"]
	two.Stores = two.Stores[:1]
	a.stores.set("acme", two, true)
	if all, err := a.Unmanaged(t.Context(), ""); err != nil || len(all) != 2 || all[0].Store != "2" || all[0].Configured {
		t.Errorf("without a store that the policy names: %+v, %v", all, err)
	}
	s.cfg.HTTP.Listen = free(t)
	s.url = "http://" + s.cfg.HTTP.Listen
	s.run(schemas.RoleSweeper)
	// The delay is an hour and a moment.
	s.await("/metrics", 200, `millrace_policy_pending_items{account="acme",destination="2",source="1"} 3`,
		`millrace_policy_copy_delay_seconds{account="acme",destination="2",quantile="0.99",source="1"} 36`,
		`millrace_policy_unmanaged_items{account="acme"} 2`)
	must(t, a.DB().Exec(t.Context(), "TRUNCATE TABLE {db}.copy_state"))
	if _, err := a.PlanPolicy(t.Context(), "acme", doc); !errors.Is(err, precondition.Err) {
		t.Errorf("the table was emptied: got %v", err)
	}
}

func text(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	must(t, err)
	return string(b)
}
