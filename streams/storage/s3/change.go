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

// SetProperties implements storage.Store. It always fails: S3 stores properties with the bytes, and copying an object
// onto itself could overwrite a concurrent Put.
func (s *Store) SetProperties(
	_ context.Context, space, item string, _ storage.Properties, _ storage.Condition,
) (storage.Object, error) {
	err := storage.ErrUnsupported
	if s.cfg.ReadOnly {
		err = storage.ErrReadOnly
	}
	err = retry.Permanent(fmt.Errorf("set properties of %s: %w", itemText(space, item), err))
	return storage.Object{}, storage.NotApplied(err)
}

// A copySource is an object that the service copies.
type copySource struct {
	location
	object storage.Object
}

// objectHeaders are the user metadata and the content type of an object.
type objectHeaders struct {
	meta        map[string]string
	contentType string
}

// copy makes the service copy an object with its metadata, if it still has the ETag of from. The object must not be
// larger than maxSingle.
func (s *Store) copy(ctx context.Context, from copySource, to location) error {
	h := map[string]string{"x-amz-copy-source-if-match": `"` + from.object.ETag + `"`}
	for name, v := range s.putOptions(objectHeaders{}).Header() {
		if name = strings.ToLower(name); name != "content-type" {
			h[name] = v[0]
		}
	}
	_, err := s.core.CopyObject(ctx, from.bucket, from.key, to.bucket, to.key, h,
		minio.CopySrcOptions{}, minio.PutObjectOptions{})
	return s.translate(ctx, anItem, "copy", err)
}

// copyParts makes the service copy an object that is larger than maxSingle, to a key that no other write uses.
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
	defer func() { // also after a panic of the transport
		if completed {
			u.finish(ctx)
		} else {
			u.abort(ctx)
		}
	}()
	size := firstPartSize(1<<30, from.object.Size)
	for n, at := 1, int64(0); at < from.object.Size; n, at = n+1, at+size {
		unchanged := func(err error) bool { return !errors.Is(err, storage.ErrChanged) }
		err = retryWhile(ctx, partRetry, unchanged, func() (err error) {
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

// notVerified is the argument of upload.complete for an upload that cannot be verified by its digests.
func notVerified() (minio.UploadInfo, bool) { return minio.UploadInfo{}, false }

// quarantine copies the current object below .millrace/kept/, unless the bucket keeps it as a version.
func (s *Store) quarantine(ctx context.Context, space, item string, o storage.Object) error {
	// An object without a version id is lost when it is replaced: it was written before versioning was enabled, or while
	// it was suspended.
	if s.features.Load().Versions && o.Version != "" && !strings.HasPrefix(o.Version, `"`) {
		return nil
	}
	from, key, err := s.itemKey(space, item)
	if err != nil {
		return err
	}
	what := "quarantine " + itemText(space, item)
	to := s.quarantined(space, item)
	to.key += s.cfg.now().UTC().Format(quarantineTime) + "-" + o.ETag
	seen := copySource{location{from, key}, o}
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

// hashName returns the SHA-256 of an item's id, in hex, for keys in which the id might be too long.
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
	var conditions []string
	if s.features.Load().DeleteMatch { // delete only the object that was checked, even without a condition
		conditions = []string{"If-Match", `"` + o.ETag + `"`}
	}
	ctx, response := withHeaders(ctx, conditions...)
	err = s.core.RemoveObject(ctx, at.bucket, at.key, minio.RemoveObjectOptions{})
	if err = s.translate(ctx, anItem, "delete "+itemText(space, item), err); err != nil {
		return storage.Deleted{}, s.deleteError(ctx, space, item, o, err)
	}
	gone := response.responseDate()
	if gone.IsZero() {
		gone = s.cfg.now()
	}
	gone = gone.UTC().Truncate(time.Second)
	if gone.Before(o.Modified) { // a service may send a Date that is up to a second old, as fasthttp does
		gone = o.Modified
	}
	return storage.Deleted{Object: o, Time: gone}, nil
}

// deleteError returns the error of a failed delete, marked with storage.NotApplied if the service refused it. A refusal
// because the item is absent or changed may be the effect of the same delete, repeated by a proxy; it is marked only if
// the item is unchanged.
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

// prepareDelete checks the object to be deleted, and quarantines it if d.KeepDeleted is set.
func (s *Store) prepareDelete(
	ctx context.Context, space, item string, d storage.DeleteOptions,
) (o storage.Object, at location, err error) {
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
	if d.KeepDeleted {
		err = s.quarantine(ctx, space, item, o)
	}
	return o, at, err
}

// A locator identifies an object for a copy by the service.
type locator struct {
	endpoint string
	copySource
}

// Locate implements storage.Locator.
func (s *Store) Locate(ctx context.Context, ref storage.Ref) (storage.Location, error) {
	bucket, key, err := s.itemKey(ref.Space, ref.Item)
	if err != nil {
		return storage.Location{}, err
	}
	o, err := s.Stat(ctx, ref.Space, ref.Item)
	if err == nil {
		err = storage.Condition{Version: ref.Version}.Check(o, true)
	}
	if err != nil {
		return storage.Location{}, err
	}
	at := locator{s.cfg.Endpoint, copySource{location{bucket, key}, o}}
	return storage.Location{Kind: "s3", Object: o, Handle: at, Close: func() error { return nil }}, nil
}
