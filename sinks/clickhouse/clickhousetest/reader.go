package clickhousetest

import (
	"context"
	"testing"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/read"
)

// A MarkFunc is a Watermark that reports no committed offsets.
type MarkFunc func(context.Context) error

// Wait calls the function.
func (f MarkFunc) Wait(ctx context.Context) (map[schemas.Role][]schemas.Progress, error) {
	return nil, f(ctx)
}

// Reached is a MarkFunc that does not wait.
func Reached(context.Context) error { return nil }

// Reader returns a running Reader with a watermark that reports no committed offsets. It ends with the test.
func Reader(t testing.TB, db *clickhouse.DB, mark MarkFunc, cfg read.ReaderConfig) *read.Reader {
	t.Helper()
	return ReaderOf(t, db, mark, cfg)
}

// ReaderOf returns a running Reader. It ends with the test.
func ReaderOf(
	t testing.TB, db *clickhouse.DB, mark read.Watermark, cfg read.ReaderConfig,
) *read.Reader {
	t.Helper()
	r := read.NewReader(db, mark, cfg)
	ctx, stop := context.WithCancel(context.Background())
	var g errgroup.Group
	g.Go(func() error { return r.Run(ctx) })
	t.Cleanup(func() {
		stop()
		if err := g.Wait(); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return r
}

// Fresh returns the record of one copy.
func Fresh(t testing.TB, db *clickhouse.DB, c schemas.Copy) *pb.CopyRecord {
	t.Helper()
	got, err := Reader(t, db, Reached, read.ReaderConfig{}).Fresh(t.Context(), []schemas.Copy{c})
	if err != nil {
		t.Fatal(err)
	}
	return got[0]
}

// Reported returns three reports of one change: that of the client, with the user; that of a storage notification;
// and that of a check, which has read the bytes.
func Reported(item string) (client, notified, checked *pb.Change) {
	client = Change(item, 0)
	client.Digests, client.Provenance, client.Cause, client.Sequence = nil, pb.Provenance_PROVENANCE_UNSPECIFIED,
		"request-1", "17"
	client.Properties = map[string]string{"colour": "blue"}
	notified = proto.CloneOf(client)
	notified.Op, notified.Origin = pb.Op_OP_UPDATE, pb.Origin_ORIGIN_NOTIFICATION
	notified.User, notified.Agent, notified.Cause, notified.Sequence = "", "notification/s3", "", "A1"
	notified.Properties, notified.Etag = nil, "e"
	notified.Digests, notified.Provenance = map[string]string{"md5": schemas.ID(item)}, pb.Provenance_PROVENANCE_CLAIMED
	checked = proto.CloneOf(client)
	checked.Origin = pb.Origin_ORIGIN_FIXITY
	checked.User, checked.Agent, checked.Cause, checked.Sequence = "", "checker", "task-1", ""
	checked.Properties, checked.Approved = nil, "checker"
	checked.Digests = map[string]string{"md5": schemas.ID(item), "sha256": schemas.ID(item) + schemas.ID(item)}
	checked.Provenance = pb.Provenance_PROVENANCE_VERIFIED
	checked.Evidence = map[string]string{"row": "9"}
	return client, notified, checked
}
