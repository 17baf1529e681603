package read_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	ch "github.com/ClickHouse/clickhouse-go/v2"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/clickhousetest"
	"github.com/millrace/millrace/sinks/clickhouse/read"
)

// extremeChanges returns changes with extreme values.
func extremeChanges() map[string]*pb.Change {
	var control strings.Builder
	for c := range rune(0x20) {
		control.WriteRune(c)
	}
	control.WriteString("\x7f\u0080\u2028\ufeff")
	with := func(edit func(*pb.Change)) *pb.Change {
		c := clickhousetest.Change("a", 0)
		edit(c)
		c.Id = schemas.ChangeID(c)
		return c
	}
	when := func(s string) func(*pb.Change) {
		t, err := time.Parse(time.RFC3339Nano, s)
		if err != nil {
			panic(err)
		}
		return func(c *pb.Change) { c.Item, c.Time, c.SourceTime = s, timestamppb.New(t), timestamppb.New(t) }
	}
	texts := func(s string) func(*pb.Change) {
		return func(c *pb.Change) {
			c.Space, c.Item, c.SourceSpace, c.SourceItem, c.Version, c.Etag, c.MediaType, c.Sequence = s, s, s, s, s, s, s, s
			c.User, c.Agent, c.Cause, c.SourceVersion, c.Approved = s, s, s, s, s
			c.Properties, c.Acl, c.Evidence = map[string]string{s: s}, map[string]string{s: s}, map[string]string{s: s}
		}
	}
	return map[string]*pb.Change{
		"1,024 bytes":        with(texts(strings.Repeat("é/", 341) + "a")),
		"emoji":              with(texts(strings.Repeat("\U0001F469\u200D\U0001F469\u200D\U0001F467", 40))),
		"control characters": with(texts(control.String())),
		"quotes":             with(texts("`a` 'b' \"c\" \\n ? {db} {x:String} $1 @p %s -- /* ; \\")),
		"spaces":             with(texts(" \u00a0 ")),
		"no texts": with(func(c *pb.Change) {
			texts("")(c)
			c.Space, c.Item = "photos", "a"
			c.Properties = nil
			c.Acl = nil
			c.Evidence = nil
		}),
		"empty keys": with(func(c *pb.Change) {
			c.Properties = map[string]string{"": "", "k": ""}
			c.Acl = map[string]string{"": "rw"}
		}),
		"no bytes":             with(func(c *pb.Change) { c.Size = 0 }),
		"most bytes":           with(func(c *pb.Change) { c.Size = math.MaxInt64 }),
		"unknown bytes":        with(func(c *pb.Change) { c.Size, c.SizeUnknown = 0, true }),
		"100 properties":       with(func(c *pb.Change) { c.Properties = many(100) }),
		"1900":                 with(when("1900-01-01T00:00:00Z")),
		"before 1970":          with(when("1969-12-31T23:59:59.999999999Z")),
		"1970":                 with(when("1970-01-01T00:00:00Z")),
		"in an hour of change": with(when("2026-10-25T00:30:00.000000001Z")),
		"the end of 2261":      with(when("2261-12-31T23:59:59.999999999Z")),
		"a file of year 1": with(func(c *pb.Change) {
			c.Modified = timestamppb.New(time.Date(1, 1, 1, 0, 0, 0, 1e6, time.UTC))
		}),
		"a file of 9999": with(func(c *pb.Change) {
			c.Modified = timestamppb.New(time.Date(9999, 12, 31, 23, 59, 59, 999e6, time.UTC))
		}),
		"another time zone": with(when("2026-01-01T00:30:00.5+13:45")),
	}
}

func many(n int) map[string]string {
	m := map[string]string{}
	for i := range n {
		m[fmt.Sprint("property-", i)] = strings.Repeat("v", i)
	}
	return m
}

// changesOf returns the changes of a space as they are exported.
func changesOf(ctx context.Context, db *clickhouse.DB, account, space string) ([]*pb.Change, error) {
	all, err := read.ChangesToExport(ctx, db, read.ExportQuery{Account: account, Range: read.ChangeRange{
		Partition: read.ChangePartition{Incarnation: 7, Partition: 3}, To: math.MaxInt64}})
	return slices.DeleteFunc(all, func(c *pb.Change) bool { return c.GetSpace() != space }), err
}

// Extreme values are returned as they were stored, by every query and in every time zone.
func TestExtremes(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	all := extremeChanges()
	var changes, checks []schemas.Body
	for _, c := range all {
		c.Account = fmt.Sprint("acme-", len(changes))
		c.Id = schemas.ChangeID(c)
		changes, checks = append(changes, c), append(checks, clickhousetest.Result(c, 0))
	}
	clickhousetest.StoreBoth(t, db, schemas.Changes, math.MaxInt32, changes...)
	clickhousetest.StoreBoth(t, db, schemas.FixityResults, math.MaxInt32, checks...)
	zones, n := []string{"UTC", "America/St_Johns", "Pacific/Kiritimati"}, 0
	for name, c := range all {
		n++ // each query in another zone, if not in all
		t.Run(name, func(t *testing.T) {
			for i := range need.Amount(1, len(zones), len(zones)) {
				zone := zones[(n+i)%len(zones)]
				ctx := ch.Context(t.Context(), ch.WithSettings(ch.Settings{"session_timezone": zone}))
				changes, err := changesOf(ctx, db, c.GetAccount(), c.GetSpace())
				if err != nil || len(changes) != 1 {
					t.Fatalf("the changes of its space are %v, %v", changes, err)
				}
				clickhousetest.Compare(t, "in the audit log", changes[0], c)
				known, err := read.Manifest(ctx, db, read.ManifestQuery{
					Account: c.GetAccount(), Store: c.GetStore(), Space: c.GetSpace(), Limit: 2,
				})
				if err != nil || len(known) != 1 {
					t.Fatalf("Manifest = %v, %v", known, err)
				}
				clickhousetest.Compare(t, "in the manifest", known[0].Record.GetManifest(), clickhousetest.RecordOf(c))
				records, err := read.Records(ctx, db, []schemas.Copy{schemas.CopyOf(c)})
				must(t, err)
				clickhousetest.Compare(t, "on record", records[0],
					&pb.CopyRecord{Manifest: clickhousetest.RecordOf(c), Audit: clickhousetest.RecordOf(c),
						LastPass: clickhousetest.Millis(clickhousetest.At(0)), LastAttempt: clickhousetest.Millis(clickhousetest.At(0))})
				if events, err := read.Timeline(ctx, db, c.GetAccount(), c.GetSpace(), c.GetItem()); err != nil ||
					len(events) != 2 {
					t.Errorf("Timeline = %v, %v, want the change and its check", events, err)
				}
			}
		})
	}
}
