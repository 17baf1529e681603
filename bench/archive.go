package bench

import (
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// archiveChanges holds changes like those of a real archive: their ids and digests do not compress.
type archiveChanges struct {
	changes []*pb.Change
}

// archive returns n changes of n items, ordered by time, all in one month. The result is the same in each run.
func archive(n int) archiveChanges {
	rng := rand.New(rand.NewPCG(7, 8)) //nolint:gosec // the same in each run
	digest := func(bytes int) string {
		b := make([]byte, bytes)
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		return hex.EncodeToString(b)
	}
	all := archiveChanges{make([]*pb.Change, n)}
	for i := range all.changes {
		md5 := digest(16)
		c := &pb.Change{
			Op: pb.Op_OP_ADD, Account: mainAccount, Store: "1",
			Space: fmt.Sprintf("space-%02d", i*50/n), Item: fmt.Sprintf("img-%09d.tif", i), Version: md5[:16],
			Etag: md5, Size: rng.Int64N(1 << 30),
			Digests: map[string]string{"md5": md5, "sha256": digest(32)}, MediaType: "image/tiff",
			Properties: map[string]string{"creator": "ann", "batch": fmt.Sprint(i / 1000)},
			User:       fmt.Sprintf("user-%d", rng.IntN(20)),
			Agent:      "ingest/2.1", Origin: pb.Origin_ORIGIN_CLIENT, Provenance: pb.Provenance_PROVENANCE_VERIFIED,
			Time: timestamppb.New(epoch().AsTime().Add(time.Duration(i) * 2 * time.Millisecond)),
		}
		c.Id = schemas.ChangeID(c)
		all.changes[i] = c
	}
	return all
}

// record returns change i, encoded as the runtime's producer encodes it.
func (a archiveChanges) record(i int) schemas.Record {
	r, err := schemas.Encode(schemas.Message{Topic: schemas.Changes, Body: a.changes[i]})
	if err != nil {
		panic(fmt.Sprintf("encode a generated change: %v", err)) // archive generates only valid changes
	}
	return r
}

// passedCheck returns the result of a passed check of the item that c wrote.
func passedCheck(c *pb.Change) *pb.FixityResult {
	e := &pb.Evidence{
		State: pb.EvidenceState_EVIDENCE_STATE_DIGESTS, Digests: c.GetDigests(),
		Provenance: pb.Provenance_PROVENANCE_VERIFIED,
	}
	return &pb.FixityResult{
		Id: schemas.ID("check", c.GetId()), Task: schemas.ID("task", c.GetId()),
		Account: c.GetAccount(), Store: c.GetStore(), Space: c.GetSpace(), Item: c.GetItem(),
		StoreKind: "s3", Reason: pb.FixityReason_FIXITY_REASON_SWEEP,
		Verdict: pb.Verdict_VERDICT_PASS, Row: 1, Final: true, EvidenceLevel: 4,
		Content: e, Stored: e, Manifest: e, Audit: e, BytesRead: c.GetSize(), Worker: "checker-1", Host: "host-1",
		Software: "millrace/1",
		Round:    "round-1", Started: c.GetTime(), Finished: timestamppb.New(c.GetTime().AsTime().Add(time.Second)),
	}
}
