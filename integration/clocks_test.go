package integration

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/policy"
)

// TestClocks checks the promises of docs/clocks.md: with processes, stores, checkers and producers whose clocks differ
// and step, reports that come late, twice and in any order, snapshots that come back, and kills.
func TestClocks(t *testing.T) {
	t.Run("rows", testClockRows)
	t.Run("model", testClockModel)
	t.Run("shift", testClockShift)
	t.Run("records", testClockRecords)
}

// A clockRow is a history, and how it ends at rest.
type clockRow struct {
	do   func(*clockWorld) error
	want string
	// ahead is how it ends if all clocks are ahead, so that only Kafka orders what comes late; empty: the same.
	ahead string
	// mixed: a clock that is ahead of Kafka's and another one decide what is newer, and one that is years behind loses.
	mixed bool
}

const (
	hour = time.Hour
	year = 365 * 24 * time.Hour
)

// ahead dates a client's Change by how much its clock is ahead of Kafka's.
func (w *clockWorld) ahead(c *pb.Change, by time.Duration) *pb.Change {
	c.Time = timestamppb.New(w.now.Add(w.shift + by).Truncate(time.Millisecond))
	return clientChange(c)
}

// undigested takes from a client's Change what an HTTP client may not know.
func undigested(c *pb.Change) *pb.Change {
	c.Digests, c.Version, c.Provenance = nil, "", pb.Provenance_PROVENANCE_UNSPECIFIED
	return clientChange(c)
}

