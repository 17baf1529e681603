package s3

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/encrypt"

	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// putOptions returns the options of a write with these headers.
func (s *Store) putOptions(h objectHeaders) minio.PutObjectOptions {
	o := minio.PutObjectOptions{
		UserMetadata: map[string]string{}, ContentType: h.contentType, StorageClass: s.cfg.StorageClass,
	}
	maps.Copy(o.UserMetadata, h.meta)
	switch s.cfg.Encryption {
	case "AES256":
		o.ServerSideEncryption = encrypt.NewSSE()
	case "aws:kms":
		o.ServerSideEncryption, _ = encrypt.NewSSEKMS(s.cfg.KMSKey, nil) // fails only with a context
	}
	return o
}

// Put implements storage.Store.
func (s *Store) Put(
	ctx context.Context, space, item string, r io.Reader, o storage.PutOptions,
) (storage.Object, error) {
	w, algs, err := s.newWrite(ctx, space, item, o)
	if err != nil {
		return storage.Object{}, storage.NotApplied(err)
	}
	defer w.free()
	info, sum, err := w.run(ctx, r)
	switch {
	case err == nil:
		return w.result(ctx, info, sum, algs)
	case !w.sent:
		return storage.Object{}, storage.NotApplied(err)
	}
	switch rejectionOf(err) {
	case rejected:
		err = storage.NotApplied(err)
	case rejectedOrRepeated:
		err = w.conditionError(ctx, err)
	}
	return storage.Object{}, err
}

// newWrite checks whether an item may be written. It returns the write and the algorithms of the digests that Put
// returns.
func (s *Store) newWrite(
	ctx context.Context, space, item string, o storage.PutOptions,
) (w *write, algs []string, err error) {
	if s.cfg.ReadOnly {
		return nil, nil, retry.Permanent(storage.ErrReadOnly)
	}
	bucket, key, err := s.itemKey(space, item)
	if err != nil {
		return nil, nil, err
	}
	if o.Size > maxObject {
		return nil, nil, retry.Permanent(fmt.Errorf("%s: %d bytes: %w", itemText(space, item), o.Size, storage.ErrTooLarge))
	}
	if _, _, err := encode(o.Properties, nil, 0, ""); err != nil { // fail before anything is read or quarantined
		return nil, nil, fmt.Errorf("write %s: %w", itemText(space, item), err)
	}
	if err := s.requireSpace(ctx, space); err != nil {
		return nil, nil, err
	}
	if algs, err = o.Algorithms(s.cfg.digests); err != nil {
		return nil, nil, err
	}
	free, err := s.reserveKey(ctx, space, item)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if w == nil { // also after a panic of the transport
			free()
		}
	}()
	conditions, err := s.checkCondition(ctx, space, item, o.Condition, o.KeepReplaced)
	if err != nil {
		return nil, nil, err
	}
	h, err := s.pool.Get(append(algs, s.features.Load().checksum())...)
	if err != nil {
		return nil, nil, err
	}
	return &write{
		s: s, space: space, item: item, location: location{bucket, key}, o: o, h: h,
		conditions: conditions, copyFrom: s.copySourceOf(o), free: func() { s.pool.Put(h); free() },
	}, algs, nil
}

// checksum returns the algorithm of the checksum that the service verifies and stores for each part.
func (f *Features) checksum() string {
	if f.CRC64NVME {
		return digest.CRC64NVME
	}
	return digest.MD5
}

// A write is one Put.
type write struct {
	s *Store
	location
	space, item string
	o           storage.PutOptions
	h           *digest.Hasher
	sum         digest.Set  // of h, after all bytes were read
	conditions  []string    // headers, as pairs of name and value
	copyFrom    *copySource // an object with the same bytes that the service can copy; nil: none
	sent        bool        // the request that makes the object visible was sent
	response    *exchange   // of that request
	free        func()      // releases the hasher and the reservation of the key
}

// op names the operation in errors.
func (w *write) op() string { return "write " + itemText(w.space, w.item) }

