package read_test

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/clickhousetest"
	"github.com/millrace/millrace/sinks/clickhouse/read"
)

func TestContentsOf(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	md5 := func(c string) map[string]string { return map[string]string{"md5": strings.Repeat(c, 32)} }
	change := func(store, item string, op pb.Op, c string, p pb.Provenance, seconds int64) *pb.Change {
		m := &pb.Change{Op: op, Account: "acme", Store: store, Space: "photos", Item: item, Version: "v", Provenance: p,
			Time: &timestamppb.Timestamp{Seconds: 1_700_000_000 + seconds}, Origin: pb.Origin_ORIGIN_CLIENT}
		if c != "" {
			m.Digests = md5(c)
		}
		m.Id = schemas.ChangeID(m)
		return m
	}
	check := func(store, item, content, manifest string, v pb.Verdict) *pb.FixityResult {
		at := timestamppb.New(clickhousetest.At(0).AsTime())
		evidence := func(c string) *pb.Evidence {
			return &pb.Evidence{State: pb.EvidenceState_EVIDENCE_STATE_DIGESTS, Digests: md5(c)}
		}
		return &pb.FixityResult{Id: schemas.NewID(), Account: "acme", Store: store, Space: "photos", Item: item,
			Verdict: v, Content: evidence(content), Manifest: evidence(manifest), Started: at, Finished: at,
			Reason: pb.FixityReason_FIXITY_REASON_SWEEP}
	}
	const verified, claimed = pb.Provenance_PROVENANCE_VERIFIED, pb.Provenance_PROVENANCE_CLAIMED
	sink := clickhouse.NewSink(db)
	for topic, all := range map[schemas.Topic][]schemas.Body{
		schemas.Changes: {
			change("1", "a", pb.Op_OP_ADD, "a", claimed, 1), change("2", "a", pb.Op_OP_ADD, "b", verified, 2),
			change("2", "a", pb.Op_OP_ADD, "b", verified, 3), change("1", "a", pb.Op_OP_UPDATE, "", verified, 4),
			change("1", "a", pb.Op_OP_DELETE, "c", verified, 5), change("1", "b", pb.Op_OP_ADD, "d", verified, 6),
		},
		schemas.FixityResults: {
			check("1", "a", "e", "f", pb.Verdict_VERDICT_PASS), check("1", "a", "0", "f", pb.Verdict_VERDICT_FAIL),
			check("1", "b", "1", "1", pb.Verdict_VERDICT_PASS),
		},
	} {
		if err := sink.Store(t.Context(), clickhousetest.Deliver(topic, 0, all...)); err != nil {
			t.Fatal(err)
		}
	}
	recorded, passed, err := read.ContentsOf(t.Context(), db,
		schemas.Copy{Account: "acme", Store: "3", Space: "photos", Item: "a"})
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(recorded, func(a, b read.Content) int { return strings.Compare(a.Store, b.Store) })
	want := []read.Content{{Store: "1", Digests: md5("a")}, {Store: "2", Digests: md5("b"), Verified: true}}
	if !reflect.DeepEqual(recorded, want) {
		t.Errorf("recorded: got %v, want %v", recorded, want)
	}
	if want := []read.Content{{Store: "1", Digests: md5("e"), Verified: true}}; !reflect.DeepEqual(passed, want) {
		t.Errorf("passed: got %v, want %v", passed, want)
	}
}
