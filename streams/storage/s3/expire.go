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

var _ storage.Tidier = (*Store)(nil)

// keptTime is when something was kept, as keep has it in the key: kept/SPACE/DIGEST/TIME-ETAG.
const quarantineTime = "20060102T150405.000000000Z"

// Tidy implements storage.Tidier: it ends the uploads that Sweep would, in all spaces, and removes what is kept. Old
// versions are the bucket's own affair: its lifecycle rules expire them.
func (s *Store) Tidy(ctx context.Context, o storage.TidyOptions) (done storage.Tidied, err error) {
	if s.cfg.ReadOnly {
		return done, retry.Permanent(storage.ErrReadOnly)
	}
	if !o.Shared { // whose uploads they are nobody says
		err = s.expireUploads(ctx, o, &done)
	}
	if ctx.Err() != nil {
		return done, storage.Ended(ctx)
	}
	if !o.Kept.IsZero() {
		err = errors.Join(err, s.expireQuarantine(ctx, o, &done))
	}
	return done, err
}

// tidyUploads ends the uploads of dead processes in all spaces.
func (s *Store) expireUploads(ctx context.Context, o storage.TidyOptions, done *storage.Tidied) error {
	names, err := s.spaceNames(ctx)
	if err != nil {
		return err
	}
	for _, name := range names {
		if _, _, err := s.layout.space(name); err != nil {
			continue // a bucket that is no space of ours
		}
		ended, serr := s.abortStaleUploads(ctx, name)
		if ended > 0 {
			done.Add(o, storage.Tidied{Uploads: int64(ended)})
		}
		// A service that does not list uploads has none to end, or ends them by itself.
		if serr != nil && !isAbsent(serr) && !errors.Is(serr, storage.ErrUnsupported) {
			err = errors.Join(err, serr)
		}
		if ctx.Err() != nil {
			return storage.Ended(ctx)
		}
	}
	return err
}

// tidyKept removes what was kept of what was replaced or deleted.
func (s *Store) expireQuarantine(ctx context.Context, o storage.TidyOptions, done *storage.Tidied) error {
	bucket, own := s.layout.control()
	what := fmt.Sprintf("list what is kept in bucket %q", bucket)
	for info := range s.core.ListObjectsIter(withListing(ctx), bucket, minio.ListObjectsOptions{Prefix: own + "kept/", Recursive: true}) {
		if info.Err != nil {
			return s.translate(ctx, aBucket, what, info.Err)
		}
		if at, ok := quarantinedAt(info.Key); !ok || !at.Before(o.Kept) {
			continue
		}
		if err := s.deleteControl(ctx, strings.TrimPrefix(info.Key, own)); err != nil && !isAbsent(err) {
			return err
		}
		done.Add(o, storage.Tidied{Kept: 1, Bytes: info.Size})
	}
	if ctx.Err() != nil {
		return storage.Ended(ctx)
	}
	return nil
}

// keptAt says when what lies at a key was kept; not ok: it was not keep that named it.
func quarantinedAt(key string) (at time.Time, ok bool) {
	text, etag, ok := strings.Cut(path.Base(key), "-")
	at, err := time.Parse(quarantineTime, text)
	return at, ok && err == nil && etag != ""
}
