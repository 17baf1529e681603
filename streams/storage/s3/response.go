package s3

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/minio/minio-go/v7"

	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// What answers at an endpoint need not speak S3, and the client believes it: any XML is a listing without entries to
// it, a page of 404 an absence, and an error within a success a success. So answers are looked at before it sees them.

// errAlien says that what has answered does not speak S3.
var errNotS3 = errors.New("what answers at the endpoint does not speak S3")

// errStuck says that a listing asks for a page that it has given before.
var errListingLoop = fmt.Errorf("the service goes on where it was: %w", storage.ErrListing)

// maxAnswer bounds what is read of an answer that is no object's bytes: a page of 1,000 versions of the longest keys has less.
const maxResponse = 16 << 20

// maxProlog bounds what is read of it in search of its first element.
const maxProlog = 64 << 10

// A bounded body ends with an error after so many bytes.
type limitedBody struct {
	io.ReadCloser
	left int64
}

func (b *limitedBody) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, fmt.Errorf("%w: an answer has more than %d bytes", errNotS3, maxResponse)
	}
	n, err := b.ReadCloser.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	return n, err
}

// inspect judges an answer by what it is made of. Errors of S3 that come as a success are made errors.
func checkResponse(req *http.Request, resp *http.Response, ofObject bool) error {
	media, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";")
	html := strings.TrimSpace(strings.ToLower(media)) == "text/html"
	alien := func() error {
		resp.Body.Close()
		return fmt.Errorf("%w: %s %s: %s, %q", errNotS3, req.Method, req.URL.Path, resp.Status, media)
	}
	ok := resp.StatusCode >= 200 && resp.StatusCode < 300
	if !ok || !ofObject || req.Method != http.MethodGet {
		resp.Body = &limitedBody{resp.Body, maxResponse}
	}
	switch {
	case ok && ofObject && (req.Method == http.MethodGet || req.Method == http.MethodHead) && resp.Header.Get("ETag") == "":
		return alien() // all who speak S3 tell it
	case ok && ofObject && req.Method == http.MethodGet, resp.StatusCode == http.StatusNoContent, resp.StatusCode == http.StatusNotModified,
		resp.StatusCode >= 500, resp.StatusCode == http.StatusTooManyRequests: // bytes of an item, nothing at all, or anybody's trouble
		return nil
	case req.Method == http.MethodHead:
		if html && (!ofObject || resp.StatusCode == http.StatusNotFound) {
			return alien()
		}
		return nil
	}
	name, body := rootElement(resp.Body)
	resp.Body = body
	switch {
	case name == "" && !body.nonEmpty && !(ok && req.Method == http.MethodGet): // not a word
	case name != "Error" && (resp.StatusCode == http.StatusForbidden || resp.StatusCode == http.StatusRequestEntityTooLarge):
		// Whoever stands between refuses this one request, which says nothing of the service.
	case ok && name == "": // Google heads good answers as HTML, so what counts is what they are
		return alien()
	case strings.EqualFold(name, "html"):
		return alien()
	case ok && name == "Error":
		resp.StatusCode, resp.Status = http.StatusInternalServerError, "500 error within a success"
	case ok && req.URL.Query().Has("list-type") && name != "ListBucketResult":
		return alien()
	case ok && (req.Method != http.MethodGet || strings.HasSuffix(name, "Result")):
	case ok && slices.Contains([]string{"LocationConstraint", "VersioningConfiguration"}, name):
	case !ok && name == "Error":
	default:
		return alien()
	}
	return nil
}

// A whole is a body of which something has been read, and is given again.
type replayBody struct {
	io.Reader
	io.Closer
	nonEmpty bool // it is not empty
}

// root returns the name of a body's first element; empty where it is no XML, or cannot be read.
func rootElement(body io.ReadCloser) (name string, again *replayBody) {
	var seen bytes.Buffer
	d := xml.NewDecoder(io.TeeReader(io.LimitReader(body, maxProlog), &seen))
	for {
		t, err := d.Token()
		if start, ok := t.(xml.StartElement); ok {
			name = start.Name.Local
		}
		if text, ok := t.(xml.CharData); err != nil || name != "" || ok && len(bytes.TrimSpace(text)) > 0 {
			return name, &replayBody{io.MultiReader(&seen, body), body, len(bytes.TrimSpace(seen.Bytes())) > 0}
		}
	}
}

// ofObject says whether a request is for an object, and for nothing that belongs to it.
func isObjectRequest(req *http.Request, pathStyle bool) bool {
	path := strings.TrimPrefix(req.URL.Path, "/")
	if pathStyle {
		_, path, _ = strings.Cut(path, "/")
	}
	q := req.URL.Query()
	return path != "" && !q.Has("uploadId") && !q.Has("uploads") && !q.Has("restore")
}

// speechless says that an answer to HEAD, which has no body, does not tell what it means.
func needsBody(err error) bool {
	if errors.Is(err, errNotS3) {
		return true
	}
	var answer minio.ErrorResponse
	if !errors.As(err, &answer) || strings.HasPrefix(answer.Code, "XMinio") {
		return false
	}
	switch answer.StatusCode {
	case http.StatusForbidden:
		return answer.Code == "AccessDenied"
	case http.StatusMovedPermanently, http.StatusTemporaryRedirect, http.StatusBadRequest, http.StatusUnauthorized:
		return true
	}
	return false
}

// alien is the error of an answer that is not S3's.
func notS3Error(what string) error {
	return retry.Unavailable(fmt.Errorf("%s: %w: see the endpoint", what, errNotS3))
}
