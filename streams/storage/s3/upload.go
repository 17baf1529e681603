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

// partTries is how often a part is sent: what was sent before it need not be sent again.
var partRetry = retry.Policy{Attempts: 5, Wait: 200 * time.Millisecond, MaxWait: 5 * time.Second, Elapsed: 2 * time.Minute}

// completeTries is how often the end of an upload is asked for.
var completeRetry = retry.Policy{Attempts: 4, Wait: 500 * time.Millisecond, MaxWait: 5 * time.Second}

// An upload in parts is invisible until it is completed.
type upload struct {
	s *Store
	location
	id       string
	features *Facts
	record   string                     // name of the record by which it is found again; empty: it has none
	existing map[int]minio.ObjectPart   // parts that a Put has left which did not come to its end
	copyFrom atomic.Pointer[copySource] // where the service may copy parts from; nil: nowhere

	mu       sync.Mutex
	recorded bool                       // guarded by mu
	parts    map[int]minio.CompletePart // guarded by mu
	resumed  int                        // parts that were not sent again; guarded by mu
}

func (s *Store) begin(ctx context.Context, to location, with objectHeaders) (*upload, error) {
	return s.beginAs(ctx, s.features.Load(), to, with)
}

// beginAs begins an upload at a service that can do f.
func (s *Store) beginAs(ctx context.Context, f *Facts, to location, with objectHeaders) (*upload, error) {
	o := s.putOptions(with)
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

// send stores part n, the bytes b from at on, which may have been stored before, unless the service proves that it has it.
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
			return fmt.Errorf("put part %d: the service keeps other bytes than it was sent", n)
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
		o.DisableContentSha256 = u.s.trustedLink // else each chunk is hashed to be signed, here and by the service
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

// proves compares what the service tells of a part with what the part is.
func (u *upload) verifyPart(p minio.ObjectPart, sum string) digest.Agreement {
	told := ""
	switch etag := strings.Trim(p.ETag, `"`); {
	case u.features.CRC64NVME:
		told, sum = p.ChecksumCRC64NVME, base64Of(sum)
	case u.features.ETagIsMD5 && isMD5(etag):
		told = etag
	}
	switch told {
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

// complete makes the object visible, whose digests are sum. pairs are headers. The service may have done so without having
// said so: whether it has, found says.
func (u *upload) complete(ctx context.Context, sum digest.Set, found func() (minio.UploadInfo, bool), pairs ...string) (minio.UploadInfo, *exchange, error) {
	ctx, answer := withHeaders(ctx, pairs...)
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
		if gone = code == "NoSuchUpload"; code == "NoSuchKey" && len(pairs) > 0 { // If-Match met no object
			about = anItem
		}
		err = u.s.translate(ctx, about, "complete an upload in parts", err)
		// An upload that is gone may have been completed by another process that went on with it.
		if doubt = doubt || gone || err != nil && isAmbiguous(err); err == nil || !doubt || ctx.Err() != nil {
			return err
		}
		if there, ok := found(); ok {
			info, err = there, nil
		}
		return err
	})
	switch unknown := "whether it is stored is not known"; {
	case err == nil, !doubt:
	case ctx.Err() != nil:
		err = fmt.Errorf("%s: %w", unknown, storage.Ended(ctx))
	default: // the last answer may be about the effect of an earlier request
		err = fmt.Errorf("%s: %v", unknown, err) //nolint:errorlint // it is no fact
	}
	return info, answer, err
}

// abortWait bounds how long an upload that nobody wants is ended.
const abortTimeout = 30 * time.Second

// abort has the service forget the parts. What it does not hear is ended by age.
func (u *upload) abort(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortTimeout)
	defer cancel()
	u.s.setActive(u.id, false)
	if u.s.core.AbortMultipartUpload(ctx, u.bucket, u.key, u.id) == nil {
		u.unrecord(ctx)
	}
}

