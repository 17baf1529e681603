package app

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/cmd/precondition"
	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/restore"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/record"
)

// An archive is a site with the stores 1 and 2, of which 2 has copies of 1, and a store 3 that is away.
type archive struct {
	*site
	app   *App
	later time.Duration // rounds of reconcile begin so much later, by their clock
}

func newArchive(t *testing.T, roles ...schemas.Role) *archive {
	t.Helper()
	return newSite(t).archive(roles...)
}

// archive makes an archive of the site, and runs roles until the end of the test.
func (s *site) archive(roles ...schemas.Role) *archive {
	s.t.Helper()
	s.hasClickHouse()
	for i := range 2 {
		if _, err := os.Stat(filepath.Join(s.cfg.Accounts[0].Stores[i].Root, "photos")); err != nil {
			s.hasSpace(i)
		}
	}
	x := &archive{site: s, app: s.run(roles...)}
	s.await("/startupz", 200) // the topics exist
	x.publish(schemas.Message{Topic: schemas.Policies, Body: &pb.Policy{
		Id: schemas.NewID(), Account: "acme",
		Document: `{"defaultPolicies":[{"srcStoreId":"1","destStoreId":"2"}]}`, By: "ann",
		Time: timestamppb.Now()}})
	return x
}

func (x *archive) publish(messages ...schemas.Message) {
	x.t.Helper()
	x.must(x.app.producer.Publish(x.t.Context(), messages...))
}

// path returns the path of the file of an item in a store of driver file.
func (x *archive) path(store int, item string) string {
	return filepath.Join(x.cfg.Accounts[0].Stores[store].Root, "photos", item)
}

// open returns the open incidents of a kind.
func (x *archive) open(kind string) []*pb.Incident {
	x.t.Helper()
	all, err := read.OpenIncidents(x.t.Context(), x.app.DB(), "acme")
	x.must(err)
	return slices.DeleteFunc(all, func(i *pb.Incident) bool { return i.GetKind() != kind })
}

// waiting returns the number of items on the only open list of a kind of incident; 0 if not just one is open.
func (x *archive) waiting(kind string) uint64 {
	x.t.Helper()
	held := x.open(kind)
	if len(held) != 1 {
		return 0
	}
	return x.progress(held[0]).Items
}

func (x *archive) progress(held *pb.Incident) read.ListProgress {
	x.t.Helper()
	q, _, err := QueryOfList(x.t.Context(), x.app.DB(), held)
	x.must(err)
	p, err := read.ProgressOfList(x.t.Context(), x.app.DB(), q)
	x.must(err)
	return p
}

func (x *archive) store(id string) store { return x.app.stores.of(StoreName{"acme", id}) }

// put puts an item into stores, as a client and a copier do, and publishes the Changes.
func (x *archive) put(item, text string, edit func(*pb.Change), stores ...string) {
	x.t.Helper()
	for _, id := range stores {
		o, err := x.store(id).Put(x.t.Context(), "photos", item, strings.NewReader(text),
			storage.PutOptions{Size: int64(len(text)), KeepReplaced: true})
		x.must(err)
		c := record.Content(schemas.Copy{Account: "acme", Store: id, Space: "photos", Item: item}, o)
		if c.Origin = pb.Origin_ORIGIN_CLIENT; id != "1" {
			c.Origin = pb.Origin_ORIGIN_DUPLICATION
		}
		if edit != nil {
			edit(c)
		}
		x.publish(schemas.Message{Topic: schemas.Changes, Body: record.Seal(c)})
	}
}

// remove deletes an item from stores, and publishes the Changes. It returns the last one.
func (x *archive) remove(item string, stores ...string) (c *pb.Change) {
	x.t.Helper()
	for _, id := range stores {
		d, err := x.store(id).Delete(x.t.Context(), "photos", item, storage.DeleteOptions{KeepDeleted: true})
		x.must(err)
		c = record.Delete(schemas.Copy{Account: "acme", Store: id, Space: "photos", Item: item}, d)
		c.Origin = pb.Origin_ORIGIN_CLIENT
		x.publish(schemas.Message{Topic: schemas.Changes, Body: record.Seal(c)})
	}
	return c
}

