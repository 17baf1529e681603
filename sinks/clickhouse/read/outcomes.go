package read

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
)

// metadataDamaged is the finding for damaged media type or properties. A check can have it beside any verdict.
const metadataDamaged = "metadata-damaged"

// Counts of SpaceRoundCounts beside those by verdict.
const (
	// countDamaged is the number of copies with damaged metadata, whatever their verdicts.
	countDamaged = metadataDamaged
	// countUnread is the number of copies whose bytes the final check did not read.
	countUnread = "unread"
	// countLive and countVerified are the numbers of copies in the space, and of those with a pass of the bytes.
	countLive     = "live"
	countVerified = "verified"
	// countDue is the number of copies that are due at the end of the round, as those that were recorded during it.
	countDue = "due"
)

// A SpaceRound is a round over one space in one store.
type SpaceRound struct {
	Space   schemas.Copy // without an item
	Prefix  string       // of the items; empty: all of the space
	Round   string
	Started time.Time
	Since   time.Time // its checks began at this time, or later
	// PassedBefore, AttemptedBefore, Period and Asserted are those of the round's schemas.DueQuery.
	PassedBefore, AttemptedBefore time.Time
	Period                        time.Duration
	Asserted                      bool
	VerifiedSince                 time.Time // a copy counts as verified that has passed since
}

// clockLag is how much the clock of the sweeper may differ from Kafka's, which dates the results.
const clockLag = 24 * time.Hour

// checks returns the condition of the results of the round, with its arguments.
func (r SpaceRound) checks() (string, []any) {
	return "account = ? AND space = ? AND store = ? AND round = ? AND ts >= " + milliParam,
		[]any{r.Space.Account, r.Space.Space, r.Space.Store, r.Round, r.Since.Add(-clockLag).UnixMilli()}
}

// A RoundProgress counts the distinct copies that have a final result of a round, and those that have only others.
type RoundProgress struct {
	Final, Pending int64
	Last           time.Time // when a copy got its first result at last; zero: none has one
}

// SpaceRoundProgress returns the progress of a round.
func SpaceRoundProgress(ctx context.Context, db *clickhouse.DB, r SpaceRound) (RoundProgress, error) {
	type row struct {
		Final   int64 `ch:"finals"`
		Pending int64 `ch:"pending"`
		Last    int64 `ch:"newest"`
	}
	where, args := r.checks()
	rows, err := clickhouse.Query[row](ctx, db, "count the results of a round",
		"SELECT toInt64(countIf(done)) AS finals, toInt64(countIf(NOT done)) AS pending, max(made) AS newest FROM ("+
			"SELECT account, space, item, max(final) AS done, min(toUnixTimestamp64Milli(finished)) AS made"+
			" FROM {db}.bit_log WHERE "+where+" GROUP BY account, space, item)"+aggregateInOrder, args...)
	if err != nil {
		return RoundProgress{}, err
	}
	return RoundProgress{rows[0].Final, rows[0].Pending, timeOfMillis(rows[0].Last)}, nil
}

// RoundCounts are the results of a round over one space in one store.
type RoundCounts struct {
	RoundProgress
	Live int64 // copies of the space now
	// Counts are the numbers of distinct copies that have a final result, by the verdict of the newest one, and those of
	// the constants above.
	Counts map[string]int64
}

// A checkedCount counts the copies with a final result of one kind.
type checkedCount struct {
	Verdict string `ch:"newest"`
	Unread  bool   `ch:"unread"`
	Damaged bool   `ch:"damaged"`
	Copies  int64  `ch:"copies"`
}

// countChecked counts the copies with a final result of a round.
func countChecked(ctx context.Context, db *clickhouse.DB, r SpaceRound) ([]checkedCount, error) {
	where, args := r.checks()
	return clickhouse.Query[checkedCount](ctx, db, "count the results of a round by verdict",
		"SELECT newest, level < 4 AS unread, damaged, toInt64(count()) AS copies FROM (SELECT account, space, item,"+
			" argMax(verdict, (ts, id)) AS newest, argMax(level, (ts, id)) AS level,"+
			" argMaxIf(metadata = 'damaged', (ts, id), metadata IN ('intact', 'damaged')) AS damaged"+
			" FROM {db}.bit_log WHERE "+where+" AND final GROUP BY account, space, item)"+
			" GROUP BY newest, unread, damaged"+aggregateInOrder, args...)
}

// SpaceRoundVerdicts counts the copies with a final result of a round by the verdict of the newest one, and those with
// damaged metadata.
func SpaceRoundVerdicts(ctx context.Context, db *clickhouse.DB, r SpaceRound) (map[string]int64, error) {
	rows, err := countChecked(ctx, db, r)
	counts := map[string]int64{}
	for _, n := range rows {
		if counts[n.Verdict] += n.Copies; n.Damaged {
			counts[countDamaged] += n.Copies
		}
	}
	return counts, err
}

