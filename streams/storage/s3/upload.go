package s3

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// partRetry is the retry policy for one part. Parts that were sent before are not sent again.
var partRetry = retry.Policy{
	Attempts: 5, Wait: 200 * time.Millisecond, MaxWait: 5 * time.Second, Elapsed: 2 * time.Minute,
}

// completeRetry is the retry policy for the request that completes an upload.
var completeRetry = retry.Policy{Attempts: 4, Wait: 500 * time.Millisecond, MaxWait: 5 * time.Second}

// An upload is a multipart upload. Its object is invisible until it is completed.
type upload struct {
	s *Store
	location
	id       string
	features *Features
	record   string                     // name of the record by which it can be resumed; empty: none
	existing map[int]minio.ObjectPart   // parts that an interrupted Put has sent
	copyFrom atomic.Pointer[copySource] // an object with the same bytes that the service can copy; nil: none

	mu       sync.Mutex
	recorded bool                       // guarded by mu
	parts    map[int]minio.CompletePart // guarded by mu
	resumed  int                        // number of parts that were not sent again; guarded by mu
}

// begin starts a multipart upload.
func (s *Store) begin(ctx context.Context, to location, h objectHeaders) (*upload, error) {
	return s.beginAs(ctx, s.features.Load(), to, h)
}

// beginAs is begin for a service with the features f.
func (s *Store) beginAs(ctx context.Context, f *Features, to location, h objectHeaders) (*upload, error) {
	o := s.putOptions(h)
	if f.CRC64NVME {
		o.UserMetadata["x-amz-checksum-algorithm"] = "CRC64NVME"
		o.UserMetadata["x-amz-checksum-type"] = "FULL_OBJECT"
	}
	id, err := s.core.NewMultipartUpload(ctx, to.bucket, to.key, o)
	if err == nil && id == "" {
		err = errNotS3
	}
	if err != nil {
		return nil, s.translate(ctx, anUpload, "begin an upload in parts", err)
	}
	s.setActive(id, true)
	return &upload{s: s, location: to, id: id, features: f, parts: map[int]minio.CompletePart{}}, nil
}

// sendPart stores part n, the bytes b at the offset at. It sends nothing if the service already has the part, or can
// copy it, and proves that by a checksum.
func (u *upload) sendPart(ctx context.Context, n int, at int64, b []byte) error {
	alg := u.features.checksum()
	h, err := digest.New(alg)
	if err != nil {
		return err
	}
	_, _ = h.Write(b)
	sum := h.Sum()[alg]
	if have, ok := u.existing[n]; ok && have.Size == int64(len(b)) && u.verifyPart(have, sum) == digest.Agree {
		u.addPart(n, have)
		return u.recordOnce(ctx, n)
	}
	if p, ok := u.tryCopyPart(ctx, n, at, b, sum); ok {
		u.addPart(n, p)
		return u.recordOnce(ctx, n)
	}
	_, err = partRetry.Do(ctx, func() error {
		p, err := u.putPart(ctx, n, b, sum)
		if err != nil {
			return u.s.translate(ctx, anUpload, fmt.Sprintf("put part %d", n), err)
		}
		if u.verifyPart(p, sum) == digest.Disagree {
			return fmt.Errorf("put part %d: the service stored other bytes than it was sent", n)
		}
		u.addPart(n, p)
		return nil
	}, func(int, time.Duration, error) { retry.Alive(ctx) })
	if err != nil {
		return err
	}
	return u.recordOnce(ctx, n)
}

func (u *upload) putPart(ctx context.Context, n int, b []byte, sum string) (minio.ObjectPart, error) {
	o := minio.PutObjectPartOptions{CustomHeader: http.Header{}}
	if u.features.CRC64NVME {
		o.CustomHeader.Set("X-Amz-Checksum-Crc64nvme", base64Of(sum))
		o.DisableContentSha256 = u.s.trustedLink // the SHA-256 for the signature costs time here and at the service
	} else {
		o.Md5Base64 = base64Of(sum)
	}
	if u.s.cfg.RequesterPays {
		o.CustomHeader.Set(payerHeader, "requester")
	}
	body := newSharedBody(b)
	defer body.detach()
	return u.s.core.PutObjectPart(ctx, u.bucket, u.key, u.id, n, body, int64(len(b)), o)
}

