package s3

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

func (s *Store) getOptions() minio.GetObjectOptions {
	o := minio.GetObjectOptions{Checksum: true}
	if s.cfg.RequesterPays {
		o.Set("x-amz-request-payer", "requester")
	}
	return o
}

// pin sets the version that a read must return.
func pin(o *minio.GetObjectOptions, version string) error {
	switch {
	case version == "":
	case strings.HasPrefix(version, `"`):
		return o.SetMatchETag(strings.Trim(version, `"`))
	default:
		o.VersionID = version
	}
	return nil
}

// version returns the version of an object: its version id, or its ETag in quotes.
func version(info minio.ObjectInfo) string {
	if info.VersionID != "" && info.VersionID != "null" {
		return info.VersionID
	}
	return `"` + info.ETag + `"`
}

// object converts a response of the service to the Object of an item.
func (s *Store) object(space, item string, info minio.ObjectInfo) (storage.Object, error) {
	if info.ETag == "" {
		return storage.Object{}, notS3Error(fmt.Sprintf("stat item %q: it has no ETag", item))
	}
	p, own, err := decode(info)
	if err != nil {
		return storage.Object{}, fmt.Errorf("item %q: %w", item, err)
	}
	o := storage.Object{
		Item: item, Size: info.Size, Modified: info.LastModified.UTC().Truncate(time.Second),
		Version: version(info), ETag: info.ETag, Properties: p,
	}
	var vouched bool
	if o.Digests, vouched = s.evidence(info, own.digests); vouched {
		o.Original = parseOriginal(space, item, own.original)
	}
	return o, nil
}

// Stat implements storage.Store.
func (s *Store) Stat(ctx context.Context, space, item string) (storage.Object, error) {
	bucket, key, err := s.itemKey(space, item)
	if err != nil {
		return storage.Object{}, err
	}
	ctx, response := withHeaders(ctx)
	info, err := s.stat(ctx, space, item, location{bucket, key})
	if err != nil {
		return storage.Object{}, storage.Absent(err, response.responseDate())
	}
	o, err := s.object(space, item, info)
	o.ObservedAt = response.responseDate()
	return o, err
}

// stat returns the metadata of an item's object. If it is absent, the error distinguishes item, space and bucket.
func (s *Store) stat(ctx context.Context, space, item string, at location) (minio.ObjectInfo, error) {
	info, err := s.head(ctx, at, s.getOptions())
	if err != nil {
		err = s.absenceError(ctx, space, s.translate(ctx, anItem, "stat "+itemText(space, item), err))
	}
	return info, err
}

// head returns the metadata of an object. The response to HEAD has no body; if its error cannot be understood without
// one, head sends a GET.
func (s *Store) head(ctx context.Context, at location, o minio.GetObjectOptions) (minio.ObjectInfo, error) {
	info, err := s.statObject(ctx, at, o)
	if err == nil || !needsBody(err) {
		return info, err
	}
	return info, s.headError(ctx, at, o, err)
}

// headError returns the error of a GET for the first byte, which explains the failed HEAD.
func (s *Store) headError(ctx context.Context, at location, o minio.GetObjectOptions, err error) error {
	if rerr := o.SetRange(0, 0); rerr != nil {
		return err
	}
	body, _, _, gerr := s.core.GetObject(ctx, at.bucket, at.key, o)
	if gerr == nil { // GET is permitted and HEAD is not
		body.Close()
		return err
	}
	return gerr
}

// statWritten stats an object that was just written. An absence is errInconsistent, not a fact about the item: another
// process may have deleted it, or the bucket may be absent.
func (s *Store) statWritten(
	ctx context.Context, at location, o minio.GetObjectOptions, op func() string,
) (minio.ObjectInfo, error) {
	info, err := s.head(ctx, at, o)
	if err == nil {
		return info, nil
	}
	what := "stat after write: " + op()
	if isAbsent(s.translate(ctx, anItem, what, err)) {
		err = s.headError(ctx, at, o, err)
	}
	if err = s.translate(ctx, anItem, what, err); isAbsent(err) {
		return info, fmt.Errorf("%s: %w: it is absent", what, errInconsistent)
	}
	return info, err
}

func itemText(space, item string) string { return fmt.Sprintf("item %q in space %q", item, space) }

// absenceError returns the error for an absent item, after it has checked whether the space or the bucket is absent.
func (s *Store) absenceError(ctx context.Context, space string, err error) error {
	if !isAbsent(err) {
		return err
	}
	if serr := s.requireSpace(ctx, space); serr != nil {
		return serr
	}
	if errors.Is(err, storage.ErrNotFound) {
		return err
	}
	return s.translate(ctx, aBucket, "stat the bucket",
		minio.ErrorResponse{StatusCode: http.StatusNotFound, Code: "NoSuchBucket"})
}

