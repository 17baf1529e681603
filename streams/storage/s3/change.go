package s3

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// SetProperties implements storage.Store. The service writes the object again by copying it onto itself: it has another
// time then, and another version if there are versions. It returns ErrUnsupported for an object that one request cannot
// copy: parts are completed without a condition on what they replace, so they could overwrite a later Put.
func (s *Store) SetProperties(ctx context.Context, space, item string, p storage.Properties, c storage.Condition) (storage.Object, error) {
	if s.cfg.ReadOnly {
		return storage.Object{}, retry.Permanent(storage.ErrReadOnly)
	}
	bucket, key, err := s.place(space, item)
	if err != nil {
		return storage.Object{}, err
	}
	info, err := s.stat(ctx, space, item, spot{bucket, key})
	if err != nil {
		return storage.Object{}, err
	}
	o, err := s.object(space, item, info)
	if err != nil {
		return storage.Object{}, err
	}
	what := "set properties of " + named(space, item)
	if err := c.Check(o, true); err != nil {
		return storage.Object{}, fmt.Errorf("%s: %w", what, err)
	}
	if o.Size > maxSingle {
		return storage.Object{}, retry.Permanent(fmt.Errorf("%s: it has %d bytes, and one request copies at most %d: %w",
			what, o.Size, int64(maxSingle), storage.ErrUnsupported))
	}
	meta, contentType, err := encode(p, o.Digests, o.Size, originalText(space, item, o.Original))
	if err != nil {
		return storage.Object{}, fmt.Errorf("%s: %w", what, err)
	}
	// What the copy is of is pinned by its ETag, whether or not the caller has a condition.
	at := spot{bucket, key}
	err = s.copy(ctx, source{at, o}, at, &heading{meta, contentType, others(info)})
	if errors.Is(err, errArchived) { // its return would cost more than its properties are worth
		return storage.Object{}, retry.Permanent(fmt.Errorf("%s: %w, and the service copies it to do so: %w", what, errArchived, storage.ErrUnsupported))
	}
	if err != nil {
		return storage.Object{}, fmt.Errorf("%s: %w", what, err)
	}
	if info, err = s.written(ctx, at, s.getOptions(), fmt.Sprintf("item %q", item)); err != nil {
		return storage.Object{}, err
	}
	return s.object(space, item, info)
}

// A source is an object that the service copies.
type source struct {
	spot
	o storage.Object
}

// A heading is what an object gets beside its bytes.
type heading struct {
	meta        map[string]string
	contentType string
	others      minio.PutObjectOptions // headers that millrace knows nothing of, and leaves as they are
}

// others are what else another program may have given to an object: writing its properties anew would drop it.
func others(info minio.ObjectInfo) minio.PutObjectOptions {
	h := info.Headers
	o := minio.PutObjectOptions{
		CacheControl: h.Get("Cache-Control"), ContentDisposition: h.Get("Content-Disposition"), ContentEncoding: encodings(h.Get("Content-Encoding")),
		ContentLanguage: h.Get("Content-Language"), StorageClass: h.Get("X-Amz-Storage-Class"),
		WebsiteRedirectLocation: h.Get("X-Amz-Website-Redirect-Location"),
	}
	if at, err := http.ParseTime(h.Get("Expires")); err == nil {
		o.Expires = at
	}
	return o
}

// encodings leaves out how an object was sent, which some services keep.
func encodings(list string) string {
	all := strings.Split(list, ",")
	for i := range all {
		all[i] = strings.TrimSpace(all[i])
	}
	return strings.Join(slices.DeleteFunc(all, func(one string) bool { return one == "aws-chunked" }), ", ")
}

// copy has the service copy an object if it is the one that was seen. Without a heading it keeps its own. The object
// is not larger than maxSingle.
func (s *Store) copy(ctx context.Context, from source, to spot, with *heading) error {
	h := map[string]string{"x-amz-copy-source-if-match": `"` + from.o.ETag + `"`}
	var kept heading
	if with != nil {
		kept.others = with.others
		h["x-amz-metadata-directive"] = "REPLACE"
		h["Content-Type"] = with.contentType
		for name, v := range with.meta {
			h["x-amz-meta-"+name] = v
		}
	}
	for name, v := range s.putOptions(kept).Header() {
		if name = strings.ToLower(name); name != "content-type" {
			h[name] = v[0]
		}
	}
	_, err := s.core.CopyObject(ctx, from.bucket, from.key, to.bucket, to.key, h, minio.CopySrcOptions{}, minio.PutObjectOptions{})
	return s.translate(ctx, anItem, "copy", err)
}

