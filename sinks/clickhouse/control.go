package clickhouse

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// incidents is the table incidents: one row for each record of each incident.
func incidents() *table[*pb.Incident] {
	type r = row[*pb.Incident]
	columns := []column[r]{
		lowCard("account", func(x r) string { return x.m.GetAccount() }),
		lowCard("store", func(x r) string { return x.m.GetStore() }),
		text("space", func(x r) string { return x.m.GetSpace() }),
		text("item", func(x r) string { return x.m.GetItem() }),
		lowCard("kind", func(x r) string { return x.m.GetKind() }),
		lowCard("state", func(x r) string { return enumName(x.m.GetState()) }),
		nullableTime("updated", func(x r) *timestamppb.Timestamp { return x.m.GetUpdated() }),
		nullableTime("closed", func(x r) *timestamppb.Timestamp { return x.m.GetClosed() }),
		nullableTime("checked", func(x r) *timestamppb.Timestamp { return x.m.GetChecked() }),
		uint8s("row", func(x r) int32 { return x.m.GetRow() }),
		digests("expected", func(x r) map[string]string { return x.m.GetExpected() }),
		digests("found", func(x r) map[string]string { return x.m.GetFound() }),
	}
	columns = append(columns, objectColumns(func(x r) *pb.Identity { return x.m.GetObject() })...)
	columns = append(columns,
		int32s("repairs", func(x r) int32 { return x.m.GetRepairs() }),
		int32s("step_count", func(x r) int32 { return x.m.GetStepCount() }),
		int64s("revision", func(x r) int64 { return x.m.GetUpdated().AsTime().UnixMilli() }),
		int32s("first_step", func(x r) int32 {
			return max(x.m.GetStepCount(), int32(len(x.m.GetSteps()))) - int32(len(x.m.GetSteps()))
		}),
		arrayOf("step.time", "Array("+millis+")", newTimestamps, datedSteps,
			func(s *pb.IncidentStep) time.Time { return s.GetTime().AsTime() }),
		arrayOf("step.action", "Array(LowCardinality(String))", newLowCardinality, steps, (*pb.IncidentStep).GetAction),
		arrayOf("step.ref", "Array(String)", newText, steps, (*pb.IncidentStep).GetRef),
		arrayOf("step.by", "Array(String)", newText, steps, (*pb.IncidentStep).GetBy),
		arrayOf("step.detail", "Array(String)", newText, steps, (*pb.IncidentStep).GetDetail),
		text("subject", func(x r) string { return x.m.GetSubject() }),
		text("last_event", func(x r) string { return nanoText(x.m.GetLastEvent()) }),
	)
	return newTable("incidents",
		func(x r) string { return x.m.GetId() },
		func(x r) *timestamppb.Timestamp { return x.m.GetOpened() }, columns...)
}

// nanoText returns a time in RFC 3339 with nanoseconds, since no column of times has all years that the date of a file
// may have; nil is empty.
func nanoText(t *timestamppb.Timestamp) string {
	if t == nil {
		return ""
	}
	return t.AsTime().Format(time.RFC3339Nano)
}

func steps(x row[*pb.Incident]) ([]*pb.IncidentStep, error) { return x.m.GetSteps(), nil }

// datedSteps returns the steps. A time that the table cannot hold is an error.
func datedSteps(x row[*pb.Incident]) ([]*pb.IncidentStep, error) {
	for _, s := range x.m.GetSteps() {
		if _, err := toMillis(s.GetTime()); err != nil {
			return nil, err
		}
	}
	return x.m.GetSteps(), nil
}

// reports is the table reports: the results of rounds.
func reports() *table[*pb.Report] {
	type r = row[*pb.Report]
	return newTable("reports",
		func(x r) string { return x.m.GetId() },
		func(x r) *timestamppb.Timestamp { return x.m.GetFinished() },
		lowCard("kind", func(x r) string { return x.m.GetKind() }),
		lowCard("account", func(x r) string { return x.m.GetAccount() }),
		lowCard("store", func(x r) string { return x.m.GetStore() }),
		lowCard("destination_store", func(x r) string { return x.m.GetDestinationStore() }),
		text("space", func(x r) string { return x.m.GetSpace() }),
		text("round", func(x r) string { return x.m.GetRound() }),
		nullableTime("started", func(x r) *timestamppb.Timestamp { return x.m.GetStarted() }),
		int64Map("counts", func(x r) map[string]int64 { return x.m.GetCounts() }),
		flag("complete", func(x r) bool { return x.m.GetComplete() }),
		text("detail", func(x r) string { return x.m.GetDetail() }),
	)
}

