package clickhouse_test

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/clickhousetest"
)

func TestMain(m *testing.M) {
	if os.Getenv(killedAddr) != "" {
		os.Exit(migrateToBeKilled())
	}
	clickhousetest.Main(m)
}

// start is the time of the first event in these tests.
var start = time.Date(2026, 3, 4, 5, 6, 7, 891_234_567, time.UTC)

func at(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(start.Add(d)) }

// ms truncates a time to milliseconds, as most columns do.
func ms(t *timestamppb.Timestamp) *timestamppb.Timestamp {
	return &timestamppb.Timestamp{Seconds: t.GetSeconds(), Nanos: t.GetNanos() / 1e6 * 1e6}
}

// change returns an add of photos/<item> in store 1 of acme, d after start.
func change(item string, d time.Duration) *pb.Change {
	c := &pb.Change{
		Op: pb.Op_OP_ADD, Account: "acme", Store: "1", Space: "photos", Item: item, Version: "v" + d.String(),
		Size: 1000 + int64(d.Seconds()), MediaType: "image/jpeg", Provenance: pb.Provenance_PROVENANCE_VERIFIED,
		Digests: map[string]string{"md5": schemas.ID(item, d.String()),
			"sha256": schemas.ID(item, d.String(), "a") + schemas.ID(item, d.String(), "b")},
		Time: at(d), User: "ann", Agent: "emit", Origin: pb.Origin_ORIGIN_CLIENT,
	}
	c.Id = schemas.ChangeID(c)
	return c
}

// changes returns n adds of different items, a minute apart.
func changes(n int) []schemas.Body {
	all := make([]schemas.Body, n)
	for i := range all {
		all[i] = change(fmt.Sprintf("2026/img-%06d.jpg", i), time.Duration(i)*time.Minute)
	}
	return all
}

// deliver returns deliveries of one partition with consecutive offsets.
func deliver(topic schemas.Topic, from int64, bodies ...schemas.Body) []*schemas.Delivery {
	batch := make([]*schemas.Delivery, len(bodies))
	for i, b := range bodies {
		batch[i] = &schemas.Delivery{
			Topic: topic, From: topic, Incarnation: 7, Partition: 3, Offset: from + int64(i),
			Timestamp: start.Add(time.Hour), Body: b, Attempt: 1,
		}
		if b != nil {
			value, err := proto.MarshalOptions{Deterministic: true}.Marshal(b)
			if err != nil {
				panic(err) // a mistake in the test
			}
			batch[i].Hash = schemas.Hash(value)
		}
	}
	return batch
}

func count(t testing.TB, db *clickhouse.DB, from string) string {
	t.Helper()
	return scanOne(t, db, "SELECT toString(count()) FROM {db}."+from)
}

func scanOne(t testing.TB, db *clickhouse.DB, statement string, args ...any) string {
	t.Helper()
	all, err := db.Strings(t.Context(), statement, args...)
	if err != nil || len(all) != 1 {
		t.Fatalf("%s: got %d rows, error %v", statement, len(all), err)
	}
	return all[0]
}

func TestMigrate(t *testing.T) {
	t.Parallel()
	db := clickhousetest.OpenEmpty(t)
	err := clickhouse.CheckDatabase(t.Context(), db)
	if !errors.Is(err, clickhouse.ErrMigration) || !strings.Contains(err.Error(), "0001_audit_log") {
		t.Errorf("Check before Migrate = %v, want a missing 0001_audit_log", err)
	}
	applied, err := clickhouse.Migrate(t.Context(), db)
	if err != nil || len(applied) < 20 || applied[0] != "0001_audit_log" {
		t.Fatalf("Migrate = %v, %v", applied, err)
	}
	if err := clickhouse.CheckDatabase(t.Context(), db); err != nil {
		t.Errorf("Check after Migrate: %v", err)
	}
	if again, err := clickhouse.Migrate(t.Context(), db); err != nil || len(again) != 0 {
		t.Errorf("Migrate again = %v, %v, want nothing", again, err)
	}
	if err := db.Exec(t.Context(), "INSERT INTO {db}.schema_migrations (version, name) SELECT 9999, 'newer'"); err != nil {
		t.Fatal(err)
	}
	if err := clickhouse.CheckDatabase(t.Context(), db); err != nil {
		t.Errorf("Check with a newer migration: %v", err)
	}
	if err := db.Exec(t.Context(), "TRUNCATE TABLE {db}.schema_migrations"); err != nil {
		t.Fatal(err)
	}
	if again, err := clickhouse.Migrate(t.Context(), db); err != nil || !slices.Equal(again, applied) {
		t.Errorf("Migrate with its ledger lost = %v, %v, want all of them again", again, err)
	}
}

func TestColumns(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	for table, want := range clickhouse.TableColumns() {
		t.Run(table, func(t *testing.T) {
			lines, err := db.Strings(t.Context(),
				"SELECT name || ' ' || type FROM system.columns WHERE table = ? AND database = "+
					"(SELECT name FROM system.databases WHERE name = trim(BOTH '`' FROM '{db}'))", table)
			if err != nil {
				t.Fatal(err)
			}
			got := map[string]string{}
			for _, l := range lines {
				name, typ, _ := strings.Cut(l, " ")
				got[name] = typ
			}
			if !maps.Equal(got, want) {
				t.Errorf("system.columns has\n%v\nwant\n%v", got, want)
			}
		})
	}
}

func TestTopics(t *testing.T) {
	t.Parallel()
	db := open(t, clickhouse.Config{Addresses: []string{"unused.test:9000"}})
	for role, topics := range map[schemas.Role][]schemas.Topic{
		schemas.RoleSink:  clickhouse.NewSink(db).Topics(),
		schemas.RoleState: clickhouse.NewState(db).Topics(),
	} {
		var want []schemas.Topic
		for _, e := range schemas.Catalogue() {
			if e.Reads(role) {
				want = append(want, e.Topic)
			}
		}
		if !slices.Equal(topics, want) {
			t.Errorf("topics of %s = %v, want those that the catalogue says it reads: %v", role, topics, want)
		}
	}
}
