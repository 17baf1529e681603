package integration

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/integration/harness"
	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/fixity"
	"github.com/millrace/millrace/streams/schedule"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/emit"
	"github.com/millrace/millrace/streams/storage/s3/s3test"
)

const (
	damagedSpace = "photos"
	objectStore  = "3" // in S3; stores 1 and 2 are directories
	objectBucket = "three"
)

// A damagedWorld has items with a copy in each of three stores, some of which are damaged.
type damagedWorld struct {
	*swept
	t      *testing.T
	s3     *s3test.Server
	backup string // a directory of files that come back
	app    *app.App
	client *emit.Store
	// processes are those that are killed, by their roles.
	processes map[string]*process
	items     int
	hits      []hit
	by        map[schemas.Copy]hit // of hits
}

// newDamagedWorld returns a world in which no sweep runs unless it is requested.
func newDamagedWorld(t *testing.T, items, each int) *damagedWorld {
	t.Helper()
	w := &damagedWorld{t: t, items: items, by: map[schemas.Copy]hit{}, processes: map[string]*process{},
		s3: s3test.New(s3test.Options{Versions: true})}
	t.Cleanup(w.s3.Close)
	requestS3(t, w.s3, http.MethodPut, objectBucket, nil)
	w.swept = newSwept(t, func(c *config.Config) {
		c.Accounts[0].Stores[2] = config.Store{ID: objectStore, Driver: "s3", Endpoint: w.s3.URL(), Bucket: objectBucket,
			PathStyle: true}
		c.Reconcile.Settle = 1
		c.Fixity.AfterCopy = false
		never := schedule.Schedule{}
		c.Sweep.Fixity, c.Sweep.Duplication, c.Sweep.Reconcile = never, never, never
		c.Sweep.Stats, c.Sweep.Groups = never, never
	})
	w.backup = filepath.Join(filepath.Dir(w.file), "backup")
	w.must(os.Mkdir(w.backup, 0o755))
	w.app, w.client = w.openClient(t)
	var err error
	w.hits, err = planDamage(w.random, items, each)
	w.must(err)
	for _, h := range w.hits {
		w.by[w.at(h.store, h.item)] = h
	}
	return w
}

func (w *damagedWorld) must(err error) {
	w.t.Helper()
	must(w.t, err)
}

func (w *damagedWorld) store(id string) storage.Store {
	s, ok := w.app.Stores().Store("acme", id)
	if !ok {
		w.t.Fatalf("no store %s", id)
	}
	return s
}

func (w *damagedWorld) at(store, item string) schemas.Copy {
	return schemas.Copy{Account: "acme", Store: store, Space: damagedSpace, Item: item}
}

// path is that of an item's file.
func (w *damagedWorld) path(store, item string) string {
	for _, s := range w.cfg.Accounts[0].Stores {
		if s.ID == store {
			return filepath.Join(s.Root, damagedSpace, item)
		}
	}
	return ""
}

// key is that of an item's object, after the bucket.
func (w *damagedWorld) key(item string) string { return objectBucket + "/" + damagedSpace + "/" + item }

// damagedContent is a version of an item.
func damagedContent(item string, version int) []byte {
	line := fmt.Sprintf("version %d of item %s\n", version, item)
	return []byte(strings.Repeat(line, 20+len(item)*version))
}

// A copyState is what a store has of an item.
type copyState struct {
	present    bool
	sum        [sha256.Size]byte
	properties string
	identity   string // other for each write
}

// states returns the state of each copy.
func (w *damagedWorld) states() map[schemas.Copy]copyState {
	w.t.Helper()
	all := map[schemas.Copy]copyState{}
	for n := range w.items {
		item := fmt.Sprintf("%05d", n)
		for _, id := range []string{"1", "2", objectStore} {
			s, err := w.state(id, item)
			w.must(err)
			all[w.at(id, item)] = s
		}
	}
	return all
}

func (w *damagedWorld) state(store, item string) (s copyState, err error) {
	ctx := w.t.Context()
	r, _, err := w.store(store).Open(ctx, damagedSpace, item, "")
	if errors.Is(err, storage.ErrNotFound) {
		return s, nil
	}
	if err != nil {
		return s, err
	}
	defer r.Close() // only read from
	b, err := io.ReadAll(r)
	if err != nil {
		return s, err
	}
	o, err := w.store(store).Stat(ctx, damagedSpace, item)
	return copyState{present: true, sum: sha256.Sum256(b),
		properties: fmt.Sprint(o.Properties.MediaType, o.Properties.User, o.PropertiesUnknown),
		identity:   fmt.Sprint(o.Version, o.ETag, o.Modified.UnixNano(), o.Digests),
	}, err
}

