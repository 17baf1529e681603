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

// User metadata are headers: names without case, values without line ends, and what is not ASCII comes back
// changed by some services. So a property is metadata of its own where that keeps it exactly, and all others are
// one piece of metadata, moreName.
const (
	metaHeader  = "X-Amz-Meta-"
	extraName   = "millrace-more"    // base64url of JSON
	digestsName = "millrace-digests" // "size=1,md5=...,sha256=..."
	// originalName holds the storage.Original of an item: milliseconds since 1970, the version in base64url, and
	// what names the item, separated by commas.
	originalName = "millrace-original"
	// plainType is what an object without a media type gets; moreName tells it from the same, asked for.
	plainType = "binary/octet-stream"
)

// more is what headers would not keep.
type extra struct {
	User map[string]string `json:"user,omitempty"`
	Type string            `json:"type,omitempty"`
}

// encode makes headers of properties and of digests that are known before the bytes are stored; the media type stands
// in contentType. More than S3 keeps is refused. of is the text of an Original, which is left out if there is no room.
func encode(p storage.Properties, sum digest.Set, size int64, of string) (meta map[string]string, contentType string, err error) {
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
		return nil, "", retry.Permanent(fmt.Errorf("properties take %d bytes of metadata, and S3 keeps %d: %w", n, maxMetadata, storage.ErrTooLarge))
	}
	if of != "" && n+len(originalName)+len(of) <= maxMetadata {
		meta[originalName] = of
	}
	return meta, contentType, nil
}

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

// isHTTP are names that the client takes for headers of HTTP.
var httpHeaders = map[string]bool{
	"content-type": true, "cache-control": true, "content-encoding": true, "content-disposition": true, "content-language": true, "expires": true,
}

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

// beside is what the driver wrote into the metadata of an object.
type driverMeta struct {
	digests  digest.Set
	original string
}

// decode returns the properties that headers tell of, and what the driver wrote beside them.
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

// originalText is of the zero Original empty.
func formatOriginal(space, item string, o storage.Original) string {
	if o == (storage.Original{}) {
		return ""
	}
	return strconv.FormatInt(o.Modified.UnixMilli(), 10) + "," + base64.RawURLEncoding.EncodeToString([]byte(o.Version)) + "," + itemHash(space, item)
}

// readOriginal is the inverse of originalText; zero if the text is not about this item: metadata goes along when an
// object is copied to another key.
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

// itemName names an item in few bytes. No space's name has a zero byte.
func itemHash(space, item string) string { return hashName(space + "\x00" + item)[:16] }

func formatDigests(sum digest.Set, size int64) string {
	parts := []string{"size=" + strconv.FormatInt(size, 10)}
	for _, alg := range slices.Sorted(maps.Keys(sum)) {
		parts = append(parts, alg+"="+sum[alg])
	}
	return strings.Join(parts, ",")
}

// readDigests is the inverse of digestsText; nil where the text is not about an object of this size, or is none of ours.
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

// evidence returns the digests that the service reports of an object, and whether what the driver wrote beside the bytes
// is about them: only if the service itself reports a digest that agrees. Programs keep metadata when they
// write other bytes.
func (s *Store) evidence(info minio.ObjectInfo, beside digest.Set) (all digest.Set, vouched bool) {
	own := digest.Set{}
	h := info.Headers
	whole := h.Get("X-Amz-Checksum-Type") != "COMPOSITE" // elsewhere a composite ends in -N, which is no base64
	if s.features.Load().ETagIsMD5 && isMD5(info.ETag) && !keyDependent(h) {
		own[digest.MD5] = info.ETag
	}
	for alg, header := range map[string]string{
		digest.SHA256: "X-Amz-Checksum-Sha256", digest.SHA1: "X-Amz-Checksum-Sha1", digest.CRC64NVME: "X-Amz-Checksum-Crc64nvme",
	} {
		// A composite is of the digests of parts; a CRC64NVME never is one.
		raw, err := base64.StdEncoding.DecodeString(h.Get(header))
		if err == nil && len(raw) > 0 && (whole || alg == digest.CRC64NVME) && 2*len(raw) == digest.HexLen(alg) {
			own[alg] = hex.EncodeToString(raw)
		}
	}
	if own.Compare(beside) == digest.Agree {
		return own.Union(beside), true
	}
	return own, false
}

// keyed says that an ETag depends on the key that the object is encrypted with.
func keyDependent(h http.Header) bool {
	return h.Get("X-Amz-Server-Side-Encryption-Customer-Algorithm") != "" || strings.HasPrefix(h.Get("X-Amz-Server-Side-Encryption"), "aws:kms")
}

func isMD5(etag string) bool {
	b, err := hex.DecodeString(etag)
	return err == nil && len(b) == 16 && strings.ToLower(etag) == etag
}
