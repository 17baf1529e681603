package s3

import (
	"maps"
	"net/http"
	"strings"
	"testing"

	"github.com/minio/minio-go/v7"

	"github.com/millrace/millrace/streams/digest"
)

// The service's own digests of a whole object are evidence: those of HEAD, and the ETag if it is an MD5. A checksum of
// the checksums of parts is none, with or without the header that says so.
func TestEvidenceOfTheService(t *testing.T) {
	const (
		etag   = "398533d48111e9f664b1f64cb10c4b63"
		sha256 = "RPg1RJSlugO6F5Ko0+nFNMR6kYGYD956P0SwbvKufH8="
		sha1   = "Qfd7zsmE3+Zgb9HHXnCzkvvqVr0="
		crc64  = "exXVsa2SoMQ="
		hex256 = "44f8354494a5ba03ba1792a8d3e9c534c47a9181980fde7a3f44b06ef2ae7c7f"
		hex1   = "41f77bcec984dfe6606fd1c75e70b392fbea56bd"
		hex64  = "7b15d5b1ad92a0c4"
	)
	recorded := digest.Set{digest.SHA256: hex256, digest.SHA512: strings.Repeat("0", 128)}
	for name, tt := range map[string]struct {
		etag    string
		headers string // without X-Amz-Checksum-
		want    digest.Set
		vouched bool // the digests in the driver's metadata count
	}{
		"put in one request": {etag, "Sha256=" + sha256 + " Type=FULL_OBJECT",
			recorded.Union(digest.Set{digest.MD5: etag}), true},
		"without a type": {etag, "Sha1=" + sha1, digest.Set{digest.MD5: etag, digest.SHA1: hex1}, false},
		"in parts, whole": {etag + "-3", "Crc64nvme=" + crc64 + " Type=FULL_OBJECT",
			digest.Set{digest.CRC64NVME: hex64}, false},
		"in parts, composite":      {etag + "-3", "Sha256=" + sha256 + "-3 Type=COMPOSITE", nil, false},
		"composite without suffix": {etag + "-3", "Sha256=" + sha256 + " Sha1=" + sha1 + " Type=COMPOSITE", nil, false},
		"composite without a type": {etag + "-3", "Sha256=" + sha256 + "-3", nil, false},
		"of 32 bits":               {etag + "-3", "Crc32=LHrwgw== Type=FULL_OBJECT", nil, false},
		"of a wrong length":        {"", "Sha256=" + crc64, nil, false},
		"nothing":                  {"", "", nil, false},
	} {
		h := http.Header{}
		for _, f := range strings.Fields(tt.headers) {
			key, value, _ := strings.Cut(f, "=")
			h.Set("X-Amz-Checksum-"+key, value)
		}
		s := &Store{}
		s.features.Store(&Features{ETagIsMD5: true})
		got, vouched := s.evidence(minio.ObjectInfo{ETag: tt.etag, Headers: h}, recorded)
		if !maps.Equal(got, tt.want) || vouched != tt.vouched {
			t.Errorf("%s: got %v, %v; want %v, %v", name, got, vouched, tt.want, tt.vouched)
		}
	}
}
