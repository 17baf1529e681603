package s3

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

var _ storage.Expirer = (*Store)(nil)

// quarantineTime is the format of the time in the key of a quarantined object: kept/SPACE/DIGEST/TIME-ETAG.
const quarantineTime = "20060102T150405.000000000Z"

// Expire implements storage.Expirer. It aborts stale uploads and removes quarantined objects. Old versions are
// left to the lifecycle rules of the bucket.
func (s *Store) Expire(ctx context.Context, o storage.ExpireOptions) (done storage.Expired, err error) {
	if s.cfg.ReadOnly {
		return done, retry.Permanent(storage.ErrReadOnly)
	}
	if !o.Shared { // uploads do not record the program that began them
		err = s.expireUploads(ctx, o, &done)
	}
	if ctx.Err() != nil {
		return done, storage.ContextErr(ctx)
	}
	if !o.RetainedBefore.IsZero() {
		err = errors.Join(err, s.expireQuarantine(ctx, o, &done))
	}
	return done, err
}

// expireUploads aborts stale uploads in all spaces, and those of quarantined objects and of probes.
func (s *Store) expireUploads(ctx context.Context, o storage.ExpireOptions, done *storage.Expired) error {
	names, err := s.spaceNames(ctx)
	if err != nil {
		return err
	}
	bucket, own := s.layout.control()
	places := []location{{bucket, own}}
	for _, name := range names {
		if bucket, prefix, err := s.layout.space(name); err == nil { // otherwise the bucket is not a space of this store
			places = append(places, location{bucket, prefix})
		}
	}
	for _, at := range places {
		retry.Alive(ctx)
		aborted, perr := s.abortStaleUploads(ctx, at.bucket, at.key)
		if aborted > 0 {
			done.Add(o, storage.Expired{Uploads: int64(aborted)})
		}
		// A service that does not list uploads does not support them, or expires them itself.
		if perr != nil && !isAbsent(perr) && !errors.Is(perr, storage.ErrUnsupported) {
			err = errors.Join(err, perr)
		}
		if ctx.Err() != nil {
			return storage.ContextErr(ctx)
		}
	}
	return err
}

// expireQuarantine removes quarantined objects older than o.RetainedBefore.
func (s *Store) expireQuarantine(ctx context.Context, o storage.ExpireOptions, done *storage.Expired) error {
	bucket, own := s.layout.control()
	what := fmt.Sprintf("list quarantined objects in bucket %q", bucket)
	listOptions := minio.ListObjectsOptions{Prefix: own + "kept/", Recursive: true}
	for info := range s.core.ListObjectsIter(withListing(ctx), bucket, listOptions) {
		retry.Alive(ctx)
		if info.Err != nil {
			return s.translate(ctx, aBucket, what, info.Err)
		}
		if at, ok := quarantinedAt(info.Key); !ok || !at.Before(o.RetainedBefore) {
			continue
		}
		if o.Hold != nil && o.Holds(quarantinedSpace(strings.TrimPrefix(info.Key, own))) {
			done.Add(o, storage.Expired{Held: 1})
			continue
		}
		if err := s.deleteControl(ctx, strings.TrimPrefix(info.Key, own)); err != nil && !isAbsent(err) {
			return err
		}
		done.Add(o, storage.Expired{Retained: 1, Bytes: info.Size})
	}
	if ctx.Err() != nil {
		return storage.ContextErr(ctx)
	}
	return nil
}

// quarantinedAt returns the time in the key of a quarantined object. ok is false if the driver did not write the key.
func quarantinedAt(key string) (at time.Time, ok bool) {
	text, etag, ok := strings.Cut(path.Base(key), "-")
	at, err := time.Parse(quarantineTime, text)
	return at, ok && err == nil && etag != ""
}

// quarantinedSpace returns the space in the key of a quarantined object, below the prefix of the driver's own objects;
// "" if there is none.
func quarantinedSpace(name string) string {
	piece, _, _ := strings.Cut(strings.TrimPrefix(name, "kept/"), "/")
	space, ok := unescape(piece)
	if !ok {
		return ""
	}
	return space
}
