package s3

import (
	"context"
	"fmt"
	"strings"

	"github.com/minio/minio-go/v7"

	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/storage"
)

// reach returns where the service may copy from what is put; nil where it cannot.
func (s *Store) copySourceOf(o storage.PutOptions) *copySource {
	if o.Source == nil || !s.features.Load().CopiesParts {
		return nil
	}
	from, ok := o.Source.At.(locator)
	if !ok || from.endpoint != s.cfg.Endpoint || from.object.Size != o.Size {
		return nil
	}
	return &from.copySource
}

// copied has the service copy a part instead of being sent it: the bytes b from at on. It is true where the service proves
// that it has these bytes now; elsewhere they are sent, and no other part is tried.
func (u *upload) tryCopyPart(ctx context.Context, n int, at int64, b []byte, sum string) (minio.ObjectPart, bool) {
	from := u.copyFrom.Load()
	if from == nil || len(b) == 0 {
		return minio.ObjectPart{}, false
	}
	part, err := u.copyPart(ctx, *from, n, at, int64(len(b)))
	p := minio.ObjectPart{PartNumber: n, ETag: part.ETag, Size: int64(len(b)), ChecksumCRC64NVME: part.ChecksumCRC64NVME}
	if err == nil && u.verifyCopiedPart(p, b, sum) {
		return p, true
	}
	u.copyFrom.Store(nil)
	return minio.ObjectPart{}, false
}

// copyPart has the service copy a part of an object that is the one that was seen.
func (u *upload) copyPart(ctx context.Context, from copySource, n int, at, size int64) (minio.CompletePart, error) {
	match := map[string]string{"x-amz-copy-source-if-match": `"` + from.object.ETag + `"`}
	p, err := u.s.core.CopyObjectPart(ctx, from.bucket, from.key, u.bucket, u.key, u.id, n, at, size, match)
	return p, u.s.translate(ctx, anUpload, fmt.Sprintf("copy part %d", n), err)
}

// copyProves compares what the service tells of a part that it copied with the bytes that it should have. Not all tell its checksum.
func (u *upload) verifyCopiedPart(p minio.ObjectPart, b []byte, sum string) bool {
	if got := u.verifyPart(p, sum); got != digest.Incomparable {
		return got == digest.Agree
	}
	etag := strings.Trim(p.ETag, `"`)
	if !u.features.ETagIsMD5 || !isMD5(etag) {
		return false
	}
	h, err := digest.New(digest.MD5)
	if err != nil {
		return false
	}
	_, _ = h.Write(b)
	return h.Sum()[digest.MD5] == etag
}