// fill makes the items with their histories, waits until they are copied, and checks each copy.
func (w *damagedWorld) fill() {
	w.t.Helper()
	ctx := w.t.Context()
	w.must(w.client.CreateSpace(ctx, storage.Space{Name: damagedSpace}))
	want := map[string]int{} // the version of each item; 0: it is deleted
	for n := range w.items {
		want[fmt.Sprintf("%05d", n)] = 1
	}
	w.put(slices.Collect(maps.Keys(want)), 1)
	w.awaitCopies(want)
	var again []string
	for _, h := range w.hits {
		if h.of != put && h.store != objectStore {
			w.keepFile(h)
		}
		switch h.of {
		case rewritten:
			again = append(again, h.item)
			want[h.item] = 2
		case deleted:
			_, err := w.client.Delete(ctx, damagedSpace, h.item, storage.DeleteOptions{})
			w.must(err)
			want[h.item] = 0
		}
	}
	w.put(again, 2)
	w.awaitCopies(want)
	w.want(w.t, 0, "pass", "sweep", "start", "fixity", "--all", "--wait")
}

// put stores a version of items as a client.
func (w *damagedWorld) put(items []string, version int) {
	w.t.Helper()
	var g errgroup.Group
	g.SetLimit(16)
	for _, item := range items {
		g.Go(func() error {
			b := damagedContent(item, version)
			_, err := w.client.Put(w.t.Context(), damagedSpace, item, bytes.NewReader(b), storage.PutOptions{
				Size:       int64(len(b)),
				Properties: storage.Properties{MediaType: "text/plain", User: map[string]string{"by": "a client"}}})
			return err
		})
	}
	w.must(g.Wait())
}

// awaitCopies waits until the records of all stores have the wanted versions, each of which has a size of its own.
func (w *damagedWorld) awaitCopies(want map[string]int) {
	w.t.Helper()
	var all read.CopyCount
	for item, version := range want {
		if version == 0 {
			all.Tombstones++
			continue
		}
		all.Live++
		all.Bytes += int64(len(damagedContent(item, version)))
	}
	harness.Eventually(w.t, 3*time.Minute, "copy the items", func(ctx context.Context) error {
		w.engine.revive(w.t)
		counts, err := read.CopyCounts(ctx, w.app.DB(), "acme")
		if err == nil && len(counts) != 3 {
			err = errNotYet
		}
		for _, c := range counts {
			if c.Live != all.Live || c.Tombstones != all.Tombstones || c.Bytes != all.Bytes {
				err = fmt.Errorf("%w: %+v, want %+v", errNotYet, c, all)
			}
		}
		return err
	})
}

// TestDamage damages copies in all ways of wears, and makes one round of fixity checks and one of reconcile. Each
// damage is named by the row and the incident that wears has for it, and nothing else is named. What can be repaired is
// repaired if the store is to be repaired without approval, and every other copy is left as it is. The process of the
// checker and the steward is killed twice meanwhile. Then all that waits is approved, and is as it was before the
// damage. In the soak it runs with several seeds.
func TestDamage(t *testing.T) {
	need.Full(t)
	for n := range need.Amount(1, 1, 3) {
		t.Run(fmt.Sprint(n+1), testDamage)
	}
}

func testDamage(t *testing.T) {
	w := newDamagedWorld(t, need.Amount(100, 1667, 5000), need.Amount(1, 20, 60))
	w.serve(t, "planner,delayer")
	for _, roles := range killedRoles() {
		w.processes[roles] = w.start(t, roles)
	}
	start := time.Now()
	w.fill()
	t.Logf("filled %v", time.Since(start))
	if _, err := unix.Getxattr(w.path("2", w.hits[0].item), fileAttribute, nil); err != nil {
		need.Missing(t, need.Kernel("attributes of files"), err)
	}
	before := w.states()
	begun := time.Now()
	for _, h := range w.hits {
		w.damage(h)
	}
	damaged := w.states()
	w.rounds(need.Amount(0, 2, 4))
	t.Logf("rounds %v", time.Since(start))
	w.awaitIncidents()
	t.Logf("incidents %v", time.Since(start))
	w.compareChecks(begun, before)
	w.compareStates(before, damaged)
	w.approve(before, damaged, need.Amount(0, 2, 4))
	t.Logf("approved %v", time.Since(start))
}

// rounds makes the rounds, and kills the checker meanwhile.
func (w *damagedWorld) rounds(kills int) {
	w.t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.round(3, "fixity", "--all")
		w.round(0, "reconcile")
	}()
	from := w.published(w.t, schemas.FixityResults)
	for n := range kills {
		until := from + (n+1)*w.items/2 + w.random.IntN(w.items/2)
		for w.published(w.t, schemas.FixityResults) < until {
			select {
			case <-done:
				w.t.Fatalf("the rounds had ended before kill %d", n+1)
			case <-time.After(5 * time.Millisecond):
				w.engine.revive(w.t)
			}
		}
		w.joined(w.t, "checker", "checker.low", "checker.large", "steward")
		w.replace(rolesOfChecks)
	}
	w.engine.reviveUntil(w.t, done)
}

// rolesOfChecks are those of the process that is killed during the rounds.
const rolesOfChecks = "checker,steward"

// killedRoles are those of the processes that are killed.
func killedRoles() []string { return []string{"sink,copier,deleter", rolesOfChecks} }

// replace kills the process with these roles, and starts another one.
func (w *damagedWorld) replace(roles string) {
	w.t.Helper()
	w.processes[roles].kill()
	w.processes[roles] = w.start(w.t, roles)
}

