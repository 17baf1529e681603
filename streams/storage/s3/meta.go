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
	moreName    = "millrace-more"    // base64url of JSON
	digestsName = "millrace-digests" // "size=1,md5=...,sha256=..."
	// plainType is what an object without a media type gets; moreName tells it from the same, asked for.
	plainType = "binary/octet-stream"
)

// more is what headers would not keep.
type more struct {
	User map[string]string `json:"user,omitempty"`
	Type string            `json:"type,omitempty"`
}

// encode makes headers of properties and of digests that are known before the bytes are stored; the media type stands
// in contentType. More than S3 keeps is refused.
func encode(p storage.Properties, sum digest.Set, size int64) (meta map[string]string, contentType string, err error) {
	meta, contentType = map[string]string{}, plainType
	var rest more
	for name, v := range p.User {
		if !utf8.ValidString(name) || !utf8.ValidString(v) {
			return nil, "", retry.Permanent(fmt.Errorf("property %q is not UTF-8: %w", name, storage.ErrName))
		}
		if keepsName(name) && keepsValue(v) {
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
	case keepsValue(p.MediaType) && p.MediaType != plainType:
		contentType = p.MediaType
	default:
		rest.Type = p.MediaType
	}
	if rest.User != nil || rest.Type != "" {
		text, err := json.Marshal(rest)
		if err != nil {
			return nil, "", fmt.Errorf("encode properties: %w", err)
		}
		meta[moreName] = base64.RawURLEncoding.EncodeToString(text)
	}
	if len(sum) > 0 {
		meta[digestsName] = digestsText(sum, size)
	}
	n := 0
	for name, v := range meta {
		n += len(name) + len(v)
	}
	if n > maxMetadata {
		return nil, "", retry.Permanent(fmt.Errorf("properties take %d bytes of metadata, and S3 keeps %d: %w", n, maxMetadata, storage.ErrTooLarge))
	}
	return meta, contentType, nil
}

func keepsName(name string) bool {
	if name == "" || strings.HasPrefix(name, "millrace-") || strings.HasPrefix(name, "x-") || len(name) > 128 {
		return false
	}
	for i, c := range []byte(name) {
		if !(c >= 'a' && c <= 'z' || c >= '0' && c <= '9' && i > 0 || c == '-' && i > 0) {
			return false
		}
	}
	return !isHTTP[name]
}

// isHTTP are names that the client takes for headers of HTTP.
var isHTTP = map[string]bool{
	"content-type": true, "cache-control": true, "content-encoding": true, "content-disposition": true, "content-language": true, "expires": true,
}

func keepsValue(v string) bool {
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

// decode returns the properties that headers tell of, and the digests that the driver wrote beside them.
func decode(info minio.ObjectInfo) (p storage.Properties, beside digest.Set, err error) {
	p.MediaType = info.ContentType
	if p.MediaType == plainType || p.MediaType == "application/octet-stream" && info.Headers.Get("Content-Type") == "" {
		p.MediaType = ""
	}
	for name, v := range info.UserMetadata {
		name = strings.ToLower(name)
		switch name {
		case moreName:
			text, err := base64.RawURLEncoding.DecodeString(v)
			var rest more
			if err == nil {
				err = json.Unmarshal(text, &rest)
			}
			if err != nil {
				return p, nil, fmt.Errorf("read metadata %s: %w", moreName, err)
			}
			if p.User == nil {
				p.User = map[string]string{}
			}
			maps.Copy(p.User, rest.User)
			if rest.Type != "" {
				p.MediaType = rest.Type
			}
		case digestsName:
			beside = readDigests(v, info.Size)
		default:
			if p.User == nil {
				p.User = map[string]string{}
			}
			p.User[name] = v
		}
	}
	return p, beside, nil
}

func digestsText(sum digest.Set, size int64) string {
	parts := []string{"size=" + strconv.FormatInt(size, 10)}
	for _, alg := range slices.Sorted(maps.Keys(sum)) {
		parts = append(parts, alg+"="+sum[alg])
	}
	return strings.Join(parts, ",")
}

// readDigests is the inverse of digestsText; nil where the text is not about an object of this size, or is none of ours.
func readDigests(text string, size int64) digest.Set {
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

// evidence returns the digests that the service reports of an object. What the driver wrote beside the bytes counts
// only where the service itself reports one that agrees: metadata goes along with other bytes when somebody
// copies them.
func (s *Store) evidence(info minio.ObjectInfo, beside digest.Set) digest.Set {
	own := digest.Set{}
	h := info.Headers
	whole := h.Get("X-Amz-Checksum-Type") != "COMPOSITE" // elsewhere a composite ends in -N, which is no base64
	if s.facts.Load().ETagIsMD5 && isMD5(info.ETag) && !keyed(h) {
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
		return own.Union(beside)
	}
	return own
}

// keyed says that an ETag depends on the key that the object is encrypted with.
func keyed(h http.Header) bool {
	return h.Get("X-Amz-Server-Side-Encryption-Customer-Algorithm") != "" || strings.HasPrefix(h.Get("X-Amz-Server-Side-Encryption"), "aws:kms")
}

func isMD5(etag string) bool {
	b, err := hex.DecodeString(etag)
	return err == nil && len(b) == 16 && strings.ToLower(etag) == etag
}
