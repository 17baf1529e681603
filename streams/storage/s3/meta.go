package s3

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/minio/minio-go/v7"

	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// User metadata are headers: names are case-insensitive, values have no line breaks, and some services change
// non-ASCII characters. A property is stored under its own name if a header preserves it exactly; all others are
// stored together in one header, extraName.
const (
	metaHeader  = "X-Amz-Meta-"
	extraName   = "millrace-more"    // base64url of JSON
	digestsName = "millrace-digests" // "size=1,md5=...,sha256=..."
	// originalName holds the storage.Original of an item: milliseconds since 1970, the version in base64url, and a hash
	// of the item's name, separated by commas.
	originalName = "millrace-original"
	// plainType is the content type of an item without a media type. An item with this very media type has it in
	// extraName.
	plainType = "binary/octet-stream"
)

// extra holds the properties that headers would not preserve.
type extra struct {
	User map[string]string `json:"user,omitempty"`
	Type string            `json:"type,omitempty"`
}

// encode encodes properties, and digests that are known before the bytes are stored, as user metadata and content type.
// It returns ErrTooLarge if they exceed the limit of S3. original is a formatted Original, which is omitted if it would
// exceed the limit.
func encode(
	p storage.Properties, sum digest.Set, size int64, original string,
) (meta map[string]string, contentType string, err error) {
	meta, contentType = map[string]string{}, plainType
	var rest extra
	for name, v := range p.User {
		if !utf8.ValidString(name) || !utf8.ValidString(v) {
			return nil, "", retry.Permanent(fmt.Errorf("property %q is not UTF-8: %w", name, storage.ErrName))
		}
		if isHeaderName(name) && isHeaderValue(v) {
			meta[name] = v
		} else {
			if rest.User == nil {
				rest.User = map[string]string{}
			}
			rest.User[name] = v
		}
	}
	switch {
	case p.MediaType == "":
	case isHeaderValue(p.MediaType) && p.MediaType != plainType:
		contentType = p.MediaType
	default:
		rest.Type = p.MediaType
	}
	if rest.User != nil || rest.Type != "" {
		text, err := json.Marshal(rest)
		if err != nil {
			return nil, "", fmt.Errorf("encode properties: %w", err)
		}
		meta[extraName] = base64.RawURLEncoding.EncodeToString(text)
	}
	if len(sum) > 0 {
		meta[digestsName] = formatDigests(sum, size)
	}
	n := 0
	for name, v := range meta {
		n += len(name) + len(v)
	}
	if n > maxMetadata {
		return nil, "", retry.Permanent(fmt.Errorf("properties need %d bytes of metadata, and S3 allows %d: %w",
			n, maxMetadata, storage.ErrTooLarge))
	}
	if original != "" && n+len(originalName)+len(original) <= maxMetadata {
		meta[originalName] = original
	}
	return meta, contentType, nil
}

// isHeaderName reports whether user metadata preserves a property name exactly.
func isHeaderName(name string) bool {
	if name == "" || strings.HasPrefix(name, "millrace-") || strings.HasPrefix(name, "x-") || len(name) > 128 {
		return false
	}
	for i, c := range []byte(name) {
		if !(c >= 'a' && c <= 'z' || c >= '0' && c <= '9' && i > 0 || c == '-' && i > 0) {
			return false
		}
	}
	return !httpHeaders[name]
}

// httpHeaders are names that the client sends as HTTP headers instead of user metadata.
var httpHeaders = map[string]bool{
	"content-type": true, "cache-control": true, "content-encoding": true, "content-disposition": true,
	"content-language": true, "expires": true,
}

// isHeaderValue reports whether user metadata preserves a property value exactly.
func isHeaderValue(v string) bool {
	if v == "" || v != strings.TrimSpace(v) || strings.Contains(v, "=?") || strings.Contains(v, "  ") {
		return false
	}
	for _, c := range []byte(v) {
		if c < 0x20 || c > 0x7e {
			return false
		}
	}
	return true
}

// driverMeta holds the metadata that the driver adds to an object.
type driverMeta struct {
	digests  digest.Set
	original string
}

