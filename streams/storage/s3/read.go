package s3

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
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

// pin has a read be of one version.
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

// version returns what pins an object: its own version, or its ETag in quotes.
func version(info minio.ObjectInfo) string {
	if info.VersionID != "" && info.VersionID != "null" {
		return info.VersionID
	}
	return `"` + info.ETag + `"`
}

// object returns what the service tells of an item.
func (s *Store) object(space, item string, info minio.ObjectInfo) (storage.Object, error) {
	if info.ETag == "" {
		return storage.Object{}, notS3Error(fmt.Sprintf("look at item %q: it has no ETag", item))
	}
	p, own, err := decode(info)
	if err != nil {
		return storage.Object{}, fmt.Errorf("item %q: %w", item, err)
	}
	o := storage.Object{
		Item: item, Size: info.Size, Modified: info.LastModified.UTC().Truncate(time.Second), Version: version(info), ETag: info.ETag, Properties: p,
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
	ctx, answer := withHeaders(ctx)
	info, err := s.stat(ctx, space, item, location{bucket, key})
	if err != nil {
		return storage.Object{}, storage.Absent(err, answer.responseDate())
	}
	o, err := s.object(space, item, info)
	o.Seen = answer.responseDate()
	return o, err
}

// stat returns all that the service tells of an item, which lies there.
func (s *Store) stat(ctx context.Context, space, item string, at location) (minio.ObjectInfo, error) {
	info, err := s.head(ctx, at, s.getOptions())
	if err != nil {
		err = s.absenceError(ctx, space, s.translate(ctx, anItem, "look at "+itemText(space, item), err))
	}
	return info, err
}

// head asks for what is told of an object. An answer that has no body and does not say what it means is asked for once
// more, with one.
func (s *Store) head(ctx context.Context, at location, o minio.GetObjectOptions) (minio.ObjectInfo, error) {
	info, err := s.core.StatObject(ctx, at.bucket, at.key, o)
	if err == nil || !needsBody(err) {
		return info, err
	}
	return info, s.headError(ctx, at, o, err)
}

// reason asks by GET why HEAD was refused.
func (s *Store) headError(ctx context.Context, at location, o minio.GetObjectOptions, err error) error {
	if rerr := o.SetRange(0, 0); rerr != nil {
		return err
	}
	body, _, _, gerr := s.core.GetObject(ctx, at.bucket, at.key, o)
	if gerr == nil { // it may be read and not looked at
		body.Close()
		return err
	}
	return gerr
}

// written looks at an object that has just been written. That it is not there is no fact about the item: another may have
// deleted it at once, or it is the bucket that is not there.
func (s *Store) statWritten(ctx context.Context, at location, o minio.GetObjectOptions, what string) (minio.ObjectInfo, error) {
	what = "look at what was written: " + what
	info, err := s.head(ctx, at, o)
	if err != nil && isAbsent(s.translate(ctx, anItem, what, err)) {
		err = s.headError(ctx, at, o, err)
	}
	if err = s.translate(ctx, anItem, what, err); isAbsent(err) {
		return info, fmt.Errorf("%s: %w: it is not there", what, errInconsistent)
	}
	return info, err
}

func itemText(space, item string) string { return fmt.Sprintf("item %q in space %q", item, space) }

// absence tells the absence of an item from that of its space, and of the bucket of all.
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
	return s.translate(ctx, aBucket, "look for the bucket", minio.ErrorResponse{StatusCode: http.StatusNotFound, Code: "NoSuchBucket"})
}

// Open implements storage.Store. It asks for the first piece, whose answer says how large the object is. The rest of a
// large one is read in pieces side by side.
func (s *Store) Open(ctx context.Context, space, item, pinned string) (io.ReadCloser, storage.Object, error) {
	bucket, key, err := s.itemKey(space, item)
	if err != nil {
		return nil, storage.Object{}, err
	}
	what, at := "open "+itemText(space, item), location{bucket, key}
	first := s.cfg.PartBytes
	body, info, err := s.getRange(ctx, at, pinned, readPlan{remaining: first})
	if errors.Is(err, errRange) { // it is empty
		body, info, err = s.getRange(ctx, at, pinned, readPlan{remaining: -1})
	}
	if err != nil {
		return nil, storage.Object{}, s.openError(ctx, storage.Ref{Space: space, Item: item, Version: pinned}, fmt.Errorf("%s: %w", what, err))
	}
	o, err := s.object(space, item, info)
	if err == nil && pinned != "" && o.Version != pinned { // a service that pins nothing
		err = fmt.Errorf("%s: version %q came for %q: %w", what, o.Version, pinned, storage.ErrChanged)
	}
	if err != nil {
		body.Close()
		return nil, storage.Object{}, err
	}
	again := func(ctx context.Context, from, n int64) (io.ReadCloser, error) {
		b, got, err := s.getRange(ctx, at, o.Version, readPlan{offset: from, remaining: n})
		if err == nil && (got.ETag != o.ETag || version(got) != o.Version) {
			b.Close()
			err = fmt.Errorf("version %q came for %q: %w", version(got), o.Version, storage.ErrChanged)
		}
		return b, err
	}
	head := &retryReader{ctx: ctx, body: body, remaining: min(o.Size, first), open: again, what: what}
	if o.Size <= first {
		return head, o, nil
	}
	rest := readPlan{first, o.Size - first, s.cfg.PartBytes, s.cfg.parallel}
	return newParallelReader(ctx, head, rest, s.readBuffers, func(ctx context.Context, from, n int64) (io.ReadCloser, error) {
		return &retryReader{ctx: ctx, offset: from, remaining: n, open: again, what: what}, nil
	}), o, nil
}

// piece opens c.left bytes from c.at on, or less where the object ends; all of it where c.left is negative. The info tells
// of the whole object.
func (s *Store) getRange(ctx context.Context, of location, version string, c readPlan) (io.ReadCloser, minio.ObjectInfo, error) {
	o := s.getOptions()
	err := pin(&o, version)
	if c.remaining >= 0 {
		err = errors.Join(err, o.SetRange(c.offset, c.offset+c.remaining-1))
	}
	if err != nil {
		return nil, minio.ObjectInfo{}, retry.Permanent(err)
	}
	body, info, header, err := s.core.GetObject(ctx, of.bucket, of.key, o)
	if err != nil {
		return nil, info, s.translate(ctx, anItem, "read", err)
	}
	told := header.Get("Content-Range")
	if told == "" && c.offset == 0 {
		return body, info, nil
	}
	var from, to int64
	if told == "" {
		err = fmt.Errorf("read from byte %d: the service does not: %w", c.offset, storage.ErrUnsupported)
	} else if n, _ := fmt.Sscanf(told, "bytes %d-%d/%d", &from, &to, &info.Size); n != 3 || from != c.offset {
		err = fmt.Errorf("read from byte %d: the service gives %q", c.offset, told)
	}
	if err != nil {
		body.Close()
		return nil, info, err
	}
	return body, info, nil
}

// notRead says why an item cannot be opened: it may be archived, or absent, or not in the version asked for.
func (s *Store) openError(ctx context.Context, ref storage.Ref, err error) error {
	if ref.Version != "" && (errors.Is(err, storage.ErrNotFound) || errors.Is(err, errInvalidArgument)) && !strings.HasPrefix(ref.Version, `"`) {
		// The version is not there, or is no version's id at all; another may be there.
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