// again delivers every command to copy, or to delete, an item once more.
func (w *clockWorld) again() error {
	for _, d := range slices.Clone(w.done) {
		switch d.Body.(type) {
		case *pb.DuplicationCommand, *pb.DeletionCommand:
			w.open = append(w.open, &waiting{Delivery: d})
		}
	}
	return w.deliver()
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
	const one, none = "1: one (one), 2: one (one), 3: one (one)",
		"1: nothing (tombstone), 2: nothing (tombstone), 3: nothing (tombstone)"
	const two = "1: two (two), 2: two (two), 3: two (two)"
	return map[string]clockRow{
		"a put, an update": {func(w *clockWorld) error { return errors.Join(w.puts("one"), w.puts("two")) }, two, "", false},
		"a put without digests": {func(w *clockWorld) error {
			return errors.Join(w.report(w.putPlain("1", "one")), w.rest())
		}, one, "", false},
		"a put without digests, and rot": {func(w *clockWorld) error {
			return errors.Join(w.report(w.putPlain("1", "one")), w.rest(),
				w.by(func() { w.stores["1"].Corrupt(clockSpace, clockItem, []byte("rot")) }), w.rest())
		}, "1: rot (one), 2: one (one), 3: one (one), 1 replaced", "", false},
		"a put without digests, killed copiers, and rot": {func(w *clockWorld) error {
			return errors.Join(w.report(w.putPlain("1", "one")), w.by(func() { w.kills = 3 }), w.deliver(),
				w.by(func() { w.stores["1"].Corrupt(clockSpace, clockItem, []byte("rot")) }), w.rest())
		}, "1: rot (one), 2: one (one), 3: one (one), 1 replaced", "", false},
		"a delete": {func(w *clockWorld) error {
			return errors.Join(w.puts("one"), w.report(w.remove("1")))
		}, none, "", false},
		"a delete of 2200, a put, and the loss of it": {func(w *clockWorld) error {
			return errors.Join(w.puts("one"), w.report(w.ahead(w.remove("1"), in2200)), w.rest(), w.puts("two"),
				w.by(func() { w.stores["1"].Lose(clockSpace, clockItem) }))
		}, "1: nothing (two), 2: two (two), 3: two (two), 1 content-missing, 1 source-missing", "", true},
		"a put of 2200, and an update": {func(w *clockWorld) error {
			return errors.Join(w.report(w.ahead(w.put("1", "one"), in2200)), w.rest(), w.puts("two"))
		}, two, "", true},
		"a file of 2100 that no event has reported, and an update": {func(w *clockWorld) error {
			w.put("1", "one")
			w.stores["1"].Date(clockSpace, clockItem, clockStart.Add(74*year))
			return errors.Join(w.rest(), w.puts("two"))
		}, two, "", false},
		"a planner six minutes behind": {func(w *clockWorld) error {
			w.set("planner", -6*time.Minute)
			return w.puts("one")
		}, one, "", false},
		"a deleted item that a snapshot brings back, and old commands to a copier five hours behind": {
			func(w *clockWorld) error {
				w.set("copier", -5*hour)
				var restore func()
				return errors.Join(w.report(w.put("1", "one")), w.by(func() { restore = w.stores["1"].Snapshot() }),
					w.deliver(), w.report(w.remove("1")), w.deliver(), w.by(func() {
						w.now = w.now.Add(5 * hour)
						restore()
					}), w.again())
			}, "1: one (tombstone), 2: nothing (tombstone), 3: nothing (tombstone), 1 resurrected", "", false},
		"a store ten minutes ahead": {func(w *clockWorld) error {
			w.set("store 2", 10*time.Minute)
			return errors.Join(w.puts("one"), w.puts("two"))
		}, two, "", false},
		"a snapshot, and old commands": {func(w *clockWorld) error {
			var restore func()
			return errors.Join(w.puts("one"), w.by(func() { restore = w.stores["1"].Snapshot() }), w.puts("two"),
				w.by(func() { restore() }), w.again())
		}, "1: one (two), 2: two (two), 3: two (two), 1 replaced, 2 copy-differs, 3 copy-differs", "", false},
		"a snapshot, and a late event": {func(w *clockWorld) error {
			var restore func()
			return errors.Join(w.puts("one"), w.by(func() { restore = w.stores["1"].Snapshot() }), w.puts("two"),
				w.by(func() { restore() }), w.report(clientOf(w, "one")))
		}, "1: one (two), 2: two (two), 3: two (two), 1 replaced, 2 copy-differs, 3 copy-differs", "", false},
		"a deleted item that a snapshot brings back, and old commands": {func(w *clockWorld) error {
			var restore func()
			return errors.Join(w.puts("one"), w.by(func() { restore = w.stores["1"].Snapshot() }), w.report(w.remove("1")),
				w.rest(), w.by(func() { restore() }), w.again())
		}, "1: one (tombstone), 2: nothing (tombstone), 3: nothing (tombstone), 1 resurrected", "", false},
		"a deleted item of which a snapshot brings back older content, and old commands": {func(w *clockWorld) error {
			var restore func()
			return errors.Join(w.puts("one"), w.by(func() { restore = w.stores["1"].Snapshot() }), w.puts("two"),
				w.report(w.remove("1")), w.rest(), w.by(func() { restore() }), w.again())
		}, "1: one (tombstone), 2: nothing (tombstone), 3: nothing (tombstone), 1 resurrected", "", false},
		"a deleted item that a snapshot brings back, and a sweep's command from before the delete": {
			func(w *clockWorld) error {
				err := w.report(w.put("1", "one"))
				back := w.stores["1"].Snapshot()
				return errors.Join(err, w.sweepPair("2"), w.report(w.remove("1")), w.by(func() {
					w.now = w.now.Add(2 * hour)
					back()
				}))
			}, "1: one (tombstone), 2: nothing (none), 3: nothing (none), 1 resurrected", "", false},
		"a put without digests, and a put at a copy whose store is an hour behind": {func(w *clockWorld) error {
			err := w.report(w.put("1", "one"))
			w.now = w.now.Add(2 * hour)
			err = errors.Join(err, w.handle(0, noKill))
			w.set("store 2", -hour)
			return errors.Join(err, w.report(w.putBare("one")), w.report(w.put("2", "four")))
		}, one, "1: one (one), 2: four (four), 3: one (one), 2 copy-differs", false},
		"a snapshot of what was copied last but one, and a put without digests that it undoes": {
			func(w *clockWorld) error {
				err := w.report(w.put("1", "two"))
				restore := w.stores["1"].Snapshot()
				err = errors.Join(err, w.report(w.put("1", "one")), w.handle(0, noKill), w.handle(2, 2),
					w.report(w.putBare("three")))
				restore()
				w.now = w.now.Add(2 * hour)
				return err
			}, "1: two (two), 2: two (two), 3: one (one), 3 copy-differs", "", false},
		"a put without digests after a delete, a snapshot that undoes both, and a deleter that comes late": {
			func(w *clockWorld) error {
				err := w.report(w.put("1", "two"))
				restore := w.stores["1"].Snapshot()
				err = errors.Join(err, w.report(w.put("1", "one")), w.deliver(), w.report(w.remove("1")),
					w.handle(0, noKill), w.handle(0, noKill), w.handle(0, noKill))
				w.held, w.open = w.open, nil
				err = errors.Join(err, w.report(w.putBare("three")))
				restore()
				w.now = w.now.Add(2 * hour)
				err = errors.Join(err, w.rest())
				w.open = w.held
				return err
			}, "1: two (two), 2: one (one), 3: one (one), 2 copy-differs, 3 copy-differs", "", false},
		"a put after a delete that is reported late, by a store that is ahead, and a put at a copy": {
			func(w *clockWorld) error {
				err := w.report(w.put("1", "one"))
				w.set("store 1", 3*time.Second)
				gone := w.remove("1")
				return errors.Join(err, w.report(w.put("1", "one")), w.report(gone), w.report(w.put("2", "four")))
			}, "1: one (tombstone), 2: four (four), 3: one (one), 1 resurrected, 2 copy-differs", "", true},
		"a put while the deleter is at work": {func(w *clockWorld) error {
			return errors.Join(w.deleting(), w.report(w.put("1", "two")))
		}, two, "", false},
		"the same put while the deleter is at work, reported when it has ended": {func(w *clockWorld) error {
			err := w.deleting()
			put := w.put("1", "one")
			return errors.Join(err, w.deliver(), w.report(put))
		}, one, "", false},
		"a deleted item that was put twice, of which a snapshot brings back the first one": {func(w *clockWorld) error {
			var restore func()
			return errors.Join(w.report(w.put("1", "one")), w.by(func() { restore = w.stores["1"].Snapshot() }),
				w.report(w.put("1", "one")), w.report(w.remove("1")), w.by(func() {
					w.now = w.now.Add(2 * hour)
					restore()
				}))
		}, "1: one (tombstone), 2: nothing (none), 3: nothing (none), 1 resurrected", "", false},
		"writes to a destination while it was the source": {func(w *clockWorld) error {
			pairs := w.rules.Pairs
			return errors.Join(w.puts("one"),
				w.by(func() { w.rules.Pairs = []policy.Pair{{Source: "2", Destination: "1"}} }),
				w.report(w.put("2", "two")), w.handle(0, noKill), w.by(func() { w.rules.Pairs = pairs }))
		}, "1: one (one), 2: two (two), 3: one (one), 2 copy-differs", "", false},
		"a write to a destination that a sweep has seen, and the same write again": {func(w *clockWorld) error {
			return errors.Join(w.report(w.put("2", "four")), w.report(w.put("1", "one")), w.sweepPair("2"),
				w.report(w.put("2", "four")))
		}, "1: one (one), 2: four (four), 3: one (one), 2 copy-differs", "", false},
		"the removal of a file that is dated ahead": {func(w *clockWorld) error {
			w.put("1", "one")
			w.stores["1"].Date(clockSpace, clockItem, w.now.Add(w.shift+10*time.Minute))
			return errors.Join(w.arrives(), w.deliver(), w.by(func() { w.remove("1") }), w.removed(w.now))
		}, none, "", false},
		"the removal of a file of 2100": {func(w *clockWorld) error {
			w.put("1", "one")
			w.stores["1"].Date(clockSpace, clockItem, clockStart.Add(74*year))
			return errors.Join(w.arrives(), w.rest(), w.by(func() { w.remove("1") }), w.removed(w.now))
		}, none, "", false},
		"the update of a file of 2100 by one of today": {func(w *clockWorld) error {
			w.put("1", "one")
			w.stores["1"].Date(clockSpace, clockItem, clockStart.Add(74*year))
			return errors.Join(w.arrives(), w.rest(), w.by(func() { w.put("1", "two") }), w.arrives())
		}, two, "", false},
		"a pass by a checker three years ahead, and rot": {func(w *clockWorld) error {
			w.set("checker A", 3*year)
			return errors.Join(w.puts("one"), w.by(func() {
				w.stores["1"].Corrupt(clockSpace, clockItem, []byte("rot"))
				w.checker = "checker B"
			}))
		}, "1: rot (one), 2: one (one), 3: one (one), 1 content-corrupt", "", false},
		"rot of a source whose client knew no digests": {func(w *clockWorld) error {
			return errors.Join(w.report(w.putBare("one")), w.rest(), w.by(func() {
				w.stores["1"].Corrupt(clockSpace, clockItem, []byte("rot"))
			}))
		}, "1: rot (one), 2: one (one), 3: one (one), 1 content-corrupt", "", false},
		"a pass on the records in an old task": {func(w *clockWorld) error {
			var restore func()
			return errors.Join(w.puts("one"), w.by(func() { restore = w.stores["1"].Snapshot() }), w.check("1"),
				w.by(func() { w.held, w.open = w.open, nil }), w.puts("two"), w.by(func() { restore() }), w.check("1"),
				w.deliver(), w.mustName("1 replaced"), w.by(func() { w.open = append(w.open, w.held...) }), w.deliver(),
				w.mustName("1 replaced"))
		}, "1: one (two), 2: two (two), 3: two (two), 1 replaced", "", false},
		"a file that is put back with its old date": {func(w *clockWorld) error {
			w.put("1", "one")
			date := w.now
			return errors.Join(w.arrives(), w.rest(), w.by(func() { w.remove("1") }), w.removed(w.now), w.rest(),
				w.by(func() {
					w.put("1", "one")
					w.stores["1"].Date(clockSpace, clockItem, date)
				}), w.arrives())
		}, one, "", false},
		"an older file that is moved over a newer one": {func(w *clockWorld) error {
			w.put("1", "one")
			return errors.Join(w.arrives(), w.rest(), w.by(func() {
				w.put("1", "two")
				w.stores["1"].Date(clockSpace, clockItem, w.now.Add(-6*year))
			}), w.arrives())
		}, two, "", false},
		"a delete before its late put": {func(w *clockWorld) error {
			put := w.put("1", "one")
			return errors.Join(w.report(w.remove("1")), w.rest(), w.report(put))
		}, "1: nothing (tombstone), 2: nothing (none), 3: nothing (none)",
			"1: nothing (one), 2: nothing (none), 3: nothing (none), 1 all-copies-missing, 1 content-missing", false},
		"a put ahead, its delete, and the same put": {func(w *clockWorld) error {
			return errors.Join(w.report(w.ahead(w.put("1", "one"), hour)), w.report(w.remove("1")), w.rest(),
				w.report(w.put("1", "one")))
		}, one, "", false},
		"a put ahead, its delete, and the put's report again": {func(w *clockWorld) error {
			put := w.ahead(w.put("1", "one"), hour)
			return errors.Join(w.report(put), w.deliver(), w.report(w.remove("1")), w.rest(),
				w.by(func() { w.now = w.now.Add(2 * hour) }), w.report(put))
		}, none, "", true},
		"a put ahead, its delete in that millisecond, and the put's report again": {func(w *clockWorld) error {
			put := w.ahead(w.put("1", "one"), in2200)
			err := w.report(put)
			gone := w.remove("1")
			gone.Time = timestamppb.New(w.log[0].Timestamp)
			return errors.Join(err, w.report(clientChange(gone)), w.rest(), w.report(put))
		}, "1: nothing (tombstone), 2: nothing (none), 3: nothing (none)", "", true},
		"a delete by a store an hour ahead": {func(w *clockWorld) error {
			w.set("store 1", hour)
			return errors.Join(w.puts("one"), w.report(w.remove("1")))
		}, none, "", false},
		"a delete by a store an hour ahead, no later than the copies, without versions": {func(w *clockWorld) error {
			w.set("store 1", hour)
			put := w.put("1", "one")
			put.Version = ""
			err := errors.Join(w.report(clientChange(put)), w.handle(0, noKill), w.handle(0, 0), w.handle(1, 0))
			if err != nil {
				return err
			}
			gone := w.remove("1")
			gone.Version = ""
			return w.report(clientChange(gone))
		}, none, "", false},
		"a delete by a store an hour ahead, of content whose copies are not on record yet": {func(w *clockWorld) error {
			w.set("store 1", hour)
			if err := errors.Join(w.report(w.put("1", "one")), w.handle(0, noKill)); err != nil {
				return err
			}
			return errors.Join(w.handle(0, 0), w.handle(1, 0), w.report(w.remove("1")))
		}, none, "", false},
		"an update and a delete while a copy is not on record yet": {func(w *clockWorld) error {
			return errors.Join(w.puts("one"), w.report(w.put("1", "two")), w.handle(0, noKill), w.handle(0, 0),
				w.report(w.put("1", "three")), w.report(w.remove("1")))
		}, none, "", false},
		"a late delete of older content, and the source comes back empty": {
			func(w *clockWorld) error {
				empty := w.stores["1"].Snapshot()
				err := w.puts("one")
				late := w.remove("1")
				return errors.Join(err, w.puts("two"), w.by(empty), w.report(late))
			}, "1: nothing (two), 2: two (two), 3: two (two), 1 content-missing, 1 source-missing",
			"1: nothing (tombstone), 2: two (two), 3: two (two), deletes-held", false},
		"a late delete of older content": {
			func(w *clockWorld) error {
				err := w.puts("one")
				late := w.remove("1")
				return errors.Join(err, w.puts("two"), w.report(late))
			}, two, "1: two (tombstone), 2: two (two), 3: two (two), 1 resurrected", false},
		"a client's put at a copy whose store is behind, after a delete": {func(w *clockWorld) error {
			w.set("store 2", -3*time.Second)
			return errors.Join(w.puts("one"), w.report(w.remove("1")), w.report(w.put("2", "two")))
		}, "1: nothing (tombstone), 2: two (two), 3: nothing (tombstone), deletes-held",
			"1: nothing (tombstone), 2: two (two), 3: nothing (tombstone), 2 kept-newer", false},
		"a put at a copy whose store is years behind, after a delete, that nobody reports": {func(w *clockWorld) error {
			w.skew["store 2"] = -9 * year
			return errors.Join(w.puts("one"), w.report(w.remove("1")), w.rest(), w.by(func() { w.put("2", "two") }))
		}, "1: nothing (tombstone), 2: two (two), 3: nothing (tombstone), deletes-held", "", false},
		"so it is, before the copy is deleted": {func(w *clockWorld) error {
			w.skew["store 2"] = -9 * year
			return errors.Join(w.puts("one"), w.report(w.remove("1")), w.by(func() { w.put("2", "two") }))
		}, "1: nothing (tombstone), 2: two (one), 3: nothing (tombstone), 2 replaced, deletes-held", "", false},
		"so it is, and a client reports it without digests": {func(w *clockWorld) error {
			w.skew["store 2"] = -9 * year
			return errors.Join(w.puts("one"), w.report(w.remove("1")), w.report(undigested(w.put("2", "two"))))
		}, "1: nothing (tombstone), 2: two (two), 3: nothing (tombstone), deletes-held", "", false},
		"an update and a delete by a store an hour behind": {func(w *clockWorld) error {
			return errors.Join(w.puts("one"), w.by(func() { w.set("store 1", -hour) }), w.puts("two"),
				w.report(w.remove("1")))
		}, none, "", false},
		"a version that expires after its item was deleted": {func(w *clockWorld) error {
			w.rules.Deletes = policy.KeepCopy
			return errors.Join(w.puts("one"), w.report(w.remove("1")), w.rest(), w.by(func() {
				w.rules.Deletes, w.rules.Since = policy.Propagate, w.now
				w.now = w.now.Add(60 * 24 * hour)
			}), w.notify("LifecycleExpiration:Delete", clientOf(w, "one").GetVersion()))
		}, "1: nothing (tombstone), 2: one (one), 3: one (one), 2 kept, 3 kept", "", false},
		"a newest version that is removed": {func(w *clockWorld) error {
			var restore func()
			return errors.Join(w.puts("one"), w.by(func() { restore = w.stores["1"].Snapshot() }), w.puts("two"),
				w.by(func() { w.current(restore) }), w.notify("ObjectRemoved:Delete", clientOf(w, "two").GetVersion()))
		}, one, "", false},
		"a delete marker that is removed": {func(w *clockWorld) error {
			var restore func()
			return errors.Join(w.puts("one"), w.by(func() { restore = w.stores["1"].Snapshot() }),
				w.by(func() { w.remove("1") }), w.notify("ObjectRemoved:DeleteMarkerCreated", "marker"), w.rest(),
				w.by(func() { w.current(restore) }), w.notify("ObjectRemoved:Delete", "marker"))
		}, one, "", false},
		"the removal of a file of 2100 while it is copied": {func(w *clockWorld) error {
			w.put("1", "one")
			w.stores["1"].Date(clockSpace, clockItem, clockStart.Add(74*year))
			return errors.Join(w.arrives(), w.handle(0, noKill), w.handle(0, 0), w.by(func() { w.remove("1") }),
				w.removed(w.now))
		}, "1: nothing (tombstone), 2: nothing (tombstone), 3: nothing (none)", "", false},
		"a file and its removal, seen by a watch an hour behind": {func(w *clockWorld) error {
			w.set("ingester", -hour)
			w.put("1", "one")
			return errors.Join(w.arrives(), w.deliver(), w.by(func() {
				w.now = w.now.Add(10 * time.Minute)
				w.remove("1")
			}), w.removed(w.now))
		}, none, "", false},
		"other content at a destination": {func(w *clockWorld) error {
			return errors.Join(w.puts("one"), w.by(func() { w.put("2", "two") }))
		}, "1: one (one), 2: two (one), 3: one (one), 2 replaced", "", false},
		"other content at a destination, and a claim about it": {func(w *clockWorld) error {
			return errors.Join(w.puts("one"), w.claim(w.put("2", "two")))
		}, "1: one (one), 2: two (one), 3: one (one), 2 replaced", "", false},
		"claims of other content and of a delete at a destination, and rot": {func(w *clockWorld) error {
			put := &pb.Change{Op: pb.Op_OP_ADD, Account: "acme", Store: "2", Space: clockSpace, Item: clockItem,
				Digests: map[string]string{"md5": "00"}, Time: timestamppb.New(w.now.Add(hour))}
			gone := proto.CloneOf(put)
			gone.Op = pb.Op_OP_DELETE
			return errors.Join(w.puts("one"), w.claim(put), w.claim(gone), w.rest(),
				w.by(func() { w.stores["2"].Corrupt(clockSpace, clockItem, []byte("rot")) }))
		}, one, "", false},
		"a file that other programs remove and write again": {func(w *clockWorld) error {
			w.external = true
			w.put("1", "one")
			return errors.Join(w.rest(), w.by(func() { w.remove("1") }), w.rest(), w.by(func() { w.put("1", "two") }))
		}, two + ", deletes-held", "", false},
		"an item that a check finds, a later put at a copy, and the late report": {func(w *clockWorld) error {
			late := w.put("1", "one")
			return errors.Join(w.report(w.put("2", "two")), w.check("1"), w.deliver(), w.report(late))
		}, "1: one (one), 2: two (two), 3: one (one), 2 copy-differs", one, false},
		"an update by a store whose clock is set back": {func(w *clockWorld) error {
			return errors.Join(w.puts("one"), w.by(func() { w.set("store 1", -9*year) }), w.report(w.put("1", "two")))
		}, "1: two (one), 2: one (one), 3: one (one), 1 replaced, 2 copy-differs, 3 copy-differs", "", false},
	}
}

