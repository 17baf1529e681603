package s3bench

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

// serving starts a server in this process.
func serving(t *testing.T, load Load) (url string) {
	t.Helper()
	in, end := io.Pipe()
	said, out := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- Serve(t.Context(), load, in, out) }()
	line, err := bufio.NewReader(said).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = end.Close()
		if err := <-ended; err != nil {
			t.Errorf("the server ends with %v", err)
		}
	})
	return strings.TrimSpace(line)
}

// ask sends a request whose header is in lines "Name: value".
func ask(t *testing.T, method, url, body string, header ...string) (status int, got http.Header, text string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range header {
		name, value, _ := strings.Cut(line, ": ")
		req.Header.Set(name, value)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, string(b)
}

func TestServer(t *testing.T) {
	url := serving(t, Load{})
	chunked := "3;chunk-signature=0\r\nabc\r\n0;chunk-signature=0\r\nx-amz-checksum-crc64nvme: AA==\r\n\r\n"
	const md5 = "kAFQmDzST7DWlj99KOF/cg==" // of abc
	for _, tt := range []struct {
		name, method, path, body string
		header                   []string
		status                   int
		want                     string
	}{
		{"a bucket that is not there", "GET", "/b?list-type=2", "", nil, 404, "NoSuchBucket"},
		{"an object of one", "PUT", "/b/k", "abc", nil, 404, "NoSuchBucket"},
		{"make it", "PUT", "/b", "", nil, 200, ""},
		{"make it again", "PUT", "/b", "", nil, 409, "BucketAlreadyOwnedByYou"},
		{"an object that is not there", "GET", "/b/k", "", nil, 404, "NoSuchKey"},
		{"put", "PUT", "/b/k", "abc", []string{"If-None-Match: *", "Content-MD5: " + md5, "x-amz-meta-a: 1",
			"x-amz-checksum-sha256: AA=="}, 200, ""},
		{"put what must be absent", "PUT", "/b/k", "abc", []string{"If-None-Match: *"}, 412, "PreconditionFailed"},
		{"put what must be another", "PUT", "/b/k", "abc", []string{`If-Match: "00"`}, 412, "PreconditionFailed"},
		{"put what must be there", "PUT", "/b/z", "abc", []string{`If-Match: "00"`}, 404, "NoSuchKey"},
		{"read", "GET", "/b/k", "", nil, 200, "abc"},
		{"look", "HEAD", "/b/k", "", nil, 200, ""},
		{"a range", "GET", "/b/k", "", []string{"Range: bytes=1-1"}, 206, "b"},
		{"a range past the end", "GET", "/b/k", "", []string{"Range: bytes=1-99"}, 206, "bc"},
		{"a range to the end", "GET", "/b/k", "", []string{"Range: bytes=2-"}, 206, "c"},
		{"a range behind it", "GET", "/b/k", "", []string{"Range: bytes=3-4"}, 416, "InvalidRange"},
		{"another version", "GET", "/b/k", "", []string{`If-Match: "00"`}, 412, "PreconditionFailed"},
		{"this version", "GET", "/b/k", "", []string{`If-Match: "900150983cd24fb0d6963f7d28e17f72"`}, 200, "abc"},
		{"signed in chunks", "PUT", "/b/c%2Fd", chunked,
			[]string{"x-amz-content-sha256: STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"}, 200, ""},
		{"what was signed in chunks", "GET", "/b/c/d", "", nil, 200, "abc"},
		{"a listing", "GET", "/b?list-type=2&encoding-type=url", "", nil, 200, "<Key>c%2Fd</Key>"},
		{"a listing after a key", "GET", "/b?list-type=2&start-after=c/d&prefix=k", "", nil, 200, "<Key>k</Key>"},
		{"uploads in parts", "POST", "/b/k?uploads", "", nil, 501, "NotImplemented"},
		{"a part", "PUT", "/b/k?uploadId=1&partNumber=1", "abc", nil, 501, "NotImplemented"},
		{"a listing of folders", "GET", "/b?list-type=2&delimiter=/", "", nil, 501, "NotImplemented"},
		{"buckets", "GET", "/", "", nil, 501, "NotImplemented"},
		{"delete another", "DELETE", "/b/k", "", []string{`If-Match: "00"`}, 412, "PreconditionFailed"},
		{"delete", "DELETE", "/b/k", "", nil, 204, ""},
		{"delete what is gone", "DELETE", "/b/k", "", nil, 204, ""},
		{"what is gone", "GET", "/b/k", "", nil, 404, "NoSuchKey"},
		{"drop the bucket", "DELETE", "/b", "", nil, 204, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			status, header, text := ask(t, tt.method, url+tt.path, tt.body, tt.header...)
			if status != tt.status || !strings.Contains(text, tt.want) || tt.want == "" && text != "" {
				t.Errorf("got %d %q, want %d %q", status, text, tt.status, tt.want)
			}
			if tt.name == "look" {
				for name, want := range map[string]string{
					"Etag": `"900150983cd24fb0d6963f7d28e17f72"`, "X-Amz-Meta-A": "1", "X-Amz-Checksum-Sha256": "AA==",
					"Content-Length": "3",
				} {
					if got := header.Get(name); got != want {
						t.Errorf("%s: %q, want %q", name, got, want)
					}
				}
			}
		})
	}
}

