package app

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/cmd/precondition"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/extract"
	"github.com/millrace/millrace/streams/storage"
)

// filesOf returns the files of a directory with their bytes.
func filesOf(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	must(t, fs.WalkDir(os.DirFS(dir), ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		b, err := os.ReadFile(filepath.Join(dir, name))
		files[name] = string(b)
		return err
	}))
	return files
}

// outcome describes what became of an item.
func outcome(o extract.Outcome) string {
	place := func(p extract.Place) string {
		if p.Kept != "" {
			return p.Store + "-kept"
		}
		return p.Store
	}
	text := string(o.Result)
	if o.From != nil {
		text += " from " + place(*o.From)
	}
	for _, f := range o.Faults {
		text += ", " + place(f.Place) + " " + string(f.State)
	}
	return text
}

// exportedArchive makes an archive with items that are fine, odd, damaged, lost and deleted. It returns the contents
// that are current, and those of a time before.
func exportedArchive(t *testing.T) (x *archive, now, then map[string]string, at time.Time) {
	t.Helper()
	x = newArchive(t, schemas.RoleSink)
	now, then = map[string]string{}, map[string]string{}
	for _, item := range []string{"a", "dir/b c", "dir/é🎞️", "empty", "rotten", "lost", "kept", "claimed"} {
		if now[item] = "content of " + item; item == "empty" {
			now[item] = ""
		}
		x.put(item, now[item], func(c *pb.Change) {
			if item == "claimed" {
				c.Provenance = pb.Provenance_PROVENANCE_CLAIMED
			}
		}, "1", "2")
		then[item] = now[item]
	}
	for _, item := range []string{"deleted", "replaced"} {
		then[item] = "content of " + item
		x.put(item, then[item], nil, "1", "2")
	}
	for _, item := range []string{"../up", "/slash", "a/below", "no digests", "nowhere"} {
		x.put(item, "x", func(c *pb.Change) {
			if item == "no digests" {
				c.Digests, c.Provenance = nil, 0
			}
		}, "1", "2")
	}
	at = time.Now()
	time.Sleep(5 * time.Millisecond)
	x.remove("deleted", "1", "2")
	now["replaced"], now["later"] = "other content", "later"
	x.put("replaced", now["replaced"], nil, "1", "2")
	x.put("later", "later", nil, "1", "2")

	rotten := x.path(0, "rotten")
	st, err := os.Stat(rotten)
	x.must(err)
	x.must(errors.Join(os.WriteFile(rotten, []byte("CONTENT of rotten"), 0o600), os.Chtimes(rotten, st.ModTime(),
		st.ModTime()), os.Remove(x.path(0, "lost")), os.Remove(x.path(0, "nowhere")), os.Remove(x.path(1, "nowhere"))))
	for _, id := range []string{"1", "2"} { // no record of it
		_, err := x.store(id).Delete(t.Context(), "photos", "kept", storage.DeleteOptions{KeepDeleted: true})
		x.must(err)
	}
	return x, now, then, at
}

// The items of a space become files, from whichever place has good bytes: current ones, or those of a time. What is
// wrong is reported item by item. The same export again writes what is missing only, and replaces nothing.
func TestExportItems(t *testing.T) {
	t.Parallel()
	x, now, then, at := exportedArchive(t)
	export := func(dir string, r ItemsRequest) (*ExportReport, map[string]string) {
		t.Helper()
		r.Account, r.Space = "acme", "photos"
		report, err := x.app.ExportItems(t.Context(), r, dir, nil)
		x.must(err)
		listed := map[string]string{}
		for _, i := range report.Items {
			listed[i.Item] = outcome(i.Outcome)
		}
		return report, listed
	}
	dir := filepath.Join(t.TempDir(), "new", "out")
	report, listed := export(dir, ItemsRequest{})
	bad := map[string]string{
		"rotten": "exported from 2, 1 mismatch", "lost": "exported from 2, 1 absent",
		"nowhere": "lacking, 1 absent, 2 absent, 3 unknown", "no digests": "lacking",
		"kept": "exported from 1-kept, 1 absent, 2 absent", "../up": "unnamed", "/slash": "unnamed", "a/below": "differs",
	}
	if listed["a/below"] == "" { // it came before a
		delete(bad, "a/below")
		bad["a"] = "differs"
		delete(now, "a")
		now["a/below"] = "x"
	}
	if !reflect.DeepEqual(listed, bad) {
		t.Errorf("listed: %q\nwant %q", listed, bad)
	}
	if got := filesOf(t, dir); !reflect.DeepEqual(got, now) {
		t.Errorf("got the files %q\nwant %q", got, now)
	}
	size := int64(0)
	for _, text := range now {
		size += int64(len(text))
	}
	if report.Source != "1" || report.Exported != int64(len(now)) || report.Lacking != 2 || report.Unnamed != 2 ||
		report.Differ != 1 || report.Bytes != size || report.BadCopies[extract.Mismatch] != 1 || report.Complete() {
		t.Errorf("got %+v", report)
	}
	info, err := os.Stat(filepath.Join(dir, "lost"))
	x.must(err)
	changes, _, err := contentsOf(x, "lost")
	x.must(err)
	if want := changes[0].GetTime().AsTime(); !info.ModTime().Equal(want) {
		t.Errorf("a file is dated %v, want %v", info.ModTime(), want)
	}

	x.must(errors.Join(os.Remove(filepath.Join(dir, "later")),
		os.WriteFile(filepath.Join(dir, "lost"), []byte("mine"), 0o600)))
	report, listed = export(dir, ItemsRequest{})
	if report.Exported != 1 || report.Present != int64(len(now)-2) || report.Differ != 2 || report.Bytes != 5 ||
		listed["lost"] != "differs" || filesOf(t, dir)["lost"] != "mine" {
		t.Errorf("again: got %+v", report)
	}
	dir = t.TempDir()
	if report, _ := export(dir, ItemsRequest{Item: "dir/"}); report.Exported != 2 || !report.Complete() {
		t.Errorf("below a prefix: got %+v", report)
	}
	dir = t.TempDir()
	report, listed = export(dir, ItemsRequest{At: at})
	got := filesOf(t, dir)
	delete(got, "a/below")
	if got["a"] = then["a"]; !reflect.DeepEqual(got, then) || listed["deleted"] == "" && report.Lacking != 2 {
		t.Errorf("of a time: got %q, %q, want %q", got, listed, then)
	}
	if _, err := x.app.ExportItems(t.Context(), ItemsRequest{Account: "acme", Space: "photo"}, dir, nil); !errors.Is(err,
		precondition.Err) {
		t.Errorf("a space that is on no record: got %v", err)
	}
	x.interruptedExport(now)
	x.gets(now, then, at)
}