// run stores the bytes: in one request if they fit into one part, otherwise as a multipart upload.
func (w *write) run(ctx context.Context, r io.Reader) (minio.UploadInfo, digest.Set, error) {
	size := firstPartSize(w.s.cfg.PartBytes, w.o.Size)
	part, err := w.s.writeBuffers.get(ctx, size)
	if err != nil {
		return minio.UploadInfo{}, nil, err
	}
	defer part.release() // also after a panic of r
	n, end, err := readFull(ctx, r, part.bytes)
	if err == nil && !end {
		return w.putParts(ctx, r, &part, size)
	}
	if err != nil {
		return minio.UploadInfo{}, nil, fmt.Errorf("%s: read the source: %w", w.op(), err)
	}
	_, _ = w.h.Write(part.bytes[:n])
	w.sum = w.h.Sum()
	sum, err := w.o.Accept(w.sum, w.h.Size())
	if err != nil {
		return minio.UploadInfo{}, nil, fmt.Errorf("%s: %w", w.op(), err)
	}
	meta, contentType, err := encode(w.o.Properties, sum.Only(w.storedAlgorithms()...), w.h.Size(),
		formatOriginal(w.space, w.item, w.o.Original))
	if err != nil {
		return minio.UploadInfo{}, nil, fmt.Errorf("%s: %w", w.op(), err)
	}
	putCtx, response := withHeaders(ctx, w.conditions...) // verifyStored must not send the conditions
	w.sent, w.response = true, response
	info, err := w.s.putObject(putCtx, w.location, payload{part.bytes[:n], w.sum}, w.s.features.Load(),
		w.s.putOptions(objectHeaders{meta: meta, contentType: contentType}))
	if err != nil && isAmbiguous(err) && ctx.Err() == nil {
		if stored, ok := w.verifyStored(ctx); ok {
			return stored, sum, nil
		}
		err = fmt.Errorf("%w (it is unknown whether it was stored)", err)
	}
	return info, sum, err
}

// verifyStored reports whether a write without a clear response succeeded: the current object has the digests and the
// properties of the write, by the digests that the service reports.
func (w *write) verifyStored(ctx context.Context) (minio.UploadInfo, bool) {
	o, info, err := w.current(ctx)
	if err != nil || w.compare(o) != digest.Agree || o.Properties.MediaType != w.o.Properties.MediaType ||
		!maps.Equal(o.Properties.User, w.o.Properties.User) {
		return minio.UploadInfo{}, false
	}
	return info, true
}

// current returns the current object at the key.
func (w *write) current(ctx context.Context) (o storage.Object, at minio.UploadInfo, err error) {
	info, err := w.s.head(ctx, w.location, w.s.getOptions())
	if err != nil {
		return o, at, w.s.translate(ctx, anItem, "stat "+itemText(w.space, w.item), err)
	}
	o, err = w.s.object(w.space, w.item, info)
	return o, minio.UploadInfo{ETag: info.ETag, VersionID: info.VersionID}, err
}

// compare compares an object with the bytes that were written, by size and digests.
func (w *write) compare(o storage.Object) digest.Agreement {
	if o.Size != w.h.Size() {
		return digest.Disagree
	}
	return o.Digests.Compare(w.sum)
}

// storedAlgorithms returns the algorithms of the digests that are stored in the metadata.
func (w *write) storedAlgorithms() []string {
	algs := append([]string{}, w.s.cfg.digests...)
	for alg := range w.o.Digests {
		algs = append(algs, alg)
	}
	return append(algs, w.o.Compute...)
}

// A payload is a byte slice with its digests.
type payload struct {
	bytes []byte
	sum   digest.Set
}