// content returns the bytes of an item in a store; "absent" if it is.
func (x *archive) content(item, id string) string {
	x.t.Helper()
	r, _, err := x.store(id).Open(x.t.Context(), "photos", item, "")
	if errors.Is(err, storage.ErrNotFound) {
		return "absent"
	}
	x.must(err)
	b, err := io.ReadAll(r)
	x.must(errors.Join(err, r.Close()))
	return string(b)
}

func (x *archive) request(item string, edit ...func(*RestoreRequest)) RestoreRequest {
	r := RestoreRequest{Account: "acme", Space: "photos", Item: item, By: Actor{Who: "ann", Reason: "ransom", From: "cli"}}
	for _, e := range edit {
		e(&r)
	}
	return r
}

// restored restores and waits until every order has a result.
func (x *archive) restored(r RestoreRequest) (RestoreReport, RestoreOutcome) {
	x.t.Helper()
	report, err := x.app.Restore(x.t.Context(), r)
	x.must(err)
	ctx, cancel := context.WithTimeout(x.t.Context(), time.Minute)
	defer cancel()
	x.must(Wait{Progress: x.app.Restored(r, report), StallTimeout: 30 * time.Second,
		Stalled: func(_ context.Context, p Progress, err error) error {
			return fmt.Errorf("%d of %d orders have ended: %v", p.Done, p.Total, err)
		}}.Until(ctx))
	o, err := x.app.RestoreOutcome(ctx, r, report)
	x.must(err)
	return report, o
}

// A program encrypts a space, and the copies follow; another removes items. The space of the time before comes back
// byte for byte, in both stores, from what they have kept. The same command again orders nothing, also after a run that
// was cut off.
func TestRestoreEncryptedSpace(t *testing.T) {
	need.Integration(t)
	x := newArchive(t, schemas.RoleCopier, schemas.RoleSink, schemas.RoleDelayer)
	items := []string{"a", "empty", "dir/ b", "../up", "100%", "é/🎞️", "/slash", strings.Repeat("é", 512), "gone",
		"twice"}
	slices.Sort(items)
	text := func(item string) string {
		if item == "empty" {
			return ""
		}
		return "content of " + item
	}
	for _, item := range items {
		x.put(item, text(item), nil, "1", "2")
	}
	before := time.Now()
	time.Sleep(5 * time.Millisecond)
	for _, item := range items {
		switch item {
		case "gone":
			x.remove(item, "1", "2")
		case "twice":
			x.put(item, "encrypted", nil, "1", "2")
			x.remove(item, "1", "2")
			x.put(item, "encrypted again", nil, "1")
		default:
			x.put(item, "encrypted "+item, nil, "1", "2")
		}
	}
	x.put("later", "added later", nil, "1", "2")
	x.put("untouched", "same", func(c *pb.Change) { c.Time = timestamppb.New(before.Add(-time.Hour)) }, "1", "2")
	all := x.request("", func(r *RestoreRequest) { r.Prefix, r.At = true, before })

	dry := all
	dry.DryRun = true
	report, err := x.app.Restore(t.Context(), dry)
	x.must(err)
	want := map[restore.Verdict]int64{restore.Ordered: int64(2 * len(items)), restore.NotThen: 2, restore.Already: 2}
	if !reflect.DeepEqual(report.Copies, want) || len(report.Choices) != 2*len(items) ||
		report.Items != int64(len(items)+2) {
		t.Fatalf("dry run: got %+v, want %v", report, want)
	}
	if x.content("a", "1") != "encrypted a" {
		t.Fatal("a dry run restored an item")
	}

	ctx, cut := context.WithCancel(t.Context())
	cut()
	if _, err := x.app.Restore(ctx, all); err == nil {
		t.Error("a run that is cut off succeeded")
	}
	report, outcome := x.restored(all)
	if !reflect.DeepEqual(report.Copies, want) || outcome.Results["restored"] != int64(2*len(items)) ||
		len(outcome.Failed) > 0 || len(report.Choices) > 0 {
		t.Fatalf("got %+v, %+v, want %v\n%s", report, outcome, want, x.said.String())
	}
	for _, id := range []string{"1", "2"} {
		for _, item := range items {
			if got := x.content(item, id); got != text(item) {
				t.Errorf("store %s, %q: got %q", id, item, got)
			}
		}
		if got := x.content("later", id); got != "added later" {
			t.Errorf("store %s: the item that did not exist then is %q", id, got)
		}
	}
	again, outcome := x.restored(all)
	if again.Copies[restore.Ordered] != 0 || again.Copies[restore.Already] != int64(2*len(items)+2) ||
		again.Action != report.Action || len(outcome.Results) != 0 {
		t.Errorf("the same again: got %+v, %+v, want nothing to do", again, outcome)
	}
	x.put("a", "encrypted once more", nil, "1")
	again, outcome = x.restored(all)
	if again.Copies[restore.Ordered] != 1 || outcome.Results["restored"] != 1 || x.content("a", "1") != text("a") {
		t.Errorf("after one more item was encrypted: got %+v, %+v", again, outcome)
	}
}

