package integration

import (
	"errors"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// TestClocks checks the promises of docs/clocks.md: with processes, stores, checkers and producers whose clocks differ
// and step, reports that come late, twice and in any order, snapshots that come back, and kills.
func TestClocks(t *testing.T) {
	t.Run("rows", testClockRows)
	t.Run("model", testClockModel)
}

// A clockRow is a history, and how it ends at rest.
type clockRow struct {
	do   func(*clockWorld) error
	want string
}

const (
	hour = time.Hour
	year = 365 * 24 * time.Hour
)

// ahead dates a client's Change by how much its clock is ahead of Kafka's.
func (w *clockWorld) ahead(c *pb.Change, by time.Duration) *pb.Change {
	c.Time = timestamppb.New(w.now.Add(by).Truncate(time.Millisecond))
	return clientChange(c)
}

// puts reports a put at the source, and lets all that follows end.
func (w *clockWorld) puts(text string) error {
	return errors.Join(w.report(w.put("1", text)), w.rest())
}

// by returns nil after it changed the world, for lists of errors.
func (w *clockWorld) by(f func()) error {
	f()
	return nil
}

func clockRows() map[string]clockRow {
	const none = "1: nothing (tombstone), 2: nothing (tombstone), 3: nothing (tombstone)"
	const two = "1: two (two), 2: two (two), 3: two (two)"
	return map[string]clockRow{
		"a put, an update": {func(w *clockWorld) error { return errors.Join(w.puts("one"), w.puts("two")) }, two},
		"a delete":         {func(w *clockWorld) error { return errors.Join(w.puts("one"), w.report(w.remove("1"))) }, none},
		"a delete before its late put": {func(w *clockWorld) error {
			put := w.put("1", "one")
			return errors.Join(w.report(w.remove("1")), w.rest(), w.report(put))
		}, "1: nothing (tombstone), 2: nothing (none), 3: nothing (none)"},
		"a delete by a store an hour ahead": {func(w *clockWorld) error {
			w.set("store 1", hour)
			return errors.Join(w.puts("one"), w.report(w.remove("1")))
		}, none},
		"a delete by a store an hour ahead, of content whose copies are not on record yet": {func(w *clockWorld) error {
			w.set("store 1", hour)
			if err := errors.Join(w.report(w.put("1", "one")), w.handle(0, noKill)); err != nil {
				return err
			}
			return errors.Join(w.handle(0, 0), w.handle(1, 0), w.report(w.remove("1")))
		}, none},
		"an update and a delete by a store an hour behind": {func(w *clockWorld) error {
			return errors.Join(w.puts("one"), w.by(func() { w.set("store 1", -hour) }), w.puts("two"),
				w.report(w.remove("1")))
		}, none},
	}
}

// Each row ends so too if each process is killed once before each of its outputs.
func testClockRows(t *testing.T) {
	for name, row := range clockRows() {
		for how, set := range map[string]func(*clockWorld){
			"":                         func(*clockWorld) {},
			", killed":                 func(w *clockWorld) { w.kills = 1 },
			", killed after an output": func(w *clockWorld) { w.kills = 2 },
		} {
			t.Run(name+how, func(t *testing.T) {
				w := newClockWorld(t)
				set(w)
				if err := errors.Join(row.do(w), w.rest()); err != nil {
					t.Error(err)
				}
				if got := w.summary(); got != row.want {
					t.Errorf("ends with %s,\nwant      %s", got, row.want)
				}
				for _, fault := range w.faults() {
					t.Error(fault)
				}
			})
		}
	}
}