// decode returns the properties in the metadata of an object, and the metadata of the driver.
func decode(info minio.ObjectInfo) (p storage.Properties, own driverMeta, err error) {
	p.MediaType = info.ContentType
	if p.MediaType == plainType || p.MediaType == "application/octet-stream" && info.Headers.Get("Content-Type") == "" {
		p.MediaType = ""
	}
	for name, v := range info.UserMetadata {
		name = strings.ToLower(name)
		switch name {
		case extraName:
			text, err := base64.RawURLEncoding.DecodeString(v)
			var rest extra
			if err == nil {
				err = json.Unmarshal(text, &rest)
			}
			if err != nil {
				return p, own, fmt.Errorf("read metadata %s: %w", extraName, err)
			}
			if p.User == nil {
				p.User = map[string]string{}
			}
			maps.Copy(p.User, rest.User)
			if rest.Type != "" {
				p.MediaType = rest.Type
			}
		case digestsName:
			own.digests = parseDigests(v, info.Size)
		case originalName:
			own.original = v
		default:
			if p.User == nil {
				p.User = map[string]string{}
			}
			p.User[name] = v
		}
	}
	return p, own, nil
}

// formatOriginal formats an Original as metadata. The zero Original is empty.
func formatOriginal(space, item string, o storage.Original) string {
	if o == (storage.Original{}) {
		return ""
	}
	version := base64.RawURLEncoding.EncodeToString([]byte(o.Version))
	return strconv.FormatInt(o.Modified.UnixMilli(), 10) + "," + version + "," + itemHash(space, item)
}

// parseOriginal is the inverse of formatOriginal. It returns the zero Original if the text is for another item: a copy
// of an object to another key keeps its metadata.
func parseOriginal(space, item, text string) storage.Original {
	parts := strings.Split(text, ",")
	if len(parts) != 3 || parts[2] != itemHash(space, item) {
		return storage.Original{}
	}
	ms, err := strconv.ParseInt(parts[0], 10, 64)
	version, verr := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil || verr != nil || ms < 0 {
		return storage.Original{}
	}
	return storage.Original{Modified: time.UnixMilli(ms).UTC(), Version: string(version)}
}

// itemHash returns a short hash of an item's name. Space names contain no zero byte.
func itemHash(space, item string) string { return hashName(space + "\x00" + item)[:16] }

func formatDigests(sum digest.Set, size int64) string {
	parts := []string{"size=" + strconv.FormatInt(size, 10)}
	for _, alg := range slices.Sorted(maps.Keys(sum)) {
		parts = append(parts, alg+"="+sum[alg])
	}
	return strings.Join(parts, ",")
}

// parseDigests is the inverse of formatDigests. It returns nil if the text is malformed or for an object of another
// size.
func parseDigests(text string, size int64) digest.Set {
	sum, sized := digest.Set{}, false
	for part := range strings.SplitSeq(text, ",") {
		name, v, _ := strings.Cut(part, "=")
		if name == "size" {
			n, err := strconv.ParseInt(v, 10, 64)
			sized = err == nil && n == size
		} else {
			sum[name] = v
		}
	}
	if !sized || sum.Validate() != nil {
		return nil
	}
	return sum
}

// evidence returns the digests of an object. It includes recorded, the digests in the driver's metadata, only if a
// digest that the service itself reports agrees with them: other programs may write other bytes and keep the metadata.
// vouched reports whether that is so.
func (s *Store) evidence(info minio.ObjectInfo, recorded digest.Set) (all digest.Set, vouched bool) {
	own := digest.Set{}
	h := info.Headers
	whole := h.Get("X-Amz-Checksum-Type") != "COMPOSITE" // without this header a composite ends in -N and is not base64
	if s.features.Load().ETagIsMD5 && isMD5(info.ETag) && !keyDependent(h) {
		own[digest.MD5] = info.ETag
	}
	for _, c := range [...]struct{ alg, header string }{
		{digest.SHA256, "X-Amz-Checksum-Sha256"}, {digest.SHA1, "X-Amz-Checksum-Sha1"},
		{digest.CRC64NVME, "X-Amz-Checksum-Crc64nvme"},
	} {
		// A composite is computed from the digests of parts. A CRC64NVME is never composite.
		alg := c.alg
		raw, err := base64.StdEncoding.DecodeString(h.Get(c.header))
		if err == nil && len(raw) > 0 && (whole || alg == digest.CRC64NVME) && 2*len(raw) == digest.HexLen(alg) {
			own[alg] = hex.EncodeToString(raw)
		}
	}
	if own.Compare(recorded) == digest.Agree {
		return own.Union(recorded), true
	}
	return own, false
}

// keyDependent reports whether the ETag depends on the encryption key of the object.
func keyDependent(h http.Header) bool {
	return h.Get("X-Amz-Server-Side-Encryption-Customer-Algorithm") != "" ||
		strings.HasPrefix(h.Get("X-Amz-Server-Side-Encryption"), "aws:kms")
}

func isMD5(etag string) bool {
	b, err := hex.DecodeString(etag)
	return err == nil && len(b) == 16 && strings.ToLower(etag) == etag
}