// A command that is repeated waits for its own orders. Those of an earlier run, which have the same ids, may be
// executed while it runs.
func TestRestoreWaitsForItsOwnOrders(t *testing.T) {
	t.Parallel()
	x := newArchive(t, schemas.RoleSink)
	x.put("gone", "content", nil, "1", "2")
	x.remove("gone", "1")
	one := x.request("gone")
	var runs [2]RestoreReport
	for i := range runs {
		var err error
		runs[i], err = x.app.Restore(t.Context(), one)
		x.must(err)
	}
	x.must(x.app.producer.Publish(t.Context(), schemas.Message{Topic: schemas.DuplicationResults,
		Body: &pb.DuplicationResult{Id: schemas.NewID(), Command: schemas.NewID(), Cause: runs[0].Action, Account: "acme",
			Space: "photos", Item: "gone", Reason: pb.DuplicationReason_DUPLICATION_REASON_RESTORE, Decision: "C0r",
			Result: "restored", Outcome: pb.Outcome_OUTCOME_DONE, ChangeTime: timestamppb.New(runs[0].Time),
			Finished: timestamppb.Now()}}))
	done := func(i int) Progress {
		p, err := x.app.Restored(one, runs[i])(t.Context())
		x.must(err)
		return p
	}
	x.until(func() error {
		if p := done(0); p != (Progress{1, 1}) {
			return fmt.Errorf("of the first run: %+v", p)
		}
		return nil
	})
	if p := done(1); p != (Progress{0, 1}) {
		t.Errorf("of the second run: %+v, want an order that has not ended", p)
	}
}

