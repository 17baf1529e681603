package s3

import (
	"fmt"
	"net/url"
	"strings"

	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// A layout maps spaces, items and the driver's own objects to buckets and keys.
//
// In one bucket:              With a bucket for each space:
//
//	<prefix><space>/<item>                 <bucket_prefix><space>: <item>
//	<prefix>.millrace/marker.json          <bucket_prefix>millrace: .millrace/marker.json
//	<prefix>.millrace/spaces/<space>       <bucket_prefix>millrace: .millrace/spaces/<space>
//	<prefix>.millrace/kept/<space>/...     <bucket_prefix>millrace: .millrace/kept/<space>/...
//
// <space> is the name with all bytes except letters, digits, '-', '_' and '.' as %XX; a leading '.' is %2E. The record
// of a space (spaces/<space>) holds its properties and ACL. A space also exists without a record if it has keys.
type layout struct {
	bucket, prefix string // of all spaces; an empty bucket means one bucket per space
	bucketPrefix   string
}

// A location is the bucket and the key of an object.
type location struct{ bucket, key string }

const (
	controlPrefix = ".millrace/"
	controlBucket = "millrace" // preceded by the bucket prefix
)

func newLayout(c Config) layout {
	if c.Prefix != "" && !strings.HasSuffix(c.Prefix, "/") {
		c.Prefix += "/"
	}
	return layout{c.Bucket, c.Prefix, c.BucketPrefix}
}

// ItemAt returns the item at a key of a store with these settings. known reports whether the bucket belongs to the
// store. is is false if the key is not that of an item: it belongs to the driver, or to no space.
func ItemAt(c Config, bucket, key string) (space, item string, is, known bool) {
	l := newLayout(c)
	if l.bucket == "" {
		space, known = strings.CutPrefix(bucket, l.bucketPrefix)
		known = known && space != ""
		return space, key, known && space != controlBucket && isItem(space, key), known
	}
	if bucket != l.bucket {
		return "", "", false, false
	}
	rest, below := strings.CutPrefix(key, l.prefix)
	piece, item, cut := strings.Cut(rest, "/")
	space, ok := unescape(piece)
	return space, item, below && cut && ok && !strings.HasPrefix(rest, controlPrefix) && isItem(space, item), true
}

func isItem(space, item string) bool {
	return storage.CheckSpace(space) == nil && storage.CheckItem(item) == nil
}

// control returns the bucket and the key prefix of the driver's own objects.
func (l layout) control() (bucket, prefix string) {
	if l.bucket == "" {
		return l.bucketPrefix + controlBucket, controlPrefix
	}
	return l.bucket, l.prefix + controlPrefix
}

// space returns the bucket and the key prefix of a space.
func (l layout) space(name string) (bucket, prefix string, err error) {
	if err := storage.CheckSpace(name); err != nil {
		return "", "", retry.Permanent(err)
	}
	if l.bucket != "" {
		return l.bucket, l.prefix + escape(name) + "/", nil
	}
	if name == controlBucket && l.bucketPrefix != "" || !isBucket(l.bucketPrefix+name) {
		return "", "", retry.Permanent(fmt.Errorf("space %q: %q cannot be the name of a bucket: %w",
			name, l.bucketPrefix+name, storage.ErrName))
	}
	return l.bucketPrefix + name, "", nil
}

// item returns the bucket and the key of an item.
func (l layout) item(space, item string) (bucket, key string, err error) {
	bucket, prefix, err := l.space(space)
	if err != nil {
		return "", "", err
	}
	if err := storage.CheckItem(item); err != nil {
		return "", "", retry.Permanent(err)
	}
	if key = prefix + item; len(key) > storage.MaxItemID {
		return "", "", retry.Permanent(fmt.Errorf("key of %d bytes for item %q is longer than the %d that S3 allows: %w",
			len(key), item, storage.MaxItemID, storage.ErrName))
	}
	return bucket, key, nil
}

// isBucket reports whether S3 allows the name of a bucket.
func isBucket(name string) bool {
	if len(name) < 3 || len(name) > 63 {
		return false
	}
	for i, c := range []byte(name) {
		plain := c >= 'a' && c <= 'z' || c >= '0' && c <= '9'
		inner := i > 0 && i < len(name)-1 &&
			(c == '-' && name[i-1] != '.' || c == '.' && name[i-1] != '.' && name[i-1] != '-')
		if !plain && !inner {
			return false
		}
	}
	return true
}

// escape encodes the name of a space as a segment of a key.
func escape(name string) string {
	var b strings.Builder
	for i, c := range []byte(name) {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.' && i > 0 {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

// unescape is the inverse of escape. ok is false if escape does not return the segment for any name.
func unescape(piece string) (name string, ok bool) {
	name, err := url.PathUnescape(piece)
	return name, err == nil && storage.CheckSpace(name) == nil && escape(name) == piece
}