// copyParts copies an object that is larger than maxSingle to a key that no other write uses.
func (s *Store) copyParts(ctx context.Context, from source, to spot) error {
	meta, contentType, err := encode(from.o.Properties, from.o.Digests, from.o.Size, "")
	if err != nil {
		return err
	}
	u, err := s.begin(ctx, to, heading{meta: meta, contentType: contentType})
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			u.abort(ctx)
		} else {
			u.done(ctx)
		}
	}()
	size := partSize(1<<30, from.o.Size)
	for n, at := 1, int64(0); at < from.o.Size; n, at = n+1, at+size {
		same := func(err error) bool { return !errors.Is(err, storage.ErrChanged) }
		err = again(ctx, partTries, same, func() (err error) {
			u.parts[n], err = u.copyPart(ctx, from, n, at, min(size, from.o.Size-at))
			return err
		})
		if err != nil {
			return err
		}
		retry.Alive(ctx)
	}
	_, _, err = u.complete(ctx, nil, unfound)
	return err
}

// unfound is for an upload of which nobody knows the bytes.
func unfound() (minio.UploadInfo, bool) { return minio.UploadInfo{}, false }

// keep copies what is there out of the way, where the bucket does not keep it by itself.
func (s *Store) keep(ctx context.Context, space, item string, o storage.Object) error {
	// A version without an id is replaced for good: it is from before there were versions, or from when they were suspended.
	if s.facts.Load().Versions && o.Version != "" && !strings.HasPrefix(o.Version, `"`) {
		return nil
	}
	from, key, err := s.place(space, item)
	if err != nil {
		return err
	}
	bucket, prefix := s.layout.control()
	name := fmt.Sprintf("%skept/%s/%s/%s-%s", prefix, escape(space), digestOf(item), s.cfg.now().UTC().Format(keptTime), o.ETag)
	what := "keep what was there of " + named(space, item)
	seen, to := source{spot{from, key}, o}, spot{bucket, name}
	if o.Size > maxSingle {
		err = s.copyParts(ctx, seen, to)
	} else {
		err = s.copy(ctx, seen, to, nil)
	}
	if err != nil {
		return s.bringBack(ctx, what, spot{from, key}, o.Version, fmt.Errorf("%s: %w", what, err))
	}
	return nil
}

// digestOf names an item where its id might be too long.
func digestOf(item string) string {
	sum := sha256.Sum256([]byte(item))
	return hex.EncodeToString(sum[:])
}

// Delete implements storage.Store.
func (s *Store) Delete(ctx context.Context, space, item string, d storage.DeleteOptions) (storage.Deleted, error) {
	if s.cfg.ReadOnly {
		return storage.Deleted{}, retry.Permanent(storage.ErrReadOnly)
	}
	bucket, key, err := s.place(space, item)
	if err != nil {
		return storage.Deleted{}, err
	}
	o, err := s.Stat(ctx, space, item)
	if err != nil {
		return storage.Deleted{}, err
	}
	what := "delete " + named(space, item)
	if err := d.Check(o, true); err != nil {
		return storage.Deleted{}, fmt.Errorf("%s: %w", what, err)
	}
	if d.Keep {
		if err := s.keep(ctx, space, item, o); err != nil {
			return storage.Deleted{}, err
		}
	}
	var when []string
	if s.facts.Load().DeleteMatch { // what was seen is what goes, condition or not
		when = []string{"If-Match", `"` + o.ETag + `"`}
	}
	ctx, answer := noted(ctx, when...)
	err = s.translate(ctx, anItem, what, s.core.RemoveObject(ctx, bucket, key, minio.RemoveObjectOptions{}))
	if err != nil {
		return storage.Deleted{}, err
	}
	at := answer.answered()
	if at.IsZero() {
		at = s.cfg.now()
	}
	return storage.Deleted{Object: o, Time: at.UTC().Truncate(time.Second)}, nil
}

// A place is where an object lies, for a copy by the service.
type place struct {
	endpoint string
	source
}

// Locate implements storage.Locator.
func (s *Store) Locate(ctx context.Context, ref storage.Ref) (storage.Place, error) {
	bucket, key, err := s.place(ref.Space, ref.Item)
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
	return storage.Place{Kind: "s3", Object: o, At: place{s.cfg.Endpoint, source{spot{bucket, key}, o}}, Close: func() error { return nil }}, nil
}