// An item comes back by time, by version, or because it was deleted; in one store, or in all. What cannot be proven or
// read is not restored.
func TestRestoreItem(t *testing.T) {
	t.Parallel()
	x := newArchive(t, schemas.RoleCopier, schemas.RoleSink, schemas.RoleDelayer)
	x.put("v", "one", nil, "1", "2")
	x.put("v", "second", nil, "1", "2")
	x.put("v", "the third", nil, "1", "2")
	x.put("gone", "content", nil, "1", "2")
	x.remove("gone", "1")
	claim := func(c *pb.Change) { c.Provenance = pb.Provenance_PROVENANCE_CLAIMED }
	x.put("claimed", "never read", claim, "1")
	x.remove("claimed", "1")
	x.put("rotten", "good", nil, "1")
	x.remove("rotten", "1")
	x.put("expired", "good", nil, "1")
	x.remove("expired", "1")
	kept := func(item string, stores ...string) []storage.Kept {
		var all []storage.Kept
		at := x.store(append(stores, "1")[0])
		for k, err := range storage.ListKept(t.Context(), at, "photos", []string{item}) {
			x.must(err)
			all = append(all, k)
		}
		return all
	}
	path := func(k storage.Kept) string {
		day, name, _ := strings.Cut(k.ID, "T")
		return filepath.Join(x.cfg.Accounts[0].Stores[0].Root, ".millrace", "quarantine", day, name, "bytes")
	}
	rot := path(kept("rotten")[0])
	st, err := os.Stat(rot)
	x.must(err)
	x.must(errors.Join(os.WriteFile(rot, []byte("BAD!"), 0o600), os.Chtimes(rot, st.ModTime(), st.ModTime())))
	x.must(os.RemoveAll(filepath.Dir(path(kept("expired")[0]))))

	version := func(text string) func(*RestoreRequest) {
		return func(r *RestoreRequest) {
			r.Store = "2"
			for _, k := range kept("v", r.Store) {
				if k.Object.Size == int64(len(text)) {
					r.Version = k.Object.Version
				}
			}
		}
	}
	only := func(store string) func(*RestoreRequest) { return func(r *RestoreRequest) { r.Store = store } }
	for _, tt := range []struct {
		name     string
		request  RestoreRequest
		verdicts map[restore.Verdict]int64
		results  string
		item, id string
		content  string
	}{
		{"an older version in one store", x.request("v", version("one"), only("2")),
			map[restore.Verdict]int64{restore.Ordered: 1}, "restored", "v", "2", "one"},
		{"and not in the other", x.request("v", only("1"), func(r *RestoreRequest) { r.At = time.Now() }),
			map[restore.Verdict]int64{restore.Already: 1}, "", "v", "1", "the third"},
		{"deleted", x.request("gone"), map[restore.Verdict]int64{restore.Ordered: 1, restore.Already: 1}, "restored",
			"gone", "1", "content"},
		{"only claimed", x.request("claimed", only("1")), map[restore.Verdict]int64{restore.Unproven: 1}, "", "claimed", "1",
			"absent"},
		{"rotten", x.request("rotten", only("1")), map[restore.Verdict]int64{restore.Ordered: 1}, "restore-failed", "rotten",
			"1", "absent"},
		{"expired, while a store is away", x.request("expired", only("1")), map[restore.Verdict]int64{restore.Unknown: 1}, "",
			"expired", "1", "absent"},
		{"before it existed", x.request("v", func(r *RestoreRequest) { r.At = time.Now().Add(-24 * time.Hour) }),
			map[restore.Verdict]int64{restore.NotThen: 2}, "", "v", "2", "one"},
	} {
		report, outcome := x.restored(tt.request)
		var results []string
		for name := range outcome.Results {
			results = append(results, name)
		}
		if !reflect.DeepEqual(report.Copies, tt.verdicts) || strings.Join(results, " ") != tt.results {
			t.Errorf("%s: got %+v, %+v, want %v, %q\n%s", tt.name, report, outcome, tt.verdicts, tt.results, x.said.String())
		}
		if got := x.content(tt.item, tt.id); got != tt.content {
			t.Errorf("%s: the item is %q, want %q", tt.name, got, tt.content)
		}
	}
	for name, r := range map[string]RestoreRequest{
		"an item that is not deleted": x.request("v"),
		"an unknown item":             x.request("nothing"),
		"an unknown prefix": x.request("nothing/", func(r *RestoreRequest) {
			r.Prefix, r.At = true, time.Now()
		}),
		"an unknown version": x.request("v", func(r *RestoreRequest) { r.Version = "12345678" }),
		"an unknown store":   x.request("v", only("9")),
	} {
		if _, err := x.app.Restore(t.Context(), r); !errors.Is(err, precondition.Err) {
			t.Errorf("%s: got %v, want a failed precondition", name, err)
		}
	}
	x.listVersions(kept)
}

