package s3

import (
	"context"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/millrace/millrace/streams/storage"
)

// List implements storage.Store.
func (s *Store) List(ctx context.Context, space, after string) iter.Seq2[storage.Object, error] {
	return storage.Sorted(after, func(yield func(storage.Object, error) bool) {
		bucket, prefix, err := s.layout.space(space)
		if err == nil {
			err = s.requireSpace(ctx, space)
		}
		if err != nil {
			yield(storage.Object{}, err)
			return
		}
		ctx, cancel := context.WithCancel(withListing(ctx))
		defer cancel()
		o := minio.ListObjectsOptions{Prefix: prefix, Recursive: true, WithVersions: s.features.Load().Versions}
		if after != "" {
			o.StartAfter = s.listStart(prefix, after)
		}
		if s.cfg.RequesterPays {
			o.Set("x-amz-request-payer", "requester")
		}
		var last minio.ObjectInfo
		begun := after == ""
		for info := range s.core.ListObjectsIter(ctx, bucket, o) {
			if info.Err != nil {
				yield(storage.Object{}, s.translate(ctx, aBucket, fmt.Sprintf("list space %q", space), info.Err))
				return
			}
			if ctx.Err() != nil {
				break
			}
			if o.WithVersions && info.Key == last.Key && info.VersionID == last.VersionID {
				continue // versitygw repeats the last version of a page at the start of the next one
			}
			last = info
			if o.WithVersions && (!info.IsLatest || info.IsDeleteMarker) {
				continue
			}
			item, ok := strings.CutPrefix(info.Key, prefix)
			if !ok {
				yield(storage.Object{}, fmt.Errorf("list space %q: key %q is not below %q: %w",
					space, info.Key, prefix, storage.ErrListing))
				return
			}
			if !begun && item <= after {
				continue // some services include the start key, or cannot start at it
			}
			begun = true
			if err := storage.CheckItem(item); err != nil {
				s.cfg.Skipped(info.Key, err.Error())
				continue
			}
			if !yield(storage.Object{
				Item: item, Size: info.Size, Modified: info.LastModified.UTC().Truncate(time.Second),
				Version: version(info), ETag: info.ETag,
			}, nil) {
				return
			}
		}
		if ctx.Err() != nil { // the client ends its listing without an error
			yield(storage.Object{}, storage.ContextErr(ctx))
		}
	})
}
