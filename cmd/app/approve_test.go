package app

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/cmd/precondition"
	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/steward"
)

// Approvals that the steward would not act on are refused and not published: this App has no
// producer.
func TestApproveRepairRefuses(t *testing.T) {
	cfg := config.Default()
	cfg.Accounts = []config.Account{{ID: "acme", Stores: []config.Store{
		{ID: "1", Driver: "file", Root: t.TempDir(), Primary: true}, {ID: "2", Driver: "file", Root: t.TempDir(),
			Repair: "off"},
	}}}
	stores, err := newStores(&cfg, slog.New(slog.DiscardHandler))
	must(t, err)
	defer stores.close()
	a := &App{stores: stores}
	for name, i := range map[string]*pb.Incident{
		"a kind without a repair": {Account: "acme", Store: "1", Kind: "no-quorum"},
		"no check has found it":   {Account: "acme", Store: "1", Kind: "resurrected"},
		"repair is off":           {Account: "acme", Store: "2", Kind: "content-corrupt"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := a.ApproveRepair(t.Context(), i, Actor{Who: "ann"}); !errors.Is(err, precondition.Err) {
				t.Errorf("got %v, want a precondition", err)
			}
		})
	}
}

// Acceptances that the steward would not act on are refused and not published.
func TestAcceptRefuses(t *testing.T) {
	seen, found := &pb.Identity{Version: "v"}, map[string]string{"md5": oneMD5}
	for name, i := range map[string]*pb.Incident{
		"a kind that is repaired": {Kind: "content-corrupt", Object: seen, Found: found},
		"found by a copier":       {Kind: "resurrected"},
		"not read":                {Kind: "replaced", Object: seen},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := new(App).Accept(t.Context(), i, Actor{Who: "ann"}, true); !errors.Is(err, precondition.Err) {
				t.Errorf("got %v, want a precondition", err)
			}
		})
	}
	for _, kind := range []string{"replaced", "no-quorum", "not-captured-update", "resurrected"} {
		if err := CheckAccept(&pb.Incident{Kind: kind, Object: seen, Found: found}); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
	}
}

// An incident that is about no copy, or about one in an unknown store, cannot be checked: nothing is published.
func TestCheckIncidentRefuses(t *testing.T) {
	cfg := config.Default()
	stores, err := newStores(&cfg, slog.New(slog.DiscardHandler))
	must(t, err)
	defer stores.close()
	a := &App{stores: stores}
	err = a.CheckIncident(t.Context(), &pb.Incident{Account: "acme", Store: "1", Space: "s", Kind: "space-missing"}, "c")
	if !errors.Is(err, precondition.Err) {
		t.Errorf("without an item: %v, want a precondition", err)
	}
	i := &pb.Incident{Account: "acme", Store: "9", Space: "s", Item: "a", Kind: "replaced"}
	if err := a.CheckIncident(t.Context(), i, "c"); err == nil || !strings.Contains(err.Error(), "acme/9/s/a/replaced") {
		t.Errorf("of an unknown store: %v", err)
	}
}

// The task of a requested check is a function of the request: repeating it is the same task.
func TestRequestedCheck(t *testing.T) {
	at := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	r := CheckRequest{Copy: schemas.Copy{Account: "acme", Store: "1", Space: "s", Item: "a"}, Size: 100,
		Reason: pb.FixityReason_FIXITY_REASON_DEMAND, Cause: "c", Time: at}
	want := &pb.FixityTask{Id: schemas.ID("requested", "c", "acme/1/s/a"), Account: "acme", Store: "1", Space: "s",
		Item: "a", Reason: r.Reason, Priority: pb.Priority_PRIORITY_HIGH, Cause: "c", Size: 100, Time: timestamppb.New(at)}
	for large, topic := range map[int64]schemas.Topic{0: schemas.FixityHigh, 101: schemas.FixityHigh,
		100: schemas.FixityLarge} {
		want.Priority = pb.Priority_PRIORITY_HIGH
		if topic == schemas.FixityLarge {
			want.Priority = pb.Priority_PRIORITY_LARGE
		}
		if got := r.task(large); got.Topic != topic || !proto.Equal(got.Body, want) {
			t.Errorf("large %d: got %s, %v, want %s, %v", large, got.Topic, got.Body, topic, want)
		}
	}
}

// The record in the topic, from which the steward decides, and the row in the table, which the
// operator has read, give the same Seen.
func TestSeenIsTheSameInTheTable(t *testing.T) {
	need.Integration(t)
	v := newVerified(t)
	modified := timestamppb.New(time.Date(2026, 3, 4, 5, 6, 7, 891234567, time.UTC))
	md5 := map[string]string{"md5": oneMD5}
	for item, i := range map[string]*pb.Incident{
		"file": {Row: 13, Found: md5, Object: &pb.Identity{Modified: modified, Size: 3}},
		"s3": {Row: 2, Found: md5, Expected: md5,
			Object: &pb.Identity{Version: "v", Etag: "e", Modified: modified, Size: 3}, LastEvent: modified},
		"missing": {Row: 8, Expected: map[string]string{"md5": oneMD5, "sha256": oneMD5 + oneMD5}},
		"size":    {Row: 2, Object: &pb.Identity{Size: 3}},
		"":        {Row: 9}, // of a space
	} {
		i.Id, i.Account, i.Store, i.Space, i.Item, i.Kind = schemas.ID(item), "acme", "2", "photos-"+item, item, "replaced"
		i.State, i.Opened, i.Updated, i.StepCount = pb.IncidentState_INCIDENT_STATE_OPEN, modified, modified, 1
		i.Steps = []*pb.IncidentStep{{Time: modified, Action: "opened", Ref: schemas.ID("check")}}
		must(t, clickhouse.NewSink(v.db).Store(t.Context(),
			[]*schemas.Delivery{{Topic: schemas.Incidents, From: schemas.Incidents,
				Incarnation: 1, Offset: int64(i.GetRow()) +
					i.GetObject().GetSize(), Timestamp: modified.AsTime(), Body: i}}))
		open, err := read.SelectIncidents(t.Context(), v.db, read.IncidentSelection{Of: schemas.CopyOf(i)})
		if err != nil || len(open) != 1 {
			t.Fatalf("%s: got %v, %v", item, open, err)
		}
		if steward.Seen(open[0]) != steward.Seen(i) {
			t.Errorf("%s: the table says %v, the topic %v", item, open[0], i)
		}
	}
}