func contentsOf(x *archive, item string) (changes []*pb.Change, ahead map[string]time.Time, err error) {
	items, err := holdings{x.app.stores, x.app.db, "acme", "photos"}.records(x.t.Context(), []string{item})
	if err != nil {
		return nil, nil, err
	}
	return items[0].Changes, items[0].Ahead, nil
}

// interruptedExport cuts an export off after each number of items. No file is incomplete, and the last run completes
// them.
func (x *archive) interruptedExport(want map[string]string) {
	x.t.Helper()
	dir, r := x.t.TempDir(), ItemsRequest{Account: "acme", Space: "photos"}
	for cutAt := int64(1); cutAt < 4; cutAt++ {
		ctx, stop := context.WithCancel(x.t.Context())
		_, err := x.app.ExportItems(ctx, r, dir, func(ended, items int64) {
			if ended == cutAt {
				stop()
			}
			if items < int64(len(want)) {
				x.t.Errorf("progress: of %d items", items)
			}
		})
		stop()
		files := filesOf(x.t, dir)
		for name, text := range files {
			if name != "a" && name != "a/below" && want[name] != text {
				x.t.Errorf("cut off after %d: the file %s has the bytes %q", cutAt, name, text)
			}
		}
		if !errors.Is(err, context.Canceled) && len(files) < len(want) {
			x.t.Errorf("cut off after %d: %v, with %d files", cutAt, err, len(files))
		}
	}
	report, err := x.app.ExportItems(x.t.Context(), r, dir, nil)
	if x.must(err); report.Exported+report.Present != int64(len(want)) || len(filesOf(x.t, dir)) != len(want) {
		x.t.Errorf("the last run: got %+v", report)
	}
}

// gets writes single items.
func (x *archive) gets(now, then map[string]string, at time.Time) {
	x.t.Helper()
	changes, _, err := contentsOf(x, "deleted")
	x.must(err)
	for name, tt := range map[string]struct {
		request ItemsRequest
		want    string
		text    string
	}{
		"a good one":        {ItemsRequest{Item: "dir/b c"}, "exported from 1", now["dir/b c"]},
		"a name of no file": {ItemsRequest{Item: "../up"}, "exported from 1", "x"},
		"of a store":        {ItemsRequest{Item: "empty", Store: "2"}, "exported from 2", ""},
		"a rotten one":      {ItemsRequest{Item: "rotten"}, "exported from 2, 1 mismatch", now["rotten"]},
		"a kept one":        {ItemsRequest{Item: "kept"}, "exported from 1-kept, 1 absent, 2 absent", now["kept"]},
		"of a time":         {ItemsRequest{Item: "replaced", At: at}, "exported from 1-kept", then["replaced"]},
		"of a version": {ItemsRequest{Item: "deleted", Version: changes[0].GetId()}, "exported from 1-kept",
			then["deleted"]},
		"a lost one":         {ItemsRequest{Item: "nowhere"}, "lacking, 1 absent, 2 absent, 3 unknown", ""},
		"a deleted one":      {ItemsRequest{Item: "deleted"}, "store 1 has no item", ""},
		"before it was":      {ItemsRequest{Item: "a", At: at.Add(-time.Hour)}, "store 1 has no item", ""},
		"an unknown one":     {ItemsRequest{Item: "nothing"}, "no records", ""},
		"an unknown version": {ItemsRequest{Item: "a", Version: "12345678"}, "no content", ""},
		"an unknown store":   {ItemsRequest{Item: "a", Store: "9"}, "no store", ""},
	} {
		var out bytes.Buffer
		r := tt.request
		r.Account, r.Space = "acme", "photos"
		o, err := x.app.GetItem(x.t.Context(), r, func(c extract.Content, p []extract.Place) (extract.Outcome, error) {
			return extract.Stream(x.t.Context(), &out, c, p)
		})
		fine := err == nil && outcome(o) == tt.want ||
			errors.Is(err, precondition.Err) && strings.Contains(err.Error(), tt.want)
		if !fine || out.String() != tt.text {
			x.t.Errorf("%s: got %+v, %v, %q, want %q, %q", name, o, err, out.String(), tt.want, tt.text)
		}
	}
}
