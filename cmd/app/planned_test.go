package app

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/duplicate"
	"github.com/millrace/millrace/streams/ingest/hint"
	"github.com/millrace/millrace/streams/plan"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/file"
)

// A threeStores is a watched plain tree and its two destinations, with a policy and the records of
// a new file.
type threeStores struct {
	stores map[string]storage.Store
	rules  policy.Rules
	row    *pb.Record
}

func (s threeStores) Store(_, id string) (storage.Store, bool) {
	st, ok := s.stores[id]
	return st, ok
}

func (s threeStores) Rules(string, string) (policy.Rules, bool) { return s.rules, true }

func (s threeStores) Fresh(_ context.Context, copies []schemas.Copy) ([]*pb.CopyRecord, error) {
	var records []*pb.CopyRecord
	for _, c := range copies {
		r := &pb.Record{State: pb.RecordState_RECORD_STATE_NONE}
		if c.Store == "1" && c.Item != "" {
			r = s.row
		}
		records = append(records, &pb.CopyRecord{Manifest: r, Audit: r})
	}
	return records, nil
}

// A new file in a watched tree makes one Change and one command per destination. The copiers find
// its digests and publish the Change again, which makes no further command.
func TestNewFileIsPlannedOnce(t *testing.T) {
	t.Parallel()
	ctx, dir := t.Context(), t.TempDir()
	s := threeStores{stores: map[string]storage.Store{}}
	s.rules.Pairs = []policy.Pair{{Source: "1", Destination: "2"}, {Source: "1", Destination: "3"}}
	path := filepath.Join(dir, "1", "photos", "a.jpg")
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	for name, text := range map[string]string{path: "the bytes", filepath.Join(dir, "1", "photos", "README"): "here"} {
		must(t, os.WriteFile(name, []byte(text), 0o644))
	}
	plain, err := file.OpenPlain(file.PlainConfig{ID: "acme/1", Root: filepath.Join(dir, "1"), Expect: "photos/README"})
	must(t, err)
	defer plain.Close()
	s.stores["1"] = plain
	for _, id := range []string{"2", "3"} {
		marked(t, schemas.Key("acme", id), filepath.Join(dir, id))
		st, err := file.Open(file.Config{ID: schemas.Key("acme", id), Root: filepath.Join(dir, id)})
		must(t, err)
		defer st.Close()
		s.stores[id] = st
	}

	c := schemas.Copy{Account: "acme", Store: "1", Space: "photos", Item: "a.jpg"}
	sight, err := hint.NewObserver(s, time.Minute).Observe(ctx, c)
	must(t, err)
	found := hint.Decide(c, hint.Hint{Kind: hint.Created, Vendor: "watch"}, sight)
	if len(found.Change.GetDigests()) > 0 {
		t.Fatalf("got %v, want a Change without digests", found.Change)
	}
	s.row = &pb.Record{State: pb.RecordState_RECORD_STATE_LIVE, Version: found.Change.GetVersion(),
		Size: found.Change.GetSize(), Time: found.Change.GetTime(), ChangeId: found.Change.GetId()}
	copier, err := duplicate.New(duplicate.Config{}, s, s, s)
	must(t, err)
	commands := plan.Plan(s.rules, found.Change)
	if len(commands) != 2 {
		t.Fatalf("got %d commands, want one for each destination", len(commands))
	}
	for _, command := range commands {
		out, err := copier.Handle(ctx,
			&schemas.Delivery{Topic: schemas.DuplicationHigh, Body: command, Attempt: 1, Timestamp: time.Now()})
		must(t, err)
		digests := false
		for _, m := range out {
			change, ok := m.Body.(*pb.Change)
			if !ok {
				continue
			}
			digests = digests || change.GetStore() == "1" && len(change.GetDigests()) > 0
			if more := plan.Plan(s.rules, change); len(more) > 0 {
				t.Errorf("%v leads to %d further commands", change, len(more))
			}
		}
		if !digests {
			t.Errorf("the digests of the source are not published: %v", out)
		}
	}
}
