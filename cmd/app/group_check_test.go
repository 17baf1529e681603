package app

import (
	"crypto/md5"
	"encoding/hex"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/incident"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/record"
	"github.com/millrace/millrace/streams/sweep/groups"
)

// putChunk puts an item into the store, and a record that is older than a day.
func (s *swept) putChunk(item, text string) {
	s.t.Helper()
	st, err := s.a.stores.configured(StoreName{"acme", "1"})
	must(s.t, err)
	o, err := st.Put(s.t.Context(), "photos", item, strings.NewReader(text), storage.PutOptions{Size: storage.UnknownSize})
	must(s.t, err)
	c := record.Content(schemas.Copy{Account: "acme", Store: "1", Space: "photos", Item: item}, o)
	c.Time = timestamppb.New(s.begun.Add(-48 * time.Hour))
	s.send(record.Seal(c))
}

// A group that lacks a chunk is reported, the chunk is checked, and an incident is open until the group is whole.
func TestSweepGroups(t *testing.T) {
	t.Parallel()
	s := newSwept(t, 1)
	must(t, InitStore(t.Context(), s.a.cfg, s.a.log, StoreName{"acme", "1"}))
	st, err := s.a.stores.configured(StoreName{"acme", "1"})
	if err == nil {
		err = st.CreateSpace(t.Context(), storage.Space{Name: "photos"})
	}
	must(t, err)
	sum := md5.Sum([]byte("text"))
	list := ""
	for i := range 2 {
		list += fmt.Sprintf(`<chunk chunkId="film.dura-chunk-%04d" index="%d"><byteSize>4</byteSize><md5>%s</md5></chunk>`,
			i, i, hex.EncodeToString(sum[:]))
	}
	s.putChunk("film.dura-manifest", `<d:chunksManifest xmlns:d="duracloud.org"><header schemaVersion="0.2">`+
		`<sourceContent contentId="film"><byteSize>8</byteSize></sourceContent></header><chunks>`+list+
		`</chunks></d:chunksManifest>`)
	s.putChunk("film.dura-chunk-0000", "text")
	s.putChunk("other.dura-chunk-0000", "text")
	s.sink(schemas.RoleSink, schemas.RoleState)
	run := func(after time.Duration, dry bool) string {
		t.Helper()
		all, err := s.a.SweepGroups(t.Context(), SpacesRequest{Begun: s.begun.Add(after), DryRun: dry})
		if err != nil || len(all) != 1 || all[0].Space != "photos" {
			t.Fatal(all, err)
		}
		return fmt.Sprint(all[0].Counts)
	}
	states := func() (all []string) {
		for _, b := range s.b.Bodies(schemas.Incidents) {
			if i := b.(*pb.Incident); i.GetKind() == incident.GroupIncomplete && i.GetSpace() == "photos" {
				all = append(all, i.GetState().String())
			}
		}
		return all
	}
	if got := run(0, true); got != "map[incomplete:1 orphans:1]" || len(s.b.Bodies(schemas.FixityLow)) != 0 ||
		len(s.b.Bodies(schemas.Reports)) != 0 || len(states()) != 0 {
		t.Errorf("a dry run found %s, and published something", got)
	}
	if got := run(time.Minute, false); got != "map[incomplete:1 orphans:1]" {
		t.Errorf("found %s", got)
	}
	tasks := s.b.Bodies(schemas.FixityLow)
	if len(tasks) != 1 || tasks[0].(*pb.FixityTask).GetItem() != "film.dura-chunk-0001" {
		t.Errorf("requested %v", tasks)
	}
	report := s.b.Bodies(schemas.Reports)[0].(*pb.Report)
	if report.GetKind() != groups.Name || !report.GetComplete() || report.GetCounts()["incomplete"] != 1 ||
		!strings.Contains(report.GetDetail(), "film.dura-chunk-0001") {
		t.Errorf("reported %v", report)
	}

	set := func(read string) {
		state := s.a.stores.accounts["acme"]
		state.Stores = slices.Clone(state.Stores)
		state.Stores[0].Read = read
		s.a.stores.set("acme", state, true)
	}
	set("never")
	if got := run(2*time.Minute, false); got != "map[orphans:1 unknown:1]" {
		t.Errorf("of a store that is not read: found %s", got)
	}
	set("always")
	if got := states(); !slices.Equal(got, []string{"INCIDENT_STATE_OPEN"}) {
		t.Errorf("incidents %v", got)
	}
	s.putChunk("film.dura-chunk-0001", "text")
	s.sink(schemas.RoleSink, schemas.RoleState)
	if got := run(3*time.Minute, false); got != "map[orphans:1 unproven:1]" {
		t.Errorf("with all chunks: found %s", got)
	}
	if got := states(); !slices.Equal(got, []string{"INCIDENT_STATE_OPEN", "INCIDENT_STATE_CLOSED"}) {
		t.Errorf("incidents %v", got)
	}
	s.exec("TRUNCATE TABLE {db}.copy_state")
	_, err = s.a.SweepGroups(t.Context(), SpacesRequest{Begun: s.begun.Add(time.Hour)})
	if retry.ClassOf(err) != retry.ClassUnavailable {
		t.Errorf("of emptied tables: got %v", err)
	}
}

// Spaces that sweep.spaces leaves out have no scheduled rounds.
func TestGroupSplits(t *testing.T) {
	a, w, lists := splitsApp(t)
	w.board = incident.NewBoard(nil, slog.New(slog.DiscardHandler))
	splits := func() (names []string) {
		t.Helper()
		all, err := a.spaceSplits(w, a.groupSweep(w, lists))(t.Context())
		must(t, err)
		for _, m := range all {
			names = append(names, m.Sweep+" "+m.Name)
		}
		return names
	}
	if got := splits(); !slices.Equal(got, []string{"groups acme/1/photos"}) {
		t.Errorf("got %q", got)
	}
	a.cfg.Sweep.Spaces.Groups.Exclude = []string{"acme"}
	if got := splits(); len(got) != 0 {
		t.Errorf("of an excluded account: got %q", got)
	}
}