// putObject puts bytes in one request. The service verifies them by the signature, and by the checksum that it supports
// according to f.
func (s *Store) putObject(
	ctx context.Context, to location, p payload, f *Features, o minio.PutObjectOptions,
) (minio.UploadInfo, error) {
	var md5 string
	b, sum := p.bytes, p.sum
	switch {
	case f.SHA256 && sum[digest.SHA256] != "":
		o.UserMetadata["x-amz-checksum-sha256"] = base64Of(sum[digest.SHA256])
	case f.CRC64NVME && sum[digest.CRC64NVME] != "":
		o.UserMetadata["x-amz-checksum-crc64nvme"] = base64Of(sum[digest.CRC64NVME])
	default:
		md5 = base64Of(sum[digest.MD5])
	}
	o.DisableContentSha256 = sum[digest.SHA256] != "" // otherwise the client hashes the bytes again to sign them
	if o.DisableContentSha256 && len(b) <= smallBody {
		info, rest, ok := s.putSmall(ctx, to, smallObject{b, md5, sum[digest.SHA256]}, o)
		if ok {
			return info, nil
		}
		ctx = rest
	}
	body := newSharedBody(b)
	defer body.detach()
	info, err := s.core.PutObject(ctx, to.bucket, to.key, body, int64(len(b)), md5, sum[digest.SHA256], o)
	if err != nil {
		err = s.translate(ctx, anItem, fmt.Sprintf("put %d bytes", len(b)), err)
	}
	return info, err
}

// smallBody is the largest body that is copied in memory, in bytes. It is sent in one write with the header.
const smallBody = writeBuffer / 2

func base64Of(hexed string) string {
	raw, err := hex.DecodeString(hexed)
	if err != nil {
		return ""
	}
	return base64.StdEncoding.EncodeToString(raw)
}

// checkCondition checks a condition against the current object, unless the service does that alone, and quarantines the
// object if keep is set. It returns the headers with which the service checks the condition itself.
func (s *Store) checkCondition(
	ctx context.Context, space, item string, c storage.Condition, keep bool,
) (headers []string, err error) {
	f := s.features.Load()
	if c == (storage.Condition{}) && !keep || c.Absent && f.IfNoneMatch {
		if c.Absent {
			headers = []string{"If-None-Match", "*"}
		}
		return headers, nil
	}
	o, err := s.Stat(ctx, space, item)
	present := err == nil
	if err != nil && !errors.Is(err, storage.ErrNotFound) {
		return nil, err
	}
	if err := c.Check(o, present); err != nil {
		return nil, fmt.Errorf("%s: %w", itemText(space, item), err)
	}
	if present && keep {
		if err := s.quarantine(ctx, space, item, o); err != nil {
			return nil, err
		}
	}
	switch {
	case present && c.Version != "" && f.IfMatch:
		headers = []string{"If-Match", `"` + o.ETag + `"`}
	case !present && c.Absent && f.IfNoneMatch:
		headers = []string{"If-None-Match", "*"}
	}
	return headers, nil
}

// conditionError returns the error for a condition that the service refused. It is marked with storage.NotApplied if
// the current object has other bytes. If it has the bytes of this write, a proxy may have repeated the request after it
// succeeded.
func (w *write) conditionError(ctx context.Context, err error) error {
	if len(w.conditions) == 0 || !errors.Is(err, storage.ErrChanged) {
		return err
	}
	o, _, serr := w.current(ctx)
	switch {
	case w.o.Absent && strings.HasSuffix(w.item, "/") && isAbsent(serr):
		// versitygw returns this if a file has the name without the slash.
		err = retry.Permanent(fmt.Errorf("%s: the service has an object of that name without the slash: %w",
			w.op(), storage.ErrName))
	case w.o.Absent:
		err = fmt.Errorf("%s: %w", w.op(), storage.ErrExists)
	default:
		err = fmt.Errorf("%s: %w", w.op(), storage.ErrChanged)
	}
	if serr == nil && w.compare(o) == digest.Disagree {
		return storage.NotApplied(err)
	}
	return err
}

// errInconsistent means that responses of the service contradict each other. versitygw reads the parts of a response
// one after the other; during a concurrent write some belong to another object, or the object seems to be absent.
var errInconsistent = errors.New("the service returned inconsistent responses")