// Pages hold each loaded object once, in the order of the keys. The contents of objects differ.
func TestLoad(t *testing.T) {
	for name, load := range map[string]Load{
		"objects": {Bucket: "b", Objects: 2500, Size: 100}, "keys": {Bucket: "b", Keys: 2500},
		"large objects": {Bucket: "b", Objects: 2, Size: 17 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			url, after, n := serving(t, load), "", 0
			for more := true; more; {
				_, _, text := ask(t, "GET", url+"/b?list-type=2&continuation-token="+after, "")
				for _, piece := range strings.Split(text, "<Key>")[1:] {
					key, _, _ := strings.Cut(piece, "<")
					if key != Key(n) {
						t.Fatalf("key %d is %q, want %q", n, key, Key(n))
					}
					n++
					after = key
				}
				more = strings.Contains(text, "<IsTruncated>true<")
			}
			if n != load.Objects+load.Keys {
				t.Errorf("%d keys, want %d", n, load.Objects+load.Keys)
			}
			if load.Objects == 0 {
				return
			}
			_, first, one := ask(t, "GET", url+"/b/"+Key(0), "")
			_, second, two := ask(t, "GET", url+"/b/"+Key(1), "")
			if int64(len(one)) != load.Size || one == two || first.Get("Etag") == second.Get("Etag") {
				t.Errorf("%d bytes with %s, %d bytes with %s: want %d that differ", len(one), first.Get("Etag"), len(two),
					second.Get("Etag"), load.Size)
			}
			if want := fmt.Sprintf("%q", etag([]byte(one))); load.Size < 1<<20 && first.Get("Etag") != want {
				t.Errorf("ETag %s, want %s", first.Get("Etag"), want)
			}
		})
	}
}

// A malformed request closes its connection and has no other effect.
func FuzzRequest(f *testing.F) {
	f.Add([]byte("PUT /b/k HTTP/1.1\r\nContent-Length: 3\r\nRange: bytes=1-2\r\n\r\nabc"))
	f.Add([]byte("GET /b?list-type=2&max-keys=3 HTTP/1.1\r\n\r\n"))
	f.Add([]byte("PUT /b/k HTTP/1.1\r\nX-Amz-Content-Sha256: STREAMING-\r\n\r\n3\r\nabc\r\n0\r\n\r\n"))
	f.Add([]byte("PUT /b/k HTTP/1.1\r\nContent-Length: 9223372036854775807\r\n\r\n"))
	f.Add([]byte("GET /b/2026/00000/img-00000000.tif HTTP/1.1\r\nRange: bytes=-5-2\r\n\r\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		s := newServer(Load{Bucket: "b", Objects: 2, Size: 10})
		c := &conn{s: s, in: bufio.NewReader(bytes.NewReader(in))}
		for {
			r, err := c.readRequest()
			if err != nil {
				return
			}
			body, err := c.readBody(r)
			if err != nil {
				return
			}
			c.header, c.body = c.header[:0], nil
			c.handle(r, body)
			if !bytes.HasPrefix(c.header, []byte("HTTP/1.1 ")) || !bytes.HasSuffix(c.header, []byte("\r\n\r\n")) {
				t.Fatalf("%q is answered with %q", in, c.header)
			}
		}
	})
}
