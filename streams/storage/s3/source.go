package s3

import (
	"context"
	"fmt"
	"strings"

	"github.com/minio/minio-go/v7"

	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/storage"
)

// copySourceOf returns the object that the service can copy instead of an upload; nil if there is none.
func (s *Store) copySourceOf(o storage.PutOptions) *copySource {
	if o.Source == nil || !s.features.Load().CopiesParts {
		return nil
	}
	from, ok := o.Source.Handle.(locator)
	if !ok || from.endpoint != s.cfg.Endpoint || from.object.Size != o.Size {
		return nil
	}
	return &from.copySource
}

// tryCopyPart makes the service copy part n, the bytes b at the offset at. It returns true if the service proves that
// the part has these bytes. Otherwise the caller sends the part, and no further copies are tried.
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

// copyPart makes the service copy a part of an object, if the object still has the ETag of from.
func (u *upload) copyPart(ctx context.Context, from copySource, n int, at, size int64) (minio.CompletePart, error) {
	match := map[string]string{"x-amz-copy-source-if-match": `"` + from.object.ETag + `"`}
	p, err := u.s.core.CopyObjectPart(ctx, from.bucket, from.key, u.bucket, u.key, u.id, n, at, size, match)
	return p, u.s.translate(ctx, anUpload, fmt.Sprintf("copy part %d", n), err)
}

// verifyCopiedPart reports whether the service has proved that a copied part has the bytes b. Services that return no
// checksum of the part prove it by its ETag, if that is an MD5.
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
