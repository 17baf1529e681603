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

func (s *Store) putOptions(with objectHeaders) minio.PutObjectOptions {
	o := minio.PutObjectOptions{UserMetadata: map[string]string{}, ContentType: with.contentType, StorageClass: s.cfg.StorageClass}
	maps.Copy(o.UserMetadata, with.meta)
	switch s.cfg.Encryption {
	case "AES256":
		o.ServerSideEncryption = encrypt.NewSSE()
	case "aws:kms":
		o.ServerSideEncryption, _ = encrypt.NewSSEKMS(s.cfg.KMSKey, nil) // fails only with a context
	}
	return o
}

// Put implements storage.Store.
func (s *Store) Put(ctx context.Context, space, item string, r io.Reader, o storage.PutOptions) (storage.Object, error) {
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

// newWrite looks whether an item may be written. It returns the write and the algorithms of the digests that Put returns.
func (s *Store) newWrite(ctx context.Context, space, item string, o storage.PutOptions) (w *write, algs []string, err error) {
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
	if _, _, err := encode(o.Properties, nil, 0, ""); err != nil { // before anything is read or kept
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
		if w == nil { // also if the transport panics
			free()
		}
	}()
	when, err := s.checkCondition(ctx, space, item, o.Condition, o.KeepReplaced)
	if err != nil {
		return nil, nil, err
	}
	h, err := s.pool.Get(append(algs, s.features.Load().checksum())...)
	if err != nil {
		return nil, nil, err
	}
	return &write{s: s, space: space, item: item, location: location{bucket, key}, o: o, h: h, op: "write " + itemText(space, item),
		conditions: when, copyFrom: s.copySourceOf(o), free: func() { s.pool.Put(h); free() }}, algs, nil
}

// checksum is the algorithm whose digest the service verifies and keeps.
func (f *Facts) checksum() string {
	if f.CRC64NVME {
		return digest.CRC64NVME
	}
	return digest.MD5
}

// A write is one Put.
type write struct {
	s *Store
	location
	space, item, op string
	o               storage.PutOptions
	h               *digest.Hasher
	conditions      []string    // headers of its condition
	copyFrom        *copySource // where the service may copy the bytes from
	sent            bool        // the request that makes it visible was made
	response        *exchange   // of that request
	free            func()      // lets go of what it holds
}

// run stores the bytes: in one request where they are in one part, else part by part.
func (w *write) run(ctx context.Context, r io.Reader) (minio.UploadInfo, digest.Set, error) {
	size := firstPartSize(w.s.cfg.PartBytes, w.o.Size)
	part, err := w.s.writeBuffers.get(ctx, size)
	if err != nil {
		return minio.UploadInfo{}, nil, err
	}
	defer part.release() // also if r panics
	n, end, err := readFull(ctx, r, part.bytes)
	if err == nil && !end {
		return w.putParts(ctx, r, &part, size)
	}
	if err != nil {
		return minio.UploadInfo{}, nil, fmt.Errorf("%s: read what is put: %w", w.op, err)
	}
	_, _ = w.h.Write(part.bytes[:n])
	sum, err := w.o.Accept(w.h.Sum(), w.h.Size())
	if err != nil {
		return minio.UploadInfo{}, nil, fmt.Errorf("%s: %w", w.op, err)
	}
	meta, contentType, err := encode(w.o.Properties, sum.Only(w.storedAlgorithms()...), w.h.Size(), formatOriginal(w.space, w.item, w.o.Original))
	if err != nil {
		return minio.UploadInfo{}, nil, fmt.Errorf("%s: %w", w.op, err)
	}
	asked, answer := withHeaders(ctx, w.conditions...) // the conditions are of this request alone
	w.sent, w.response = true, answer
	info, err := w.s.putObject(asked, w.location, payload{part.bytes[:n], w.h.Sum()}, w.s.features.Load(), w.s.putOptions(objectHeaders{meta: meta, contentType: contentType}))
	if err != nil && isAmbiguous(err) && ctx.Err() == nil {
		if there, ok := w.verifyStored(ctx); ok {
			return there, sum, nil
		}
		err = fmt.Errorf("%w (whether it is stored is not known)", err)
	}
	return info, sum, err
}

// found looks whether a write whose success was not reported is there after all: an object that has these very bytes, by
// what the service tells of them, and these properties.
func (w *write) verifyStored(ctx context.Context) (minio.UploadInfo, bool) {
	o, info, err := w.current(ctx)
	if err != nil || w.compare(o) != digest.Agree || o.Properties.MediaType != w.o.Properties.MediaType ||
		!maps.Equal(o.Properties.User, w.o.Properties.User) {
		return minio.UploadInfo{}, false
	}
	return info, true
}

// there returns the object that is there now.
func (w *write) current(ctx context.Context) (o storage.Object, at minio.UploadInfo, err error) {
	info, err := w.s.head(ctx, w.location, w.s.getOptions())
	if err != nil {
		return o, at, w.s.translate(ctx, anItem, "look at "+itemText(w.space, w.item), err)
	}
	o, err = w.s.object(w.space, w.item, info)
	return o, minio.UploadInfo{ETag: info.ETag, VersionID: info.VersionID}, err
}

// compare compares the bytes of an object with those that were written.
func (w *write) compare(o storage.Object) digest.Agreement {
	if o.Size != w.h.Size() {
		return digest.Disagree
	}
	return o.Digests.Compare(w.h.Sum())
}

// kept are the algorithms whose digests go into the metadata.
func (w *write) storedAlgorithms() []string {
	algs := append([]string{}, w.s.cfg.digests...)
	for alg := range w.o.Digests {
		algs = append(algs, alg)
	}
	return append(algs, w.o.Compute...)
}

// A payload is bytes and their digests.
type payload struct {
	bytes []byte
	sum   digest.Set
}

// single puts bytes in one request. The service verifies them by what the signature says of them, and by those
// checksums that it knows.
func (s *Store) putObject(ctx context.Context, to location, p payload, f *Facts, o minio.PutObjectOptions) (minio.UploadInfo, error) {
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
	o.DisableContentSha256 = sum[digest.SHA256] != "" // or each chunk is hashed once more, to be signed
	body := newSharedBody(b)
	defer body.detach()
	info, err := s.core.PutObject(withBody(ctx, b), to.bucket, to.key, body, int64(len(b)), md5, sum[digest.SHA256], o)
	return info, s.translate(ctx, anItem, fmt.Sprintf("put %d bytes", len(b)), err)
}

func base64Of(hexed string) string {
	raw, err := hex.DecodeString(hexed)
	if err != nil {
		return ""
	}
	return base64.StdEncoding.EncodeToString(raw)
}

// condition looks at what is there, as far as it matters, keeps it where it is to be kept, and returns the headers with
// which the service sees to the condition itself.
func (s *Store) checkCondition(ctx context.Context, space, item string, c storage.Condition, keep bool) (headers []string, err error) {
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

// lost makes the refusal of a condition the error that its kind has. It is marked if an object of other bytes is there: if
// that of this write is, a proxy may have repeated the request that put it there.
func (w *write) conditionError(ctx context.Context, err error) error {
	if len(w.conditions) == 0 || !errors.Is(err, storage.ErrChanged) {
		return err
	}
	o, _, serr := w.current(ctx)
	switch {
	case w.o.Absent && strings.HasSuffix(w.item, "/") && isAbsent(serr): // versitygw says so when there is a file of that name
		err = retry.Permanent(fmt.Errorf("%s: the service has an object of that name without the slash: %w", w.op, storage.ErrName))
	case w.o.Absent:
		err = fmt.Errorf("%s: %w", w.op, storage.ErrExists)
	default:
		err = fmt.Errorf("%s: %w", w.op, storage.ErrChanged)
	}
	if serr == nil && w.compare(o) == digest.Disagree {
		return storage.NotApplied(err)
	}
	return err
}

// errContradicts is what a service says of an object that cannot be after what it said before. versitygw gathers its
// answer piece by piece: some are of another's object, or there is none, where another writes at that moment.
var errInconsistent = errors.New("the service contradicts itself")

// lookTries is how often such a service is asked.
var statRetry = retry.Policy{Attempts: 5, Wait: 20 * time.Millisecond, MaxWait: time.Second}

// look asks what is stored now: a time by the service's clock comes with no other answer.
func (w *write) result(ctx context.Context, put minio.UploadInfo, sum digest.Set, algs []string) (storage.Object, error) {
	o := w.s.getOptions()
	if put.VersionID != "" && put.VersionID != "null" {
		o.VersionID = put.VersionID
	}
	told := sum.Only(append(algs, w.storedAlgorithms()...)...)
	var stored storage.Object
	contradicts := func(err error) bool { return errors.Is(err, errInconsistent) }
	err := retryWhile(ctx, statRetry, contradicts, func() error {
		info, err := w.s.statWritten(ctx, w.location, o, itemText(w.space, w.item))
		switch {
		case err != nil:
		case info.ETag != put.ETag: // another write has replaced it; the result is that of this one all the same
			stored = w.overwritten(put, told)
		default:
			stored, err = w.checkStored(info)
			stored.Digests = told
		}
		return err
	})
	if err != nil {
		return storage.Object{}, err
	}
	return stored, nil
}

// stored is what the service tells of an object that has the ETag of what was written.
func (w *write) checkStored(info minio.ObjectInfo) (storage.Object, error) {
	o, err := w.s.object(w.space, w.item, info)
	switch {
	case err != nil:
		return o, err
	case o.Size != w.h.Size():
		return o, fmt.Errorf("%s: %w: it keeps %d of %d bytes", w.op, errInconsistent, o.Size, w.h.Size())
	case o.Digests.Compare(w.h.Sum()) == digest.Disagree:
		return o, fmt.Errorf("%s: %w: it tells digests %v of bytes that have %v", w.op, errInconsistent, o.Digests, w.h.Sum())
	}
	return o, nil
}

// replaced tells of an object that is there no more.
func (w *write) overwritten(put minio.UploadInfo, sum digest.Set) storage.Object {
	at := w.response.responseDate()
	if at.IsZero() {
		at = w.s.cfg.now()
	}
	return storage.Object{
		Item: w.item, Size: w.h.Size(), Modified: at.UTC().Truncate(time.Second), ETag: put.ETag, Digests: sum, Properties: w.o.Properties, Original: w.o.Original,
		Version: version(minio.ObjectInfo{ETag: put.ETag, VersionID: put.VersionID}),
	}
}

// partSize is how large the first part is: so that there are no more than S3 takes, or as large as all where that is less.
func firstPartSize(usual, size int64) int64 {
	switch {
	case size < 0:
		return usual
	case size <= usual:
		return min(usual, max(size+1, 512)) // one more: whether there is more is seen by reading
	case size <= maxParts*usual:
		return usual
	}
	const mib = 1 << 20
	return (size/maxParts + mib) / mib * mib
}

// partOf is how large part n is, where the first has so many bytes. Of what nobody knows the size of, parts grow: the
// first thousand is small, and 10,000 parts are no less than the largest object.
func nthPartSize(n int, first, size int64) int64 {
	if size >= 0 {
		return first
	}
	return min(first<<min((n-1)/1000, 9), maxSingle>>1)
}

// read fills b, unless r ends before.
func readFull(ctx context.Context, r io.Reader, b []byte) (n int, end bool, err error) {
	for empty := 0; n < len(b); {
		if ctx.Err() != nil {
			return n, false, storage.Ended(ctx)
		}
		m, err := r.Read(b[n:])
		n += m
		switch {
		case err == io.EOF: // an error that wraps EOF is a stream that broke
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
