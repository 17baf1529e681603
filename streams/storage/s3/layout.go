package s3

import (
	"fmt"
	"net/url"
	"strings"

	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// A layout says where spaces, items and what is the driver's own lie.
//
// In one bucket:              With a bucket for each space:
//
//	<prefix><space>/<item>                 <bucket_prefix><space>: <item>
//	<prefix>.millrace/marker.json          <bucket_prefix>millrace: .millrace/marker.json
//	<prefix>.millrace/spaces/<space>       <bucket_prefix>millrace: .millrace/spaces/<space>
//	<prefix>.millrace/kept/<space>/...     <bucket_prefix>millrace: .millrace/kept/<space>/...
//
// <space> is the name with all but letters, digits, '-', '_' and '.' as %XX; a '.' in front is %2E. A record of a
// space holds its properties and ACL; a space whose keys are there exists without one.
type layout struct {
	bucket, prefix string // of all spaces; bucket is empty: each has its own
	bucketPrefix   string
}

// A spot is where an object lies.
type location struct{ bucket, key string }

const (
	controlPrefix = ".millrace/"
	controlBucket = "millrace" // after the prefix of buckets
)

func newLayout(c Config) layout {
	if c.Prefix != "" && !strings.HasSuffix(c.Prefix, "/") {
		c.Prefix += "/"
	}
	return layout{c.Bucket, c.Prefix, c.BucketPrefix}
}

// ItemAt returns which item of a store of these settings a key is. known says that the bucket is the store's; not is: the key is
// none of an item, but the driver's own or nobody's.
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

// control returns where what is the driver's own lies.
func (l layout) control() (bucket, prefix string) {
	if l.bucket == "" {
		return l.bucketPrefix + controlBucket, controlPrefix
	}
	return l.bucket, l.prefix + controlPrefix
}

// space returns where a space's items lie.
func (l layout) space(name string) (bucket, prefix string, err error) {
	if err := storage.CheckSpace(name); err != nil {
		return "", "", retry.Permanent(err)
	}
	if l.bucket != "" {
		return l.bucket, l.prefix + escape(name) + "/", nil
	}
	if name == controlBucket || !isBucket(l.bucketPrefix+name) {
		return "", "", retry.Permanent(fmt.Errorf("space %q cannot be a bucket %q: %w", name, l.bucketPrefix+name, storage.ErrName))
	}
	return l.bucketPrefix + name, "", nil
}

// item returns an item's bucket and key.
func (l layout) item(space, item string) (bucket, key string, err error) {
	bucket, prefix, err := l.space(space)
	if err != nil {
		return "", "", err
	}
	if err := storage.CheckItem(item); err != nil {
		return "", "", retry.Permanent(err)
	}
	if key = prefix + item; len(key) > storage.MaxItemID {
		return "", "", retry.Permanent(fmt.Errorf("key of %d bytes for item %q is longer than the %d that S3 keeps: %w",
			len(key), item, storage.MaxItemID, storage.ErrName))
	}
	return bucket, key, nil
}

// isBucket says whether S3 allows a bucket's name.
func isBucket(name string) bool {
	if len(name) < 3 || len(name) > 63 {
		return false
	}
	for i, c := range []byte(name) {
		plain := c >= 'a' && c <= 'z' || c >= '0' && c <= '9'
		inner := i > 0 && i < len(name)-1 && (c == '-' && name[i-1] != '.' || c == '.' && name[i-1] != '.' && name[i-1] != '-')
		if !plain && !inner {
			return false
		}
	}
	return true
}

// escape makes a space's name a piece of a key.
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

// unescape is the inverse of escape; not ok: nothing that escape returns.
func unescape(piece string) (name string, ok bool) {
	name, err := url.PathUnescape(piece)
	return name, err == nil && storage.CheckSpace(name) == nil && escape(name) == piece
}