// statRetry is the retry policy after an inconsistent response.
var statRetry = retry.Policy{Attempts: 5, Wait: 20 * time.Millisecond, MaxWait: time.Second}

// result returns the object as stored. It stats the object, because only that response has its time by the service's
// clock.
func (w *write) result(
	ctx context.Context, put minio.UploadInfo, sum digest.Set, algs []string,
) (storage.Object, error) {
	o := w.s.getOptions()
	if put.VersionID != "" && put.VersionID != "null" {
		o.VersionID = put.VersionID
	}
	digests := sum.Only(append(algs, w.storedAlgorithms()...)...)
	var stored storage.Object
	inconsistent := func(err error) bool { return errors.Is(err, errInconsistent) }
	err := retryWhile(ctx, statRetry, inconsistent, func() error {
		info, err := w.s.statWritten(ctx, w.location, o, w.op)
		switch {
		case err != nil:
		case info.ETag != put.ETag: // replaced by another write; the result is still that of this one
			stored = w.overwritten(put, digests)
		default:
			stored, err = w.checkStored(info)
			stored.Digests = digests
		}
		return err
	})
	if err != nil {
		return storage.Object{}, err
	}
	return stored, nil
}

// checkStored returns the object with the ETag of this write, or errInconsistent if its size or digests differ.
func (w *write) checkStored(info minio.ObjectInfo) (storage.Object, error) {
	o, err := w.s.object(w.space, w.item, info)
	switch {
	case err != nil:
		return o, err
	case o.Size != w.h.Size():
		return o, fmt.Errorf("%s: %w: it stores %d of %d bytes", w.op(), errInconsistent, o.Size, w.h.Size())
	case o.Digests.Compare(w.sum) == digest.Disagree:
		return o, fmt.Errorf("%s: %w: it reports digests %v for bytes with %v", w.op(), errInconsistent, o.Digests, w.sum)
	}
	return o, nil
}

// overwritten returns the object of this write after another write has replaced it.
func (w *write) overwritten(put minio.UploadInfo, sum digest.Set) storage.Object {
	at := w.response.responseDate()
	if at.IsZero() {
		at = w.s.cfg.now()
	}
	return storage.Object{
		Item: w.item, Size: w.h.Size(), Modified: at.UTC().Truncate(time.Second), ETag: put.ETag,
		Digests: sum, Properties: w.o.Properties, Original: w.o.Original,
		Version: version(minio.ObjectInfo{ETag: put.ETag, VersionID: put.VersionID}),
	}
}

// firstPartSize returns the size of the first part: usual, larger if size needs more than maxParts such parts, or one
// byte more than size if that is less than usual. size is negative if unknown.
func firstPartSize(usual, size int64) int64 {
	switch {
	case size < 0:
		return usual
	case size <= usual:
		return min(usual, max(size+1, 512)) // one byte more, so that the read sees the end
	case size <= maxParts*usual:
		return usual
	}
	const mib = 1 << 20
	return (size/maxParts + mib) / mib * mib
}

// nthPartSize returns the size of part n. If the total size is unknown (negative), parts grow: they double every 1,000
// parts, so that 10,000 parts hold the largest object.
func nthPartSize(n int, first, size int64) int64 {
	if size >= 0 {
		return first
	}
	return min(first<<min((n-1)/1000, 9), maxSingle>>1)
}

// readFull reads until b is full or r ends.
func readFull(ctx context.Context, r io.Reader, b []byte) (n int, end bool, err error) {
	for empty := 0; n < len(b); {
		if ctx.Err() != nil {
			return n, false, storage.ContextErr(ctx)
		}
		m, err := r.Read(b[n:])
		n += m
		switch {
		case err == io.EOF: // an error that wraps EOF means a broken stream
			return n, true, nil
		case err != nil:
			return n, false, err
		case m > 0:
			empty = 0
		default:
			if empty++; empty == 100 {
				return n, false, io.ErrNoProgress
			}
		}
	}
	return n, false, nil
}