// SpaceRoundCounts returns the results of a round.
func SpaceRoundCounts(ctx context.Context, db *clickhouse.DB, r SpaceRound) (c RoundCounts, err error) {
	// The progress first: a result that comes meanwhile is counted only below.
	if c.RoundProgress, err = SpaceRoundProgress(ctx, db, r); err != nil {
		return c, err
	}
	rows, err := countChecked(ctx, db, r)
	if err != nil {
		return c, err
	}
	c.Counts = map[string]int64{}
	for _, n := range rows {
		c.Counts[n.Verdict] += n.Copies
		if n.Unread {
			c.Counts[countUnread] += n.Copies
		}
		if n.Damaged {
			c.Counts[countDamaged] += n.Copies
		}
	}
	type copies struct {
		Live     int64 `ch:"live_copies"`
		Verified int64 `ch:"verified"`
		Due      int64 `ch:"due"`
	}
	// A copy with a result of the round is not due any more, unless the round selects copies whatever their last attempt.
	stillDue, args := "false", []any{shifted(r.VerifiedSince)}
	if !r.AttemptedBefore.IsZero() {
		again, times := retryDue(schemas.DueQuery{PassedBefore: r.PassedBefore, AttemptedBefore: r.AttemptedBefore,
			Begun: r.Started, Period: r.Period})
		stillDue = "good < ? AND " + again
		args = append(append(args, shifted(r.PassedBefore)), times...)
	}
	now, err := clickhouse.Query[copies](ctx, db, "count the copies of a space",
		"SELECT toInt64(countIf(live)) AS live_copies, toInt64(countIf(live AND effective >= greatest(?, 1))) AS verified,"+
			" toInt64(countIf(live AND "+stillDue+")) AS due FROM ("+checkedCopies(r.Asserted)+")"+aggregateInOrder,
		append(args, r.Space.Account, r.Space.Store, r.Space.Space, r.Prefix)...)
	if err != nil {
		return c, err
	}
	c.Live = now[0].Live
	c.Counts[countLive], c.Counts[countVerified], c.Counts[countDue] = now[0].Live, now[0].Verified, now[0].Due
	return c, nil
}

// OpenIncidents returns the open incidents of an account, or of all accounts for "": for each key the newest
// incident, as its newest record, if it is not closed. Older incidents of a key cannot be decided any more, even if
// they are open.
func OpenIncidents(ctx context.Context, db *clickhouse.DB, account string) ([]*pb.Incident, error) {
	return SelectIncidents(ctx, db, IncidentSelection{Of: schemas.Copy{Account: account}})
}

// An IncidentSelection selects open incidents. Zero fields select all.
type IncidentSelection struct {
	Of            schemas.Copy // an account, a store and a space; the item is ignored
	Kinds         []string
	Since, Before time.Time // of opening: at or after Since, and before Before
	Closed        bool      // include closed incidents, and all of a key
}

// SelectIncidents returns the selected incidents as OpenIncidents does, or with Closed the newest record of each.
func SelectIncidents(ctx context.Context, db *clickhouse.DB, s IncidentSelection) ([]*pb.Incident, error) {
	return readIncidents(ctx, db, s.query())
}

func (s IncidentSelection) query() incidentQuery {
	kinds := strings.Join(s.Kinds, ",")
	q := incidentQuery{newest: "1", having: "1",
		where: whereSpace + " AND (? = '' OR has(splitByChar(',', ?), kind))",
		args:  append(spaceArgs(s.Of), kinds, kinds)}
	if !s.Closed {
		q.newest = "1 ORDER BY ts DESC, ns DESC, id LIMIT 1 BY account, store, space, item, kind, subject"
		q.having = "state != 'closed'"
	}
	// Last, because an older incident of a key is not open, even if the newer one is not selected.
	if !s.Since.IsZero() {
		q.having += " AND ts >= fromUnixTimestamp64Milli(?, 'UTC')"
		q.args = append(q.args, s.Since.UnixMilli())
	}
	if !s.Before.IsZero() {
		q.having += " AND ts < fromUnixTimestamp64Milli(?, 'UTC')"
		q.args = append(q.args, s.Before.UnixMilli())
	}
	return q
}

// whereSpace selects the rows of an account, a store and a space, each of which may be empty, for all.
const whereSpace = "(? = '' OR account = ?) AND (? = '' OR store = ?) AND (? = '' OR space = ?)"

// spaceArgs returns the arguments of whereSpace.
func spaceArgs(c schemas.Copy) []any {
	return []any{c.Account, c.Account, c.Store, c.Store, c.Space, c.Space}
}