// verifyPart compares the checksum or MD5 that the service returned for a part with sum.
func (u *upload) verifyPart(p minio.ObjectPart, sum string) digest.Agreement {
	got := ""
	switch etag := strings.Trim(p.ETag, `"`); {
	case u.features.CRC64NVME:
		got, sum = p.ChecksumCRC64NVME, base64Of(sum)
	case u.features.ETagIsMD5 && isMD5(etag):
		got = etag
	}
	switch got {
	case "":
		return digest.Incomparable
	case sum:
		return digest.Agree
	}
	return digest.Disagree
}

func (u *upload) addPart(n int, p minio.ObjectPart) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.parts[n] = minio.CompletePart{PartNumber: n, ETag: p.ETag, ChecksumCRC64NVME: p.ChecksumCRC64NVME}
	if have, ok := u.existing[n]; ok && have.ETag == p.ETag {
		u.resumed++
	}
}

// complete makes the object visible. sum are its digests, pairs are headers. If a response is lost or ambiguous, it
// calls stored to find out whether the service has completed the upload.
func (u *upload) complete(
	ctx context.Context, sum digest.Set, stored func() (minio.UploadInfo, bool), pairs ...string,
) (minio.UploadInfo, *exchange, error) {
	ctx, response := withHeaders(ctx, pairs...)
	parts := make([]minio.CompletePart, len(u.parts))
	for n, p := range u.parts {
		parts[n-1] = p
	}
	o := minio.PutObjectOptions{UserMetadata: map[string]string{}}
	if u.features.CRC64NVME && sum[digest.CRC64NVME] != "" {
		o.UserMetadata["x-amz-checksum-crc64nvme"] = base64Of(sum[digest.CRC64NVME])
		o.UserMetadata["x-amz-checksum-type"] = "FULL_OBJECT"
	}
	var info minio.UploadInfo
	var gone, doubt bool
	err := retryWhile(ctx, completeRetry, func(err error) bool { return !gone && isAmbiguous(err) }, func() (err error) {
		info, err = u.s.core.CompleteMultipartUpload(ctx, u.bucket, u.key, u.id, parts, o)
		code, about := minio.ToErrorResponse(err).Code, anUpload
		if gone = code == "NoSuchUpload"; code == "NoSuchKey" && len(pairs) > 0 { // If-Match, and there is no object
			about = anItem
		}
		err = u.s.translate(ctx, about, "complete an upload in parts", err)
		// If the upload is gone, another process that resumed it may have completed it.
		if doubt = doubt || gone || err != nil && isAmbiguous(err); err == nil || !doubt || ctx.Err() != nil {
			return err
		}
		if object, ok := stored(); ok {
			info, err = object, nil
		}
		return err
	})
	switch unknown := "it is unknown whether it was stored"; {
	case err == nil, !doubt:
	case ctx.Err() != nil:
		err = fmt.Errorf("%s: %w", unknown, storage.ContextErr(ctx))
	default: // the last error may be caused by an earlier request that succeeded
		err = fmt.Errorf("%s: %v", unknown, err) //nolint:errorlint // callers must not branch on it
	}
	return info, response, err
}

// abortTimeout bounds the requests that abort an upload or remove its record.
const abortTimeout = 30 * time.Second

// abort aborts the upload, so that the service deletes its parts. If that fails, the upload is aborted by age later.
func (u *upload) abort(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortTimeout)
	defer cancel()
	u.s.setActive(u.id, false)
	if u.s.core.AbortMultipartUpload(ctx, u.bucket, u.key, u.id) == nil {
		u.unrecord(ctx)
	}
}

// finish removes the record of a completed upload.
func (u *upload) finish(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortTimeout)
	defer cancel()
	u.s.setActive(u.id, false)
	u.unrecord(ctx)
}

