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

// An endpoint may not be an S3 service, and minio-go does not notice: it treats any XML as an empty listing, a 404 page
// as an absence, and an error in a 200 response as a success. Responses are therefore checked before the client reads
// them.

// errNotS3 means that the endpoint is not an S3 service.
var errNotS3 = errors.New("the endpoint does not speak S3")

// errListingLoop means that a listing continues with a page that it has returned before.
var errListingLoop = fmt.Errorf("the service repeats pages of a listing: %w", storage.ErrListing)

// maxResponse bounds the body of a response that is not the bytes of an object, in bytes. A page of 1,000 versions with
// the longest keys is shorter.
const maxResponse = 16 << 20

// maxProlog bounds the search for the first XML element, in bytes.
const maxProlog = 64 << 10

// A limitedBody returns an error after left bytes.
type limitedBody struct {
	io.ReadCloser
	left int64
}

func (b *limitedBody) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, fmt.Errorf("%w: a response has more than %d bytes", errNotS3, maxResponse)
	}
	n, err := b.ReadCloser.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	return n, err
}

// checkResponse returns errNotS3 if a response cannot be that of an S3 service. It changes the status of an S3 error in
// a 200 response to 500. ofObject is isObjectRequest of the request.
func checkResponse(req *http.Request, resp *http.Response, ofObject bool) error {
	media, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";")
	html := strings.TrimSpace(strings.ToLower(media)) == "text/html"
	alien := func() error {
		resp.Body.Close()
		return fmt.Errorf("%w: %s %s: %s, %q", errNotS3, req.Method, req.URL.Path, resp.Status, media)
	}
	ok := resp.StatusCode >= 200 && resp.StatusCode < 300
	isRead := req.Method == http.MethodGet || req.Method == http.MethodHead
	if !ok || !ofObject || req.Method != http.MethodGet {
		resp.Body = &limitedBody{resp.Body, maxResponse}
	}
	switch {
	case ok && ofObject && isRead && resp.Header.Get("ETag") == "":
		return alien() // every S3 service returns it
	case ok && ofObject && req.Method == http.MethodGet, // the bytes of an object
		resp.StatusCode == http.StatusNoContent, resp.StatusCode == http.StatusNotModified, // no body
		resp.StatusCode >= 500, resp.StatusCode == http.StatusTooManyRequests: // also from a proxy
		return nil
	case req.Method == http.MethodHead:
		if html && (!ofObject || resp.StatusCode == http.StatusNotFound) {
			return alien()
		}
		return nil
	}
	if resp.ContentLength == 0 && req.Method != http.MethodGet {
		return nil
	}
	name, body := rootElement(resp.Body)
	resp.Body = body
	switch {
	case name == "" && !body.nonEmpty && !(ok && req.Method == http.MethodGet): // empty
	case name != "Error" && resp.StatusCode == http.StatusForbidden,
		name != "Error" && resp.StatusCode == http.StatusRequestEntityTooLarge:
		// A proxy refuses this request, which says nothing about the service.
	case ok && name == "": // checked by content: Google sends valid responses with the media type of HTML
		return alien()
	case strings.EqualFold(name, "html"):
		return alien()
	case ok && name == "Error":
		resp.StatusCode, resp.Status = http.StatusInternalServerError, "500 error in a success response"
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

// A replayBody returns a body from its start after a part of it was read.
type replayBody struct {
	io.Reader
	io.Closer
	nonEmpty bool // the part that was read has more than white space
}

// rootElement returns the name of the first XML element of a body, empty if the body is not XML or cannot be read, and
// the body to read again.
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

// isObjectRequest reports whether a request is for an object itself, not for an upload or a restoration.
func isObjectRequest(req *http.Request, pathStyle bool) bool {
	path := strings.TrimPrefix(req.URL.Path, "/")
	if pathStyle {
		_, path, _ = strings.Cut(path, "/")
	}
	q := req.URL.Query()
	return path != "" && !q.Has("uploadId") && !q.Has("uploads") && !q.Has("restore")
}

// needsBody reports whether an error response to HEAD, which has no body, can only be understood with one.
func needsBody(err error) bool {
	if errors.Is(err, errNotS3) {
		return true
	}
	var response minio.ErrorResponse
	if !errors.As(err, &response) || strings.HasPrefix(response.Code, "XMinio") {
		return false
	}
	switch response.StatusCode {
	case http.StatusForbidden:
		return response.Code == "AccessDenied"
	case http.StatusMovedPermanently, http.StatusTemporaryRedirect, http.StatusBadRequest, http.StatusUnauthorized:
		return true
	}
	return false
}

// notS3Error returns the error of a response that is not that of an S3 service.
func notS3Error(what string) error {
	return retry.Unavailable(fmt.Errorf("%s: %w: check the endpoint", what, errNotS3))
}