// done lets go of an upload that was completed.
func (u *upload) finish(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortTimeout)
	defer cancel()
	u.s.setActive(u.id, false)
	u.unrecord(ctx)
}

// inParts stores what does not fit into one part: p, which it empties, and what r has. It is completed when the digests of
// all of it agree with what is known.
func (w *write) putParts(ctx context.Context, r io.Reader, p *buffer, size int64) (info minio.UploadInfo, sum digest.Set, err error) {
	meta, contentType, err := encode(w.o.Properties, w.o.Digests, w.o.Size, formatOriginal(w.space, w.item, w.o.Original))
	if err == nil && w.o.Size < 0 {
		delete(meta, digestsName) // they are told with a size, or not at all
	}
	if err != nil {
		return info, nil, fmt.Errorf("%s: %w", w.op, err)
	}
	u, err := w.s.resumeOrBegin(ctx, w.location, objectHeaders{meta: meta, contentType: contentType}, partPlan{size, w.o.Size})
	if err != nil {
		return info, nil, fmt.Errorf("%s: %w", w.op, err)
	}
	u.copyFrom.Store(w.copyFrom)
	right := true // what was sent is what is wanted, as far as anybody knows
	completed := false
	defer func() { // also if r or the transport panics
		switch {
		case completed:
			u.finish(ctx)
		case right && u.isRecorded() && isTransient(err):
			w.s.setActive(u.id, false) // another Put goes on with it, or it is ended by age
		default:
			u.abort(ctx)
		}
	}()
	if err := w.sendParts(ctx, u, r, p, size); err != nil {
		return info, nil, fmt.Errorf("%s: %w", w.op, err)
	}
	right = false
	if sum, err = w.o.Accept(w.h.Sum(), w.h.Size()); err != nil {
		return info, nil, fmt.Errorf("%s: %w", w.op, err)
	}
	when := w.conditions
	if !u.features.Complete {
		when = nil
	}
	if len(when) == 0 && w.o.Condition != (storage.Condition{}) { // it was looked at before the bytes were sent
		if _, err := w.s.checkCondition(ctx, w.space, w.item, w.o.Condition, false); err != nil {
			return info, nil, err
		}
	}
	right, w.sent = true, true
	info, w.response, err = u.complete(ctx, w.h.Sum(), func() (minio.UploadInfo, bool) { return w.verifyStored(ctx) }, when...)
	completed = err == nil
	return info, sum, err
}

// sendAll sends p and what r has: it reads parts one after the other, and sends them side by side. The part that is read, and
// is not sent yet, is in p.
func (w *write) sendParts(caller context.Context, u *upload, r io.Reader, p *buffer, size int64) error {
	ctx, cancel := context.WithCancelCause(caller)
	defer cancel(nil)
	var all sync.WaitGroup
	defer all.Wait()
	turns := make(chan struct{}, w.s.cfg.parallel)
	for n, end, sent := 1, false, int64(0); ; n++ {
		if sent += int64(len(p.bytes)); n > maxParts || sent > maxObject {
			cancel(retry.Permanent(fmt.Errorf("more than %d parts, or %d bytes: %w", maxParts, int64(maxObject), storage.ErrTooLarge)))
			break
		}
		_, _ = w.h.Write(p.bytes)
		retry.Alive(ctx)
		turns <- struct{}{}
		at := sent - int64(len(p.bytes))
		this := p.detach()
		all.Go(func() {
			defer func() { this.free(); <-turns }()
			if err := u.sendPart(ctx, n, at, this.bytes); err != nil {
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
			cancel(fmt.Errorf("read what is put: %w", err))
			break
		}
		if end = last; end && m == 0 {
			p.release() // before what was sent is awaited, and completed
			break
		}
		p.bytes = p.bytes[:m]
	}
	all.Wait()
	if caller.Err() != nil {
		return storage.Ended(caller)
	}
	return context.Cause(ctx) // of this call
}