type incidentRecord struct {
	ID     string    `ch:"id"`
	Opened time.Time `ch:"ts"`
	Nanos  uint32    `ch:"ns"`
	copyKey
	Kind      string            `ch:"kind"`
	State     string            `ch:"state"`
	Updated   *time.Time        `ch:"updated"`
	Closed    *time.Time        `ch:"closed"`
	Checked   *time.Time        `ch:"checked"`
	Row       uint8             `ch:"row"`
	Expected  map[string]string `ch:"expected"`
	Found     map[string]string `ch:"found"`
	Version   string            `ch:"object_version"`
	ETag      string            `ch:"object_etag"`
	Modified  *time.Time        `ch:"object_modified"`
	ModNanos  uint32            `ch:"object_ns"`
	Size      int64             `ch:"object_size"`
	Repairs   int32             `ch:"repairs"`
	StepCount int32             `ch:"step_count"`
	Times     []time.Time       `ch:"step.time"`
	Actions   []string          `ch:"step.action"`
	Refs      []string          `ch:"step.ref"`
	By        []string          `ch:"step.by"`
	Details   []string          `ch:"step.detail"`
	Subject   string            `ch:"subject"`
	LastEvent string            `ch:"last_event"`
}

// An incidentQuery filters records with where, takes the newest record of each incident, and filters these with newest
// and then with having. args has the arguments of where, then of having. Of two records with equally many steps, the
// record with the higher offset is the newer one, as for incident.Board.
type incidentQuery struct {
	where, newest, having string
	args                  []any
}

// of returns the query for columns.
func (q incidentQuery) of(columns string) string {
	return "SELECT " + columns + " FROM (SELECT " + columns + " FROM (SELECT " + columns +
		" FROM {db}.incidents_v WHERE " + q.where +
		" ORDER BY id, step_count DESC, off DESC LIMIT 1 BY id) WHERE " + q.newest + ") WHERE " + q.having
}

func readIncidents(ctx context.Context, db *clickhouse.DB, q incidentQuery) ([]*pb.Incident, error) {
	const columns = "id, ts, ns, account, store, space, item, kind, state, updated, closed, checked, row," +
		" expected, found," +
		" object_version, object_etag, object_modified, object_ns, object_size, repairs, step_count," +
		" `step.time`, `step.action`, `step.ref`, `step.by`, `step.detail`, subject, last_event"
	rows, err := clickhouse.Query[incidentRecord](ctx, db, "read incidents", q.of(columns)+" ORDER BY ts, id", q.args...)
	if err != nil {
		return nil, err
	}
	all := make([]*pb.Incident, len(rows))
	for i := range rows {
		if all[i], err = rows[i].incident(); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func (r *incidentRecord) incident() (*pb.Incident, error) {
	i := &pb.Incident{
		Id: r.ID, Account: r.Account, Store: r.Store, Space: r.Space, Item: r.Item, Kind: r.Kind,
		State:  pb.IncidentState(enumValue(pb.IncidentState_value, "INCIDENT_STATE_", r.State)),
		Opened: nullTime(&r.Opened, r.Nanos), Updated: nullTime(r.Updated, 0),
		Closed: nullTime(r.Closed, 0), Checked: nullTime(r.Checked, 0),
		Row: int32(r.Row), Expected: r.Expected, Found: r.Found, Repairs: r.Repairs,
		StepCount: r.StepCount, Subject: r.Subject,
	}
	if r.Version != "" || r.ETag != "" || r.Modified != nil {
		i.Object = &pb.Identity{Version: r.Version, Etag: r.ETag, Modified: nullTime(r.Modified, r.ModNanos), Size: r.Size}
	}
	if r.LastEvent != "" {
		last, err := time.Parse(time.RFC3339Nano, r.LastEvent)
		if err != nil {
			return nil, fmt.Errorf("read the last event of incident %s: %w", r.ID, err)
		}
		i.LastEvent = timestamppb.New(last)
	}
	n := len(r.Times)
	if len(r.Actions) != n || len(r.Refs) != n || len(r.By) != n || len(r.Details) != n {
		return nil, fmt.Errorf("read incident %s: its columns of steps differ in length", r.ID)
	}
	for k, t := range r.Times {
		i.Steps = append(i.Steps, &pb.IncidentStep{
			Time: timestamppb.New(t), Action: r.Actions[k], Ref: r.Refs[k], By: r.By[k], Detail: r.Details[k],
		})
	}
	return i, nil
}

// A Check is a row of the bit log.
type Check struct {
	ID       string    `ch:"id"`
	Task     string    `ch:"task"`
	Round    string    `ch:"round"`
	Started  time.Time `ch:"ts"`
	Finished time.Time `ch:"finished"`
	Reason   string    `ch:"reason"`
	Verdict  string    `ch:"verdict"`
	Row      uint8     `ch:"row"`
	Finding  string    `ch:"finding"`
	Final    bool      `ch:"final"`
	Level    uint8     `ch:"level"`
	Recheck  int32     `ch:"recheck"`
	Detail   string    `ch:"detail"`
}

// ResultsOf returns all checks of a copy, oldest first.
func ResultsOf(ctx context.Context, db *clickhouse.DB, c schemas.Copy) ([]Check, error) {
	return clickhouse.Query[Check](ctx, db, "read the checks of a copy",
		"SELECT id, task, round, ts, finished, reason, verdict, row, finding, final, level, recheck, detail"+
			" FROM {db}.bit_log_v WHERE account = ? AND store = ? AND space = ? AND item = ? ORDER BY ts, off",
		c.Account, c.Store, c.Space, c.Item)
}