// deleting lets the copiers handle a delete, and kills the deleter when it has deleted the copy in store 2.
func (w *clockWorld) deleting() error {
	return errors.Join(w.puts("one"), w.report(w.remove("1")), w.handle(0, noKill), w.handle(0, noKill),
		w.handle(0, noKill), w.handle(0, 0))
}

// current makes an older version the current one, as a client does that removes a newer one.
func (w *clockWorld) current(restore func()) {
	restore()
	w.acts = append(w.acts, act{"1", w.texts()["1"], w.now})
}

// clientOf returns the first Change of a client that reports a text.
func clientOf(w *clockWorld, text string) *pb.Change {
	facts := w.clientFacts()
	return facts[slices.IndexFunc(facts, isOf(text))].Change
}

// mustName returns an error unless an open incident has this name.
func (w *clockWorld) mustName(name string) error {
	if all := w.named(); !slices.Contains(all, name) {
		return fmt.Errorf("named are %q, want %q too", all, name)
	}
	return nil
}

// Each row ends so too if each process is killed once before each of its outputs, or all clocks but Kafka's are wrong.
func testClockRows(t *testing.T) {
	for name, row := range clockRows() {
		for how, set := range map[string]func(*clockWorld){
			"":                         func(*clockWorld) {},
			", killed":                 func(w *clockWorld) { w.kills = 1 },
			", killed after an output": func(w *clockWorld) { w.kills = 2 },
			", an hour ahead":          func(w *clockWorld) { w.shiftBy(hour) },
			", three years behind":     func(w *clockWorld) { w.shiftBy(-3 * year) },
			", three years ahead":      func(w *clockWorld) { w.shiftBy(3 * year) },
		} {
			t.Run(name+how, func(t *testing.T) {
				w := newClockWorld(t)
				if set(w); row.mixed && w.shift < 0 {
					return
				}
				if err := errors.Join(row.do(w), w.rest()); err != nil {
					t.Error(err)
				}
				want := row.want
				if w.shift > 0 && row.ahead != "" {
					want = row.ahead
				}
				if got := w.summary(); got != want {
					t.Errorf("ends with %s,\nwant      %s", got, want)
				}
				for _, fault := range w.faults() {
					t.Error(fault)
				}
			})
		}
	}
}
