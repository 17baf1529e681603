package s3test

import (
	"bufio"
	"crypto/md5"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/minio/crc64nvme"
)

// readBody reads the body of a request and verifies its checksums.
func (s *Server) readBody(r *http.Request) (*object, *failure) {
	if s.o.Virtual {
		return s.countBody(r)
	}
	b, err := body(r)
	if err != nil {
		return nil, &failure{400, "IncompleteBody"}
	}
	if !s.o.Unverified && !s.checksumsMatch(r, b) {
		return nil, &failure{400, "BadDigest"}
	}
	o := &object{bytes: b, size: int64(len(b)), etag: s.etag(b)}
	if r.Header.Get("X-Amz-Checksum-Crc64nvme") != "" {
		o.sum = crc64(b)
	}
	return o, nil
}

// countBody reads the body of a request without keeping it. It does not support streaming signatures.
func (s *Server) countBody(r *http.Request) (*object, *failure) {
	h := crc64nvme.New()
	n, err := io.CopyBuffer(struct{ io.Writer }{h}, struct{ io.Reader }{r.Body}, make([]byte, 1<<20))
	if err != nil || r.ContentLength >= 0 && n != r.ContentLength {
		return nil, &failure{400, "IncompleteBody"}
	}
	o := &object{size: n, sum: base64.StdEncoding.EncodeToString(h.Sum(nil))}
	o.etag = fmt.Sprintf("%x", md5.Sum([]byte(fmt.Sprint(n, o.sum))))
	if want := r.Header.Get("X-Amz-Checksum-Crc64nvme"); want != "" && want != o.sum {
		return nil, &failure{400, "BadDigest"}
	}
	return o, nil
}

var zeros [1 << 20]byte

// write writes n bytes of an object from the offset at.
func (o *object) write(w io.Writer, at, n int64) {
	if o.bytes != nil || o.size == 0 {
		_, _ = w.Write(o.bytes[at : at+n])
		return
	}
	for n > 0 {
		m, err := w.Write(zeros[:min(n, int64(len(zeros)))])
		if n -= int64(m); err != nil {
			return
		}
	}
}

// CRC64 returns the x-amz-checksum-crc64nvme of b.
func CRC64(b []byte) string { return crc64(b) }

// crc64 returns the x-amz-checksum-crc64nvme of the object.
func (o *object) crc64() string {
	h := crc64nvme.New()
	o.write(h, 0, o.size)
	return base64.StdEncoding.EncodeToString(h.Sum(nil))
}

// body reads the body of a request, with or without a streaming signature.
func body(r *http.Request) ([]byte, error) {
	if !strings.HasPrefix(r.Header.Get("X-Amz-Content-Sha256"), "STREAMING-") {
		if r.ContentLength >= 0 {
			b := make([]byte, r.ContentLength)
			_, err := io.ReadFull(r.Body, b)
			return b, err
		}
		return io.ReadAll(r.Body)
	}
	var all []byte
	in := bufio.NewReader(r.Body)
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return nil, err
		}
		size, _, _ := strings.Cut(strings.TrimSpace(line), ";")
		n, err := strconv.ParseInt(size, 16, 64)
		if err != nil {
			return nil, err
		}
		if n == 0 {
			return all, nil
		}
		at := len(all)
		all = append(all, make([]byte, n)...)
		if _, err := io.ReadFull(in, all[at:]); err != nil {
			return nil, err
		}
		if _, err := in.Discard(2); err != nil {
			return nil, err
		}
	}
}

// checksumsMatch reports whether the body has the checksums in the headers of the request.
func (s *Server) checksumsMatch(r *http.Request, b []byte) bool {
	if want := r.Header.Get("Content-Md5"); want != "" {
		if m := md5.Sum(b); base64.StdEncoding.EncodeToString(m[:]) != want {
			return false
		}
	}
	if want := r.Header.Get("X-Amz-Content-Sha256"); len(want) == 64 {
		if m := sha256.Sum256(b); hex.EncodeToString(m[:]) != want {
			return false
		}
	}
	if want := r.Header.Get("X-Amz-Checksum-Sha256"); want != "" && !s.o.NoChecksums {
		if m := sha256.Sum256(b); base64.StdEncoding.EncodeToString(m[:]) != want {
			return false
		}
	}
	if want := r.Header.Get("X-Amz-Checksum-Crc64nvme"); want != "" && !s.o.NoChecksums {
		return crc64(b) == want
	}
	return true
}

func crc64(b []byte) string {
	h := crc64nvme.New()
	_, _ = h.Write(b)
	return base64.StdEncoding.EncodeToString(h.Sum(nil))
}
