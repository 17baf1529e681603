package export

import (
	"fmt"
	"io"
	"time"

	"github.com/parquet-go/parquet-go"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// A parquetRow is a change in a Parquet file. Columns have the names of those of a CSV file.
type parquetRow struct {
	ID          string            `parquet:"id"`
	Time        time.Time         `parquet:"time,timestamp(millisecond)"`
	Op          string            `parquet:"op,dict"`
	Account     string            `parquet:"account,dict"`
	Store       string            `parquet:"store,dict"`
	Space       string            `parquet:"space,dict"`
	Item        string            `parquet:"item"`
	SourceSpace string            `parquet:"source_space,dict"`
	SourceItem  string            `parquet:"source_item"`
	Version     string            `parquet:"version"`
	ETag        string            `parquet:"etag"`
	Size        *int64            `parquet:"size,optional"`
	Digests     map[string]string `parquet:"digests"`
	Provenance  string            `parquet:"provenance,dict"`
	MediaType   string            `parquet:"media_type,dict"`
	Properties  map[string]string `parquet:"properties"`
	ACL         map[string]string `parquet:"acl"`
	User        string            `parquet:"user,dict"`
	Agent       string            `parquet:"agent,dict"`
	Origin      string            `parquet:"origin,dict"`
	Cause       string            `parquet:"cause"`
	Approved    string            `parquet:"approved"`
	Evidence    map[string]string `parquet:"evidence"`
}

func writeParquet(w io.Writer, changes []*pb.Change) error {
	rows := make([]parquetRow, len(changes))
	for i, c := range changes {
		rows[i] = parquetRow{ID: c.GetId(), Op: name(c.GetOp().String(), "OP_"), Account: c.GetAccount(),
			Store: c.GetStore(), Space: c.GetSpace(), Item: c.GetItem(), SourceSpace: c.GetSourceSpace(),
			SourceItem: c.GetSourceItem(), Version: c.GetVersion(), ETag: c.GetEtag(), Digests: c.GetDigests(),
			Provenance: name(c.GetProvenance().String(), "PROVENANCE_"), MediaType: c.GetMediaType(),
			Properties: c.GetProperties(), ACL: c.GetAcl(), User: c.GetUser(), Agent: c.GetAgent(),
			Origin: name(c.GetOrigin().String(), "ORIGIN_"), Cause: c.GetCause(), Approved: c.GetApproved(),
			Evidence: c.GetEvidence()}
		if c.GetTime() != nil {
			rows[i].Time = c.GetTime().AsTime()
		}
		if hasSize(c) {
			size := c.GetSize()
			rows[i].Size = &size
		}
	}
	p := parquet.NewGenericWriter[parquetRow](w, parquet.Compression(&parquet.Zstd))
	if _, err := p.Write(rows); err != nil {
		return fmt.Errorf("write changes as Parquet: %w", err)
	}
	if err := p.Close(); err != nil {
		return fmt.Errorf("write changes as Parquet: %w", err)
	}
	return nil
}
