package s3

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/minio/minio-go/v7/pkg/signer"

	"github.com/millrace/millrace/streams/storage"
)

// A note goes with a request: headers that the client has no option for, and what the answer said.
type exchange struct {
	headers http.Header // none of x-amz-, which would have to be signed
	body    []byte      // what the request carries, where that is in memory and small; else nil
	listing bool        // the requests are those of one listing

	mu   sync.Mutex
	date time.Time // of the answer, by the service's clock; guarded by mu
	// What a listing asked for: a page that is held against those that follow, how many these were, and after how many
	// the newest takes its place; guarded by mu.
	anchor      string
	pages, span int
}

type exchangeKey struct{}

// noted returns a context whose requests carry headers, in pairs, and whose answers are noted.
func withHeaders(ctx context.Context, pairs ...string) (context.Context, *exchange) {
	n := &exchange{headers: http.Header{}}
	for i := 0; i+1 < len(pairs); i += 2 {
		n.headers.Set(pairs[i], pairs[i+1])
	}
	return context.WithValue(ctx, exchangeKey{}, n), n
}

// listed returns a context for the requests of one listing: one that goes on where it was has an end.
func withListing(ctx context.Context) context.Context {
	return context.WithValue(ctx, exchangeKey{}, &exchange{listing: true})
}

// carrying returns a context whose one request carries b. The client hides its bytes behind readers of its own, and a
// request whose bytes are not seen to be in memory goes in two packets, for the service to wait for the second.
func withBody(ctx context.Context, b []byte) context.Context {
	if len(b) == 0 || len(b) > writeBuffer/2 {
		return ctx
	}
	n, ok := ctx.Value(exchangeKey{}).(*exchange)
	if !ok {
		ctx, n = withHeaders(ctx)
	}
	n.body = bytes.Clone(b) // b may be used again while the transport still reads
	return ctx
}

func (n *exchange) responseDate() time.Time {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.date
}

// stuck says that a listing asks for a page again: it goes in a circle, however long that is.
func (n *exchange) loops(page string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.pages++; n.pages > 1 && page == n.anchor {
		return true
	}
	if n.pages > n.span {
		n.anchor, n.pages, n.span = page, 1, 2*max(n.span, 1)
	}
	return false
}

// A wire adds to requests what the client has no option for, and looks at answers before the client does.
type transport struct {
	next          http.RoundTripper
	pathStyle     bool
	requesterPays bool // the requester
	creds         *credentials.Credentials
	mustSign      bool // a request without a signature is refused
	region        string
}

// errUnsigned is the error of a request for which no credentials were found. The service would refuse it for a reason
// that hides this one, or serve it as public.
var errUnsigned = fmt.Errorf("%w: no credentials were found in the environment, in their files, or of the machine's role",
	storage.ErrCredentials)

func (s *Store) wrapTransport(next http.RoundTripper, who *credentials.Credentials, pathStyle bool) *transport {
	return &transport{next, pathStyle, s.cfg.RequesterPays, who, s.cfg.Credentials.FromEnvironment, s.cfg.Region}
}

func (w *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	if w.mustSign && req.Header.Get("Authorization") == "" {
		return nil, errUnsigned
	}
	n, _ := req.Context().Value(exchangeKey{}).(*exchange)
	if n != nil && n.listing && n.loops(req.URL.RawQuery) {
		return nil, errListingLoop
	}
	if n != nil {
		var done func()
		req, done = n.apply(req)
		defer done()
	}
	if w.requesterPays {
		var err error
		if req, err = w.withPayer(req); err != nil {
			return nil, err
		}
	}
	resp, err := w.next.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	if at, err := http.ParseTime(resp.Header.Get("Date")); n != nil && err == nil {
		n.mu.Lock()
		n.date = at
		n.mu.Unlock()
	}
	if err := checkResponse(req, resp, isObjectRequest(req, w.pathStyle)); err != nil {
		return nil, err
	}
	return resp, nil
}

// fill returns a request with what is noted for it. done is for when it was answered.
func (n *exchange) apply(req *http.Request) (filled *http.Request, done func()) {
	done = func() {}
	whole := n.body != nil && req.Body != nil && req.ContentLength == int64(len(n.body)) // else it was encoded to be signed
	if len(n.headers) == 0 && !whole {
		return req, done
	}
	filled = req.Clone(req.Context())
	for k, v := range n.headers {
		filled.Header[k] = v
	}
	if whole {
		done = func() { _ = req.Body.Close() } // it was read of no bytes
		filled.Body = io.NopCloser(bytes.NewReader(n.body))
	}
	return filled, done
}

const payerHeader = "X-Amz-Request-Payer"

// paying returns a request that says who pays, which is signed with the rest. Those that send bytes say so already: their
// signature is the first of a chain.
func (w *transport) withPayer(req *http.Request) (*http.Request, error) {
	if req.Header.Get(payerHeader) != "" {
		return req, nil
	}
	signed := req.Header.Get("Authorization") != ""
	req = req.Clone(req.Context())
	req.Header.Set(payerHeader, "requester")
	if !signed || strings.HasPrefix(req.Header.Get("X-Amz-Content-Sha256"), "STREAMING-") {
		return req, nil
	}
	v, err := w.creds.GetWithContext(nil)
	if err != nil {
		return nil, err
	}
	if v.AccessKeyID == "" { // the keys have expired since the request was signed
		return nil, errUnsigned
	}
	req.Header.Del("Authorization")
	return signer.SignV4(*req, v.AccessKeyID, v.SecretAccessKey, v.SessionToken, w.region), nil
}