// round makes a round of a sweep in each store. The command fails if libchdb aborts meanwhile, and is repeated.
func (w *damagedWorld) round(code int, args ...string) {
	w.t.Helper()
	args = append([]string{"sweep", "start", "--wait"}, args...)
	for begun := time.Now(); ; wait(w.t, time.Second) {
		got, out := w.millrace(w.t, args...)
		switch {
		case got == code:
			return
		case got != 1 || time.Since(begun) > 2*time.Minute:
			w.t.Errorf("millrace %s: exit code %d, want %d:\n%s", strings.Join(args, " "), got, code, out)
			return
		}
	}
}

// awaitIncidents waits until exactly the expected incidents were opened, each is in its state, and no check is due.
func (w *damagedWorld) awaitIncidents() {
	w.t.Helper()
	want := map[string]pb.IncidentState{}
	for _, h := range w.hits {
		want[w.at(h.store, h.item).String()+" "+h.kind] = h.state()
	}
	for begun := time.Now(); ; wait(w.t, 300*time.Millisecond) {
		all := queryRetry(w.t, w.engine, func() ([]*pb.Incident, error) {
			return read.SelectIncidents(w.t.Context(), w.app.DB(), read.IncidentSelection{Closed: true})
		})
		pending := queryRetry(w.t, w.engine, func() ([]read.PendingCopy, error) {
			return read.Pending(w.t.Context(), w.app.DB(), schemas.Copy{Account: "acme"}, time.Now().Add(-time.Hour))
		})
		differ := incidentsDiffer(want, all)
		if len(differ)+len(pending) == 0 {
			return
		}
		if time.Since(begun) > 90*time.Second {
			w.t.Errorf("%d copies are checked again; incidents:\n%s", len(pending), strings.Join(differ, "\n"))
			return
		}
	}
}

// incidentsDiffer compares all incidents with the wanted states by copy and kind.
func incidentsDiffer(want map[string]pb.IncidentState, all []*pb.Incident) (differ []string) {
	got := map[string]bool{}
	for _, i := range all {
		key := schemas.CopyOf(i).String() + " " + i.GetKind()
		if got[key] || i.GetState() != want[key] {
			differ = append(differ, fmt.Sprintf("%s is %v, want %v, again %t: %v", key, i.GetState(), want[key], got[key],
				i.GetSteps()))
		}
		got[key] = true
	}
	for key := range want {
		if !got[key] {
			differ = append(differ, key+" was not opened")
		}
	}
	return differ
}

// compareChecks compares the checks that were made since the damage with the plan. Each copy that was there before has
// one.
func (w *damagedWorld) compareChecks(since time.Time, before map[schemas.Copy]copyState) {
	w.t.Helper()
	type row struct {
		Store    string `ch:"store"`
		Item     string `ch:"item"`
		Row      uint8  `ch:"row"`
		Metadata string `ch:"metadata"`
		Final    bool   `ch:"final"`
	}
	checks := queryRetry(w.t, w.engine, func() ([]row, error) {
		return clickhouse.Query[row](w.t.Context(), w.app.DB(), "read the checks",
			"SELECT store, item, row, metadata::String AS metadata, final FROM {db}.bit_log_v"+
				" WHERE ts >= fromUnixTimestamp64Milli(?)", since.UnixMilli())
	})
	named := map[schemas.Copy]bool{}
	for _, c := range checks {
		at := w.at(c.Store, c.Item)
		h, hit := w.by[at]
		found := fixity.Row(c.Row)
		wears := c.Metadata == "damaged"
		switch {
		case hit && found == h.row && wears == (h.kind == "metadata-damaged"):
			named[at] = named[at] || c.Final
		case hit && found == fixity.RowUnknown && !c.Final: // while it is repaired
		case hit && found == fixity.RowPass && !wears && h.state() == isRepaired:
		case !hit && found == fixity.RowPass && !wears:
			named[at] = true
		default:
			w.t.Errorf("%v has row %v, metadata %q, final %t; damaged by %q", at, found, c.Metadata, c.Final, h.name)
		}
	}
	for at, was := range before {
		if h, hit := w.by[at]; (hit || was.present) && !named[at] {
			w.t.Errorf("no check of %v has come to a conclusion; damaged by %q", at, h.name)
		}
	}
}

// compareStates compares what the stores have with what they had before and after the damage.
func (w *damagedWorld) compareStates(before, damaged map[schemas.Copy]copyState) {
	w.t.Helper()
	for at, now := range w.states() {
		h, hit := w.by[at]
		switch {
		case hit && h.state() == isRepaired:
			if was := before[at]; !now.present || now.sum != was.sum || now.properties != was.properties {
				w.t.Errorf("%v, damaged by %q, is %+v after its repair, and was %+v", at, h.name, now, was)
			}
		case now != damaged[at]:
			w.t.Errorf("%v, damaged by %q, was touched: it is %+v, and was %+v", at, h.name, now, damaged[at])
		case !hit && now != before[at]:
			w.t.Errorf("%v was touched by another damage: it is %+v, and was %+v", at, now, before[at])
		}
	}
}
