package hint

import (
	"fmt"
	"net/url"
	"strings"

	"github.com/millrace/millrace/streams/storage"
)

// Buckets say how a store of buckets keeps its spaces: each as a prefix in one bucket, or each as a bucket. They
// are the other direction of the driver's layout.
type Buckets struct {
	Bucket, Prefix string // of all spaces; Bucket is empty where each has its own
	BucketPrefix   string // of the names of buckets, where each space has its own
}

// own is what drivers keep for themselves: keys, and the bucket of a store whose spaces are buckets.
const (
	ownKeys   = ".millrace/"
	ownBucket = "millrace"
)

// Place returns which item a key is. known says that the bucket is the store's; not item: the key is none of an item.
func (b Buckets) Place(bucket, key string) (space, name string, item, known bool) {
	if b.Bucket == "" {
		space, known = strings.CutPrefix(bucket, b.BucketPrefix)
		known = known && space != ""
		return space, key, known && space != ownBucket && named(space, key), known
	}
	if known = bucket == b.Bucket; !known {
		return "", "", false, false
	}
	rest, below := strings.CutPrefix(key, b.Prefix)
	piece, name, cut := strings.Cut(rest, "/")
	space, ok := unescape(piece)
	return space, name, below && cut && ok && !strings.HasPrefix(rest, ownKeys) && named(space, name), true
}

func named(space, item string) bool {
	return storage.CheckSpace(space) == nil && storage.CheckItem(item) == nil
}

// unescape reads the name of a space in a key: letters, digits, '-', '_', and '.' but in front are themselves, all else
// is %XX. Not ok: that is not how it would be written.
func unescape(piece string) (name string, ok bool) {
	name, err := url.PathUnescape(piece)
	return name, err == nil && escape(name) == piece
}

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