// jobLog is the table job_log: the iterations of sweeps and schedules.
func jobLog() *table[*pb.Job] {
	type r = row[*pb.Job]
	return newTable("job_log",
		func(x r) string { return x.m.GetId() },
		func(x r) *timestamppb.Timestamp { return x.m.GetStarted() },
		text("name", func(x r) string { return x.m.GetName() }),
		nullableTime("finished", func(x r) *timestamppb.Timestamp { return x.m.GetFinished() }),
		int64Map("counts", func(x r) map[string]int64 { return x.m.GetCounts() }),
		text("error", func(x r) string { return x.m.GetError() }),
	)
}

// policyHistory is the table policy_history: every revision of every policy.
func policyHistory() *table[*pb.Policy] {
	type r = row[*pb.Policy]
	return newTable("policy_history",
		func(x r) string { return x.m.GetId() },
		func(x r) *timestamppb.Timestamp { return x.m.GetTime() },
		lowCard("account", func(x r) string { return x.m.GetAccount() }),
		int64s("base", func(x r) int64 { return x.m.GetBase() }),
		text("document", func(x r) string { return x.m.GetDocument() }),
		flag("removed", func(x r) bool { return x.m.GetRemoved() }),
		text("by", func(x r) string { return x.m.GetBy() }),
		text("reason", func(x r) string { return x.m.GetReason() }),
		text("file_sha256", func(x r) string { return x.m.GetFileSha256() }),
		lowCard("came_from", func(x r) string { return x.m.GetFrom() }),
		text("location", func(x r) string { return x.m.GetLocation() }),
	)
}

// accountHistory is the table account_history: every revision of the document of every account.
func accountHistory() *table[*pb.Account] {
	type r = row[*pb.Account]
	return newTable("account_history",
		func(x r) string { return x.m.GetId() },
		func(x r) *timestamppb.Timestamp { return x.m.GetTime() },
		lowCard("account", func(x r) string { return x.m.GetAccount() }),
		int64s("base", func(x r) int64 { return x.m.GetBase() }),
		text("document", func(x r) string { return x.m.GetDocument() }),
		flag("removed", func(x r) bool { return x.m.GetRemoved() }),
		text("by", func(x r) string { return x.m.GetBy() }),
		text("reason", func(x r) string { return x.m.GetReason() }),
		lowCard("came_from", func(x r) string { return x.m.GetFrom() }),
	)
}

// adminLog is the table admin_log: actions of administrators.
func adminLog() *table[*pb.AdminAction] {
	type r = row[*pb.AdminAction]
	return newTable("admin_log",
		func(x r) string { return x.m.GetId() },
		func(x r) *timestamppb.Timestamp { return x.m.GetTime() },
		text("who", func(x r) string { return x.m.GetWho() }),
		lowCard("action", func(x r) string { return x.m.GetAction() }),
		lowCard("account", func(x r) string { return x.m.GetAccount() }),
		lowCard("store", func(x r) string { return x.m.GetStore() }),
		text("space", func(x r) string { return x.m.GetSpace() }),
		text("item", func(x r) string { return x.m.GetItem() }),
		text("target", func(x r) string { return x.m.GetTarget() }),
		text("reason", func(x r) string { return x.m.GetReason() }),
		lowCard("came_from", func(x r) string { return x.m.GetFrom() }),
		text("before", func(x r) string { return x.m.GetBefore() }),
		text("after", func(x r) string { return x.m.GetAfter() }),
		text("incident", func(x r) string { return x.m.GetIncident() }),
		text("seen", func(x r) string { return x.m.GetSeen() }),
	)
}
