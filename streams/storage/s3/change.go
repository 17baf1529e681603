package s3

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// SetProperties implements storage.Store: S3 keeps properties with the bytes, and a copy of an object onto itself could
// overwrite a Put of that moment.
func (s *Store) SetProperties(_ context.Context, space, item string, _ storage.Properties, _ storage.Condition) (storage.Object, error) {
	err := storage.ErrUnsupported
	if s.cfg.ReadOnly {
		err = storage.ErrReadOnly
	}
	return storage.Object{}, storage.NotApplied(retry.Permanent(fmt.Errorf("set properties of %s: %w", itemText(space, item), err)))
}

// A source is an object that the service copies.
type copySource struct {
	location
	object storage.Object
}

// A heading is what an object gets beside its bytes.
type objectHeaders struct {
	meta        map[string]string
	contentType string
}

// copy has the service copy an object, with what it has beside its bytes, if it is the one that was seen. The object is
// not larger than maxSingle.
func (s *Store) copy(ctx context.Context, from copySource, to location) error {
	h := map[string]string{"x-amz-copy-source-if-match": `"` + from.object.ETag + `"`}
	for name, v := range s.putOptions(objectHeaders{}).Header() {
		if name = strings.ToLower(name); name != "content-type" {
			h[name] = v[0]
		}
	}
	_, err := s.core.CopyObject(ctx, from.bucket, from.key, to.bucket, to.key, h, minio.CopySrcOptions{}, minio.PutObjectOptions{})
	return s.translate(ctx, anItem, "copy", err)
}

// copyParts copies an object that is larger than maxSingle to a key that no other write uses.
func (s *Store) copyParts(ctx context.Context, from copySource, to location) error {
	meta, contentType, err := encode(from.object.Properties, from.object.Digests, from.object.Size, "")
	if err != nil {
		return err
	}
	u, err := s.begin(ctx, to, objectHeaders{meta: meta, contentType: contentType})
	if err != nil {
		return err
	}
	completed := false
	defer func() { // also if the transport panics
		if completed {
			u.finish(ctx)
		} else {
			u.abort(ctx)
		}
	}()
	size := firstPartSize(1<<30, from.object.Size)
	for n, at := 1, int64(0); at < from.object.Size; n, at = n+1, at+size {
		same := func(err error) bool { return !errors.Is(err, storage.ErrChanged) }
		err = retryWhile(ctx, partRetry, same, func() (err error) {
			u.parts[n], err = u.copyPart(ctx, from, n, at, min(size, from.object.Size-at))
			return err
		})
		if err != nil {
			return err
		}
		retry.Alive(ctx)
	}
	_, _, err = u.complete(ctx, nil, notVerified)
	completed = err == nil
	return err
}

// unfound is for an upload of which nobody knows the bytes.
func notVerified() (minio.UploadInfo, bool) { return minio.UploadInfo{}, false }

// keep copies what is there out of the way, where the bucket does not keep it by itself.
func (s *Store) quarantine(ctx context.Context, space, item string, o storage.Object) error {
	// A version without an id is replaced for good: it is from before there were versions, or from when they were suspended.
	if s.features.Load().Versions && o.Version != "" && !strings.HasPrefix(o.Version, `"`) {
		return nil
	}
	from, key, err := s.itemKey(space, item)
	if err != nil {
		return err
	}
	bucket, prefix := s.layout.control()
	name := fmt.Sprintf("%skept/%s/%s/%s-%s", prefix, escape(space), hashName(item), s.cfg.now().UTC().Format(quarantineTime), o.ETag)
	what := "keep what was there of " + itemText(space, item)
	seen, to := copySource{location{from, key}, o}, location{bucket, name}
	if o.Size > maxSingle {
		err = s.copyParts(ctx, seen, to)
	} else {
		err = s.copy(ctx, seen, to)
	}
	if err != nil {
		return s.requestRestore(ctx, what, location{from, key}, o.Version, fmt.Errorf("%s: %w", what, err))
	}
	return nil
}

// digestOf names an item where its id might be too long.
func hashName(item string) string {
	sum := sha256.Sum256([]byte(item))
	return hex.EncodeToString(sum[:])
}

// Delete implements storage.Store.
func (s *Store) Delete(ctx context.Context, space, item string, d storage.DeleteOptions) (storage.Deleted, error) {
	o, at, err := s.prepareDelete(ctx, space, item, d)
	if err != nil {
		return storage.Deleted{}, storage.NotApplied(err)
	}
	var when []string
	if s.features.Load().DeleteMatch { // what was seen is what goes, condition or not
		when = []string{"If-Match", `"` + o.ETag + `"`}
	}
	ctx, answer := withHeaders(ctx, when...)
	err = s.core.RemoveObject(ctx, at.bucket, at.key, minio.RemoveObjectOptions{})
	if err = s.translate(ctx, anItem, "delete "+itemText(space, item), err); err != nil {
		return storage.Deleted{}, s.deleteError(ctx, space, item, o, err)
	}
	gone := answer.responseDate()
	if gone.IsZero() {
		gone = s.cfg.now()
	}
	return storage.Deleted{Object: o, Time: gone.UTC().Truncate(time.Second)}, nil
}

// kept returns the error of a delete that failed, marked if the service has refused it. That the item is gone or is another
// may be the effect of that same delete, which a proxy has repeated: then the item must be there as it was.
func (s *Store) deleteError(ctx context.Context, space, item string, was storage.Object, err error) error {
	switch rejectionOf(err) {
	case maybeApplied:
		return err
	case rejectedOrRepeated:
		o, serr := s.Stat(ctx, space, item)
		if serr != nil || o.Version != was.Version || !o.Modified.Equal(was.Modified) {
			return err
		}
	}
	return storage.NotApplied(err)
}

// beforeDelete looks at what is to be deleted, and keeps it if that is asked for.
func (s *Store) prepareDelete(ctx context.Context, space, item string, d storage.DeleteOptions) (o storage.Object, at location, err error) {
	if s.cfg.ReadOnly {
		return o, at, retry.Permanent(storage.ErrReadOnly)
	}
	if at.bucket, at.key, err = s.itemKey(space, item); err != nil {
		return o, at, err
	}
	if o, err = s.Stat(ctx, space, item); err != nil {
		return o, at, err
	}
	if err := d.Check(o, true); err != nil {
		return o, at, fmt.Errorf("delete %s: %w", itemText(space, item), err)
	}
	if d.Keep {
		err = s.quarantine(ctx, space, item, o)
	}
	return o, at, err
}

// A place is where an object lies, for a copy by the service.
type locator struct {
	endpoint string
	copySource
}

// Locate implements storage.Locator.
func (s *Store) Locate(ctx context.Context, ref storage.Ref) (storage.Place, error) {
	bucket, key, err := s.itemKey(ref.Space, ref.Item)
	if err != nil {
		return storage.Place{}, err
	}
	o, err := s.Stat(ctx, ref.Space, ref.Item)
	if err == nil {
		err = storage.Condition{Version: ref.Version}.Check(o, true)
	}
	if err != nil {
		return storage.Place{}, err
	}
	return storage.Place{Kind: "s3", Object: o, At: locator{s.cfg.Endpoint, copySource{location{bucket, key}, o}}, Close: func() error { return nil }}, nil
}