// Open implements storage.Store.
func (s *Store) Open(ctx context.Context, space, item, pinned string) (io.ReadCloser, storage.Object, error) {
	bucket, key, err := s.itemKey(space, item)
	if err != nil {
		return nil, storage.Object{}, err
	}
	what := "open " + itemText(space, item)
	body, info, err := s.openAt(ctx, what, location{bucket, key}, pinned)
	if err != nil {
		ref := storage.Ref{Space: space, Item: item, Version: pinned}
		return nil, storage.Object{}, s.openError(ctx, ref, err)
	}
	o, err := s.object(space, item, info)
	if err == nil && pinned != "" && o.Version != pinned { // the service ignores If-Match and versionId
		err = fmt.Errorf("%s: got version %q, want %q: %w", what, o.Version, pinned, storage.ErrChanged)
	}
	if err != nil {
		body.Close()
		return nil, storage.Object{}, err
	}
	return body, o, nil
}

// openAt opens an object. It requests the first range, which also returns the size of the object. The rest of a large
// object is read in parallel ranges of the same version.
func (s *Store) openAt(
	ctx context.Context, what string, at location, pinned string,
) (io.ReadCloser, minio.ObjectInfo, error) {
	first := s.cfg.PartBytes
	body, info, err := s.getRange(ctx, at, pinned, readPlan{remaining: first})
	if errors.Is(err, errRange) { // it is empty
		body, info, err = s.getRange(ctx, at, pinned, readPlan{remaining: -1})
	}
	if err != nil {
		return nil, info, fmt.Errorf("%s: %w", what, err)
	}
	opened := version(info)
	pinned = cmp.Or(pinned, opened) // the id "null" of a version from before versioning is not in version
	again := func(ctx context.Context, from, n int64) (io.ReadCloser, error) {
		b, got, err := s.getRange(ctx, at, pinned, readPlan{offset: from, remaining: n})
		if err == nil && (got.ETag != info.ETag || version(got) != opened) {
			b.Close()
			err = fmt.Errorf("got version %q, want %q: %w", version(got), opened, storage.ErrChanged)
		}
		return b, err
	}
	head := &retryReader{ctx: ctx, body: body, remaining: min(info.Size, first), open: again, what: what}
	if info.Size <= first {
		return head, info, nil
	}
	rest := readPlan{first, info.Size - first, s.cfg.PartBytes, s.cfg.parallel}
	openRange := func(ctx context.Context, from, n int64) (io.ReadCloser, error) {
		return &retryReader{ctx: ctx, offset: from, remaining: n, open: again, what: what}, nil
	}
	return newParallelReader(ctx, head, rest, s.readBuffers, openRange), info, nil
}

// getRange opens c.remaining bytes at c.offset, or fewer if the object ends before; the whole object if c.remaining is
// negative. The info is about the whole object.
func (s *Store) getRange(
	ctx context.Context, of location, version string, c readPlan,
) (io.ReadCloser, minio.ObjectInfo, error) {
	o := s.getOptions()
	err := pin(&o, version)
	if c.remaining >= 0 {
		err = errors.Join(err, o.SetRange(c.offset, c.offset+c.remaining-1))
	}
	if err != nil {
		return nil, minio.ObjectInfo{}, retry.Permanent(err)
	}
	body, info, header, err := s.getObject(ctx, of, o)
	if err != nil {
		return nil, info, s.translate(ctx, anItem, "read", err)
	}
	contentRange := header.Get("Content-Range")
	if contentRange == "" && c.offset == 0 {
		return body, info, nil
	}
	if contentRange == "" {
		err = fmt.Errorf("read from byte %d: the service ignores ranges: %w", c.offset, storage.ErrUnsupported)
	} else if from, size, ok := parseContentRange(contentRange); ok && from == c.offset {
		info.Size = size
	} else {
		err = fmt.Errorf("read from byte %d: the service returned range %q", c.offset, contentRange)
	}
	if err != nil {
		body.Close()
		return nil, info, err
	}
	return body, info, nil
}

// parseContentRange returns the first byte and the size of the whole object in "bytes 0-9/100".
func parseContentRange(text string) (from, size int64, ok bool) {
	text, isBytes := strings.CutPrefix(text, "bytes ")
	first, rest, _ := strings.Cut(text, "-")
	_, all, _ := strings.Cut(rest, "/")
	from, ferr := strconv.ParseInt(first, 10, 64)
	size, serr := strconv.ParseInt(all, 10, 64)
	return from, size, isBytes && ferr == nil && serr == nil
}

// openError returns the error of an Open: the item may be archived, absent, or have another version.
func (s *Store) openError(ctx context.Context, ref storage.Ref, err error) error {
	noVersion := errors.Is(err, storage.ErrNotFound) || errors.Is(err, errInvalidArgument)
	if ref.Version != "" && noVersion && !strings.HasPrefix(ref.Version, `"`) {
		// The version is absent or not a version id. The item may exist in another version.
		switch o, serr := s.Stat(ctx, ref.Space, ref.Item); {
		case serr == nil && o.Version != ref.Version:
			return fmt.Errorf("%s: version %q: %w", itemText(ref.Space, ref.Item), ref.Version, storage.ErrChanged)
		case isAbsent(serr):
			return serr
		}
	}
	if isAbsent(err) {
		return s.absenceError(ctx, ref.Space, err)
	}
	bucket, key, lerr := s.layout.item(ref.Space, ref.Item)
	if lerr != nil {
		return lerr
	}
	return s.requestRestore(ctx, "read "+itemText(ref.Space, ref.Item), location{bucket, key}, ref.Version, err)
}