// putParts stores an object that is larger than one part: the bytes of p, which it releases, and the rest of r. It
// completes the upload if the digests of the whole object agree with the expected ones.
func (w *write) putParts(
	ctx context.Context, r io.Reader, p *buffer, size int64,
) (info minio.UploadInfo, sum digest.Set, err error) {
	meta, contentType, err := encode(w.o.Properties, w.o.Digests, w.o.Size, formatOriginal(w.space, w.item, w.o.Original))
	if err == nil && w.o.Size < 0 {
		delete(meta, digestsName) // digests are only stored with a size
	}
	if err != nil {
		return info, nil, fmt.Errorf("%s: %w", w.op(), err)
	}
	h := objectHeaders{meta: meta, contentType: contentType}
	u, err := w.s.resumeOrBegin(ctx, w.location, h, partPlan{size, w.o.Size})
	if err != nil {
		return info, nil, fmt.Errorf("%s: %w", w.op(), err)
	}
	u.copyFrom.Store(w.copyFrom)
	reusable := true // the parts sent so far may be those of the next Put of this item
	completed := false
	defer func() { // also after a panic of r or the transport
		switch {
		case completed:
			u.finish(ctx)
		case reusable && u.isRecorded() && isTransient(err):
			w.s.setActive(u.id, false) // another Put resumes it, or it is aborted by age
		default:
			u.abort(ctx)
		}
	}()
	if err := w.sendParts(ctx, u, r, p, size); err != nil {
		return info, nil, fmt.Errorf("%s: %w", w.op(), err)
	}
	reusable = false
	w.sum = w.h.Sum()
	if sum, err = w.o.Accept(w.sum, w.h.Size()); err != nil {
		return info, nil, fmt.Errorf("%s: %w", w.op(), err)
	}
	conditions := w.conditions
	if !u.features.Complete {
		conditions = nil
	}
	if len(conditions) == 0 && w.o.Condition != (storage.Condition{}) { // the last check was before the upload
		if _, err := w.s.checkCondition(ctx, w.space, w.item, w.o.Condition, false); err != nil {
			return info, nil, err
		}
	}
	reusable, w.sent = true, true
	stored := func() (minio.UploadInfo, bool) { return w.verifyStored(ctx) }
	info, w.response, err = u.complete(ctx, w.sum, stored, conditions...)
	completed = err == nil
	return info, sum, err
}

// sendParts sends p and the rest of r. It reads parts one after the other and sends them in parallel. p holds the part
// that is read and not sent yet.
func (w *write) sendParts(caller context.Context, u *upload, r io.Reader, p *buffer, size int64) error {
	ctx, cancel := context.WithCancelCause(caller)
	defer cancel(nil)
	var all sync.WaitGroup
	defer all.Wait()
	slots := make(chan struct{}, w.s.cfg.parallel)
	for n, end, sent := 1, false, int64(0); ; n++ {
		if sent += int64(len(p.bytes)); n > maxParts || sent > maxObject {
			cancel(retry.Permanent(fmt.Errorf("more than %d parts or %d bytes: %w",
				maxParts, int64(maxObject), storage.ErrTooLarge)))
			break
		}
		_, _ = w.h.Write(p.bytes)
		retry.Alive(ctx)
		slots <- struct{}{}
		at := sent - int64(len(p.bytes))
		part := p.detach()
		all.Go(func() {
			defer func() { part.free(); <-slots }()
			if err := u.sendPart(ctx, n, at, part.bytes); err != nil {
				cancel(err)
			}
		})
		if end || ctx.Err() != nil {
			break
		}
		next, err := w.s.writeBuffers.get(ctx, nthPartSize(n+1, size, w.o.Size))
		if err != nil {
			cancel(err)
			break
		}
		*p = next
		m, last, err := readFull(ctx, r, p.bytes)
		if err != nil {
			cancel(fmt.Errorf("read the source: %w", err))
			break
		}
		if end = last; end && m == 0 {
			p.release() // not needed while the sent parts are awaited
			break
		}
		p.bytes = p.bytes[:m]
	}
	all.Wait()
	if caller.Err() != nil {
		return storage.ContextErr(caller)
	}
	return context.Cause(ctx) // of this function's cancel
}