// listVersions lists the versions of the items of TestRestoreItem.
func (x *archive) listVersions(kept func(item string, stores ...string) []storage.Kept) {
	x.t.Helper()
	list := func(item string, read bool) (lines []string) {
		all, err := Versions(x.t.Context(), x.cfg, x.app.log, x.app.db,
			VersionsQuery{Account: "acme", Space: "photos", Item: item, Read: read})
		x.must(err)
		for _, v := range all {
			line := v.Store + " " + v.Op
			for _, b := range v.Bytes {
				if b.State == BytesUnknown && b.Store == "3" && b.Error != "" {
					continue
				}
				line += " " + b.Store + "-" + string(cmp.Or(b.Reason, "live")) + "-" + string(b.State)
			}
			lines = append(lines, line)
		}
		return lines
	}
	for item, want := range map[string][]string{
		"rotten":  {"1 add 1-deleted-damaged", "1 delete"},
		"expired": {"1 add", "1 delete"},
		"claimed": {"1 add 1-deleted-unproven", "1 delete"},
	} {
		if got := list(item, true); !slices.Equal(got, want) {
			x.t.Errorf("versions of %s: got %q, want %q", item, got, want)
		}
	}
	// Unless they are read, nothing shows that they are rotten.
	if got, want := list("rotten", false), []string{"1 add 1-deleted-proven", "1 delete"}; !slices.Equal(got, want) {
		x.t.Errorf("versions of rotten: got %q, want %q", got, want)
	}
	want := []string{"1 add 1-replaced-read 2-live-read 2-replaced-read",
		"2 add 1-replaced-read 2-live-read 2-replaced-read",
		"1 add 1-replaced-read 2-replaced-read", "2 add 1-replaced-read 2-replaced-read",
		"1 add 1-live-read 2-replaced-read", "2 add 1-live-read 2-replaced-read",
		"2 update 1-replaced-read 2-live-read 2-replaced-read"}
	if got := list("v", true); !slices.Equal(got, want) {
		x.t.Errorf("versions of v: got %q\nwant %q", got, want)
	}
	path := filepath.Join(x.cfg.Accounts[0].Stores[0].Root, ".millrace", "quarantine", "2026-01-01",
		"000000.000000000-abcdefgh")
	doc := `{"spaceDirectory":"photos","item":"stray","why":"replaced"}`
	x.must(errors.Join(os.MkdirAll(path, 0o755), os.WriteFile(filepath.Join(path, "about.json"), []byte(doc), 0o600),
		os.WriteFile(filepath.Join(path, "bytes"), bytes.Repeat([]byte("x"), 3), 0o600)))
	if got, want := list("stray", true), []string{"1  1-replaced-unproven"}; !slices.Equal(got, want) ||
		len(kept("stray")) != 1 {
		x.t.Errorf("versions of what is on no record: got %q, want %q", got, want)
	}
}

func TestStoresOf(t *testing.T) {
	pair := func(from, to string) policy.Pair { return policy.Pair{Source: from, Destination: to} }
	for name, tt := range map[string]struct {
		pairs  []policy.Pair
		source string
		stores []string
	}{
		"none":        {nil, "", []string{""}},
		"one":         {[]policy.Pair{pair("1", "2")}, "1", []string{"1", "2"}},
		"several":     {[]policy.Pair{pair("1", "2"), pair("1", "3")}, "1", []string{"1", "2", "3"}},
		"a chain":     {[]policy.Pair{pair("2", "3"), pair("1", "2")}, "1", []string{"1", "3", "2"}},
		"two sources": {[]policy.Pair{pair("1", "2"), pair("3", "4")}, "", nil},
	} {
		if source, stores := storesOf(tt.pairs); source != tt.source || !slices.Equal(stores, tt.stores) {
			t.Errorf("%s: got %q, %q", name, source, stores)
		}
	}
}
