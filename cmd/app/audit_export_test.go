package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/cmd/precondition"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/export"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/record"
	"github.com/millrace/millrace/streams/sweep"
)

// An exported is a swept of which the audit log is exported.
type exported struct {
	*swept
	request ExportRequest
	dir     string
	files   []string
	number  int // of exports
}

func newExported(t *testing.T, changes int) *exported {
	x := &exported{swept: newSwept(t, changes), dir: t.TempDir()}
	x.request = ExportRequest{Name: "audit", Format: export.JSONLines, Write: x.write, records: 2}
	return x
}

func (x *exported) write(_ context.Context, name string, text []byte, _ int) error {
	x.files = append(x.files, name)
	return os.WriteFile(filepath.Join(x.dir, name), text, 0o644)
}

func (x *exported) export(edit ...func(*ExportRequest)) error {
	x.t.Helper()
	r := x.request
	x.number++
	r.Begun = x.begun.Add(time.Duration(x.number) * time.Minute)
	for _, e := range edit {
		e(&r)
	}
	return x.a.ExportAudit(x.t.Context(), r)
}

// want checks the items of the changes in all files, each once.
func (x *exported) want(when string, want ...string) {
	x.t.Helper()
	var got []string
	files, err := filepath.Glob(filepath.Join(x.dir, "*"))
	must(x.t, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		must(x.t, err)
		for line := range strings.Lines(string(text)) {
			var c struct{ Item, Op string }
			must(x.t, json.Unmarshal([]byte(line), &c))
			got = append(got, c.Item)
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		x.t.Errorf("%s: exported %q, want %q", when, got, want)
	}
}

// Each change is exported once, also if it is reported again later, and an interrupted export goes on.
func TestExportAudit(t *testing.T) {
	t.Parallel()
	x := newExported(t, 3)
	must(t, x.export())
	first := []string{"item-000", "item-001", "item-002"}
	x.want("at first", first...)
	if n := len(x.files); n < 2 {
		t.Errorf("wrote %q, want several files", x.files)
	}
	before := len(x.files)
	if err := x.export(); err != nil || len(x.files) != before {
		t.Errorf("with nothing new: %v, wrote %q", err, x.files[before:])
	}
	again := someChange(1) // by a notification
	again.Digests, again.Origin = map[string]string{"md5": oneMD5}, pb.Origin_ORIGIN_NOTIFICATION
	x.send(again, someChange(3), someChange(4), someChange(5))
	x.sink(schemas.RoleSink, schemas.RoleState)
	// The first file is written, and its checkpoint is lost.
	mend := func() { t.Error("no file was written") }
	x.request.Write = func(ctx context.Context, name string, text []byte, n int) error {
		err := x.write(ctx, name, text, n)
		if len(x.files) == before+1 {
			mend = x.b.FailProduce(schemas.Checkpoints, kafkatest.Refused, -1)
		}
		return err
	}
	if err := x.export(); err == nil {
		t.Error("nothing failed")
	}
	mend()
	x.request.Write = x.write
	must(t, x.export())
	x.want("after an interruption", append(first, "item-003", "item-004", "item-005")...)
	if again := x.files[before:]; len(again) < 2 || again[0] != again[1] {
		t.Errorf("wrote %q, want the first file twice", again)
	}
	if err := x.export(func(r *ExportRequest) { r.Account = "bell" }); !errors.Is(err, precondition.Err) {
		t.Errorf("of another account: %v", err)
	}
	// Another name begins with the first change, in larger files of another format.
	before = len(x.files)
	err := x.export(func(r *ExportRequest) { r.Name, r.Format, r.records = "tsv", export.TSV, 0 })
	if err != nil || len(x.files) == before || !strings.HasPrefix(x.files[before], "tsv-") ||
		!strings.HasSuffix(x.files[before], ".tsv") {
		t.Errorf("of another name: %v, wrote %q", err, x.files[before:])
	}
}

// An export of the settings writes its files as items of a space, and reports them as changes. A request is fulfilled
// by the next iteration.
func TestScheduledExport(t *testing.T) {
	t.Parallel()
	x := newExported(t, 3)
	st := x.a.stores.of(StoreName{"acme", "1"})
	err := errors.Join(st.WriteMarker(t.Context()), st.CreateSpace(t.Context(), storage.Space{Name: "exports"}))
	must(t, err)
	const job = "audit.export/daily"
	daily := config.AuditExport{Name: "daily", Format: "csv", Space: "acme/1/exports"}
	x.a.cfg.Audit.Exports = []config.AuditExport{daily}
	request := func(id string) {
		x.a.jobRequests.apply(&pb.AdminAction{Id: id, Action: actionStartJob, Target: job}, time.Now())
	}
	last := func() (last *pb.Checkpoint) {
		for _, body := range x.b.Bodies(schemas.Checkpoints) {
			if c := body.(*pb.Checkpoint); c.GetSweep() == auditExport {
				last = c
			}
		}
		return last
	}
	iterate := func(when string, files int) {
		t.Helper()
		before := len(x.b.Bodies(schemas.Changes))
		request(when)
		if !x.a.jobRequests.open(job, last(), time.Now()) {
			t.Errorf("%s: the request is not open before the iteration", when)
		}
		m := x.a.scheduledExport(daily)
		x.number++
		m.Start = x.begun.Add(time.Duration(x.number) * time.Minute)
		if err := x.a.inCommand(t.Context(), false, func(ctx context.Context, w sweeping) error {
			_, err := w.rounds(ctx, []sweep.Split{m})
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if c := last(); c.GetFinished() == nil || x.a.jobRequests.open(job, c, time.Now()) {
			t.Errorf("%s: the request is open after the iteration %v", when, c)
		}
		if got := len(x.b.Bodies(schemas.Changes)) - before; got < min(files, 1) || files == 0 && got > 0 {
			t.Errorf("%s: %d files", when, got)
		}
		x.sink(schemas.RoleSink, schemas.RoleState)
	}
	iterate("the first", 1)
	iterate("only its own files are new", 0)
	x.send(someChange(7))
	x.sink(schemas.RoleSink, schemas.RoleState)
	iterate("another change", 1)
	if err := x.export(func(r *ExportRequest) { r.Name = "daily" }); !errors.Is(err, precondition.Err) {
		t.Errorf("by hand, with the name of one of the settings: %v", err)
	}
	var items []string
	for o, err := range st.List(t.Context(), "exports", "") {
		must(t, err)
		items = append(items, o.Item)
	}
	var reported []string
	for _, body := range x.b.Bodies(schemas.Changes) {
		if c := body.(*pb.Change); c.GetSpace() == "exports" {
			reported = append(reported, c.GetItem())
		}
	}
	slices.Sort(reported)
	if len(items) == 0 || !strings.HasPrefix(items[0], "daily-") || !slices.Equal(items, reported) {
		t.Errorf("stored %q and reported %q", items, reported)
	}
}

// Changes of the same millisecond and item are different ones.
func TestExportOfOneMillisecond(t *testing.T) {
	t.Parallel()
	x := newExported(t, 1)
	properties := someChange(0)
	properties.Op, properties.Properties = pb.Op_OP_SET_PROPERTIES, map[string]string{"a": "b"}
	x.send(record.Seal(properties))
	x.sink(schemas.RoleSink, schemas.RoleState)
	must(t, x.export(func(r *ExportRequest) { r.records = 1 }))
	x.want("both", "item-000", "item-000")
}

// Tables that lack records are not exported.
func TestExportOfEmptiedTables(t *testing.T) {
	t.Parallel()
	x := newExported(t, 3)
	x.exec("TRUNCATE TABLE {db}.audit_log")
	if err := x.export(); retry.ClassOf(err) != retry.ClassUnavailable || len(x.files) != 0 {
		t.Errorf("got %v and files %q", err, x.files)
	}
	if _, err := x.a.Rebuild(t.Context(), Actor{Who: "ann", From: "cli"}, quiet); err != nil {
		t.Fatal(err)
	}
	must(t, x.export())
	x.want("after a rebuild", "item-000", "item-001", "item-002")
}

func TestExportOfBadRequests(t *testing.T) {
	x := newExported(t, 0)
	for name, edit := range map[string]func(*ExportRequest){
		"no name": func(r *ExportRequest) { r.Name = "" },
		"a path":  func(r *ExportRequest) { r.Name = "../audit" },
	} {
		if err := x.export(edit); !errors.Is(err, precondition.Err) {
			t.Errorf("%s: got %v, want a precondition", name, err)
		}
	}
	if err := x.export(); err != nil || len(x.files) != 0 {
		t.Errorf("of an empty log: %v, wrote %v", err, fmt.Sprint(x.files))
	}
}
