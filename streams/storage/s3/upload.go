package s3

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// partTries is how often a part is sent: what was sent before it need not be sent again.
var partTries = retry.Policy{Attempts: 5, Wait: 200 * time.Millisecond, MaxWait: 5 * time.Second, Elapsed: 2 * time.Minute}

// An upload in parts is invisible until it is completed.
type upload struct {
	s *Store
	spot
	id    string
	facts *Facts

	mu    sync.Mutex
	parts map[int]minio.CompletePart // guarded by mu
}

func (s *Store) begin(ctx context.Context, to spot, with heading) (*upload, error) {
	f := s.facts.Load()
	o := s.putOptions(with.meta, with.contentType)
	if f.CRC64NVME {
		o.UserMetadata["x-amz-checksum-algorithm"] = "CRC64NVME"
		o.UserMetadata["x-amz-checksum-type"] = "FULL_OBJECT"
	}
	id, err := s.core.NewMultipartUpload(ctx, to.bucket, to.key, o)
	if err != nil {
		return nil, translate(ctx, anUpload, "begin an upload in parts", err)
	}
	return &upload{s: s, spot: to, id: id, facts: f, parts: map[int]minio.CompletePart{}}, nil
}

// send stores part n, which may have been stored before.
func (u *upload) send(ctx context.Context, n int, b []byte) error {
	alg := u.s.checksum()
	h, err := digest.New(alg)
	if err != nil {
		return err
	}
	_, _ = h.Write(b)
	sum := base64Of(h.Sum()[alg])
	o := minio.PutObjectPartOptions{}
	if u.facts.CRC64NVME {
		o.CustomHeader = http.Header{"X-Amz-Checksum-Crc64nvme": {sum}}
		o.DisableContentSha256 = u.s.core.EndpointURL().Scheme == "https"
	} else {
		o.Md5Base64 = sum
	}
	if u.s.cfg.RequesterPays {
		if o.CustomHeader == nil {
			o.CustomHeader = http.Header{}
		}
		o.CustomHeader.Set("X-Amz-Request-Payer", "requester")
	}
	_, err = partTries.Do(ctx, func() error {
		p, err := u.s.core.PutObjectPart(ctx, u.bucket, u.key, u.id, n, bytes.NewReader(b), int64(len(b)), o)
		if err != nil {
			return translate(ctx, anUpload, fmt.Sprintf("put part %d", n), err)
		}
		u.mu.Lock()
		defer u.mu.Unlock()
		u.parts[n] = minio.CompletePart{PartNumber: n, ETag: p.ETag, ChecksumCRC64NVME: p.ChecksumCRC64NVME}
		return nil
	}, func(int, time.Duration, error) { retry.Alive(ctx) })
	return err
}

// complete makes the object visible. pairs are headers.
func (u *upload) complete(ctx context.Context, pairs ...string) (minio.UploadInfo, *note, error) {
	ctx, answer := noted(ctx, pairs...)
	parts := make([]minio.CompletePart, len(u.parts))
	for n, p := range u.parts {
		parts[n-1] = p
	}
	info, err := u.s.core.CompleteMultipartUpload(ctx, u.bucket, u.key, u.id, parts, minio.PutObjectOptions{})
	return info, answer, translate(ctx, anUpload, "complete an upload in parts", err)
}

// abortWait bounds how long an upload that nobody wants is ended.
const abortWait = 30 * time.Second

// abort has the service forget the parts. What it does not hear is ended by age.
func (u *upload) abort(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortWait)
	defer cancel()
	_ = u.s.core.AbortMultipartUpload(ctx, u.bucket, u.key, u.id)
}

// inParts stores what does not fit into one part: first, and what r has. It is completed when the digests of all of it
// agree with what is known.
func (w *write) inParts(ctx context.Context, r io.Reader, first part, size int64) (info minio.UploadInfo, sum digest.Set, err error) {
	meta, contentType, err := encode(w.o.Properties, w.o.Digests, w.o.Size)
	if err == nil && w.o.Size < 0 {
		delete(meta, digestsName) // they are told with a size, or not at all
	}
	if err != nil {
		first.free()
		return info, nil, fmt.Errorf("%s: %w", w.what, err)
	}
	u, err := w.s.begin(ctx, w.spot, heading{meta, contentType})
	if err != nil {
		first.free()
		return info, nil, fmt.Errorf("%s: %w", w.what, err)
	}
	defer func() {
		if err != nil {
			u.abort(ctx)
		}
	}()
	if err := w.sendAll(ctx, u, r, first, size); err != nil {
		return info, nil, fmt.Errorf("%s: %w", w.what, err)
	}
	if sum, err = w.o.Accept(w.h.Sum(), w.h.Size()); err != nil {
		return info, nil, fmt.Errorf("%s: %w", w.what, err)
	}
	when := w.when
	if !u.facts.Complete {
		when = nil
	}
	if len(when) == 0 && w.o.Condition != (storage.Condition{}) { // it was looked at before the bytes were sent
		if _, err := w.s.condition(ctx, w.space, w.item, w.o.Condition, false); err != nil {
			return info, nil, err
		}
	}
	info, w.answer, err = u.complete(ctx, when...)
	return info, sum, err
}

// sendAll reads parts one after the other, and sends them side by side.
func (w *write) sendAll(ctx context.Context, u *upload, r io.Reader, p part, size int64) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var all sync.WaitGroup
	defer all.Wait()
	turns := make(chan struct{}, w.s.cfg.Parallel)
	for n, end := 1, false; ; n++ {
		if n > maxParts {
			p.free()
			cancel(retry.Permanent(fmt.Errorf("more than %d parts of %d bytes, and nobody said how many: %w", maxParts, size, storage.ErrTooLarge)))
			break
		}
		_, _ = w.h.Write(p.bytes)
		retry.Alive(ctx)
		turns <- struct{}{}
		all.Go(func() {
			defer func() { p.free(); <-turns }()
			if err := u.send(ctx, n, p.bytes); err != nil {
				cancel(err)
			}
		})
		if end || ctx.Err() != nil {
			break
		}
		next, err := w.s.room.part(ctx, size)
		if err != nil {
			cancel(err)
			break
		}
		m, last, err := read(ctx, r, next.bytes)
		if err != nil {
			next.free()
			cancel(fmt.Errorf("read what is put: %w", err))
			break
		}
		if end = last; end && m == 0 {
			next.free()
			break
		}
		p = part{next.bytes[:m], next.free}
	}
	all.Wait()
	return context.Cause(ctx)
}

// Sweep ends uploads in parts that processes which died have left, and returns how many.
func (s *Store) Sweep(ctx context.Context, space string) (ended int, err error) {
	bucket, prefix, err := s.layout.space(space)
	if err != nil {
		return 0, err
	}
	before := s.cfg.Now().Add(-s.cfg.Leftover)
	for key, id := "", ""; ; {
		page, err := s.core.ListMultipartUploads(ctx, bucket, prefix, key, id, "", 1000)
		if err != nil {
			return ended, translate(ctx, aBucket, fmt.Sprintf("list uploads of space %q", space), err)
		}
		for _, u := range page.Uploads {
			if u.Initiated.After(before) {
				continue
			}
			err := s.core.AbortMultipartUpload(ctx, bucket, u.Key, u.UploadID)
			if err := translate(ctx, anUpload, fmt.Sprintf("end upload %s of %q", u.UploadID, u.Key), err); err != nil {
				return ended, err
			}
			ended++
		}
		if !page.IsTruncated {
			return ended, nil
		}
		key, id = page.NextKeyMarker, page.NextUploadIDMarker
	}
}
