package integration

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"maps"
	"testing"

	"github.com/millrace/millrace/integration/harness"
	"github.com/millrace/millrace/streams/digest"
)

// TestS3HeadHasTheDigests checks that the driver, which sends HEAD, reports all digests of a whole object that
// GetObjectAttributes has, and none for a checksum of checksums.
func TestS3HeadHasTheDigests(t *testing.T) {
	t.Parallel()
	for _, kind := range harness.S3Kinds() {
		if kind == harness.Versitygw {
			continue // it refuses the trailing checksums of the client
		}
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			r := newRealS3(t, harness.S3(t, harness.S3Options{Kind: kind}), false, false)
			s := r.spaced(t, r.config(t))
			content := bytes.Repeat([]byte("two parts and a half"), 600_000)
			for item, whole := range map[string]bool{"whole": true, "composite": false} {
				key := s.cfg.Prefix + "/s/" + item
				r.PutParts(t, s.cfg.Bucket, key, content, whole)
				a := r.Attributes(t, s.cfg.Bucket, key)
				if a.Checksum.ChecksumType == "COMPOSITE" == whole || a.ObjectParts.PartsCount != 3 {
					t.Errorf("%s: attributes %+v", item, a.ObjectAttributesResponse)
				}
				want := digest.Set{}
				if raw, err := base64.StdEncoding.DecodeString(a.Checksum.ChecksumCRC64NVME); err != nil {
					t.Error(err)
				} else if len(raw) > 0 {
					want[digest.CRC64NVME] = hex.EncodeToString(raw)
				}
				o, err := s.Stat(t.Context(), "s", item)
				if err != nil || o.Size != int64(len(content)) || !maps.Equal(o.Digests, want) || len(want) == 1 != whole {
					t.Errorf("%s: got %+v, %v; want the digests %v", item, o, err, want)
				}
			}
		})
	}
}
