package s3

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// An exchange is attached to the context of a request. It holds headers that the client has no option for, and receives
// data of the response.
type exchange struct {
	headers http.Header // to add; not x-amz-* headers, which must be signed
	listing bool        // the requests are those of one listing

	mu   sync.Mutex
	date string // header of the last response; guarded by mu
	// Loop detection of a listing, by Brent's algorithm; guarded by mu. Each requested page is compared with the anchor.
	// After span pages the current page becomes the anchor, and span doubles. pages counts those since the anchor.
	anchor      string
	pages, span int
}

type exchangeKey struct{}

// withHeaders returns a context that adds headers, in pairs of name and value, to its requests, and the exchange that
// receives their responses.
func withHeaders(ctx context.Context, pairs ...string) (context.Context, *exchange) {
	n := &exchange{headers: http.Header{}}
	for i := 0; i+1 < len(pairs); i += 2 {
		n.headers.Set(pairs[i], pairs[i+1])
	}
	return context.WithValue(ctx, exchangeKey{}, n), n
}

// withListing returns a context for the requests of one listing. A listing that loops ends with errListingLoop.
func withListing(ctx context.Context) context.Context {
	return context.WithValue(ctx, exchangeKey{}, &exchange{listing: true})
}

// responseDate returns the time of the last response by the service's clock; zero if there is none.
func (n *exchange) responseDate() time.Time {
	n.mu.Lock()
	defer n.mu.Unlock()
	at, err := http.ParseTime(n.date)
	if err != nil {
		return time.Time{}
	}
	return at
}

// loops reports whether a listing requests a page again. It detects cycles of any length.
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

// A transport adds headers that the client has no option for, and checks responses before the client reads them.
type transport struct {
	next          http.RoundTripper
	pathStyle     bool
	requesterPays bool
	creds         *credentials.Credentials
	mustSign      bool // refuse requests without a signature
	signer        signer
	clock         func(ahead time.Duration) // Config.Clock; may be nil
}

// errUnsigned means that no credentials were found for a request. Without it the service would refuse the unsigned
// request for another reason, or treat it as a public one.
var errUnsigned = fmt.Errorf("%w: no credentials were found in the environment, in files, or for a role of the machine",
	storage.ErrCredentials)

func (s *Store) wrapTransport(next http.RoundTripper, who *credentials.Credentials, pathStyle bool) *transport {
	return &transport{next, pathStyle, s.cfg.RequesterPays, who, s.cfg.Credentials.FromEnvironment,
		signer{region: s.cfg.Region}, s.cfg.Clock}
}

func (w *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	if w.mustSign && req.Header.Get("Authorization") == "" {
		return nil, errUnsigned
	}
	if r, ok := req.Context().Value(failedRequestKey{}).(*failedRequest); ok && !r.used.Swap(true) {
		if req.Body != nil {
			_ = req.Body.Close() // not read
		}
		return r.resp, r.err
	}
	n, _ := req.Context().Value(exchangeKey{}).(*exchange)
	if n != nil && n.listing && n.loops(req.URL.RawQuery) {
		return nil, errListingLoop
	}
	if n != nil && len(n.headers) > 0 {
		req = req.Clone(req.Context())
		maps.Copy(req.Header, n.headers)
	}
	if w.requesterPays {
		var err error
		if req, err = w.withPayer(req); err != nil {
			return nil, err
		}
	}
	return w.do(req, n, isObjectRequest(req, w.pathStyle))
}

// do sends a complete request and checks the response. n may be nil, and ofObject is isObjectRequest of the request.
func (w *transport) do(req *http.Request, n *exchange, ofObject bool) (*http.Response, error) {
	begun := time.Now()
	resp, err := w.next.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	if at, err := http.ParseTime(resp.Header.Get("Date")); err == nil && w.clock != nil {
		w.clock(clockOffset(at, begun, time.Now()))
	}
	if n != nil {
		n.mu.Lock()
		n.date = resp.Header.Get("Date")
		n.mu.Unlock()
	}
	if err := checkResponse(req, resp, ofObject); err != nil {
		return nil, err
	}
	return resp, nil
}

// clockOffset returns how far a clock that showed at is ahead, at least: its service may have read it at any time
// between the start of the request and the response.
func clockOffset(at, begun, ended time.Time) time.Duration {
	switch {
	case at.After(ended):
		return at.Sub(ended)
	case at.Before(begun):
		return at.Sub(begun)
	}
	return 0
}

const payerHeader = "X-Amz-Request-Payer"

// withPayer returns the request with the requester-pays header, signed again: services refuse requests with x-amz-*
// headers that are not signed. A request with a streaming signature cannot be signed again, because the signatures of
// its chunks depend on the first one; of these there are only parts, which have the header already.
func (w *transport) withPayer(req *http.Request) (*http.Request, error) {
	if req.Header.Get(payerHeader) != "" {
		return req, nil
	}
	signed := req.Header.Get("Authorization") != ""
	req = req.Clone(req.Context())
	req.Header.Set(payerHeader, "requester")
	switch {
	case !signed:
		return req, nil
	case strings.HasPrefix(req.Header.Get("X-Amz-Content-Sha256"), "STREAMING-"):
		return nil, retry.Permanent(fmt.Errorf("cannot sign header %s: the body is signed in chunks", payerHeader))
	}
	v, err := w.creds.GetWithContext(nil)
	if err != nil {
		return nil, err
	}
	if v.AccessKeyID == "" { // the credentials expired after the request was signed
		return nil, errUnsigned
	}
	req.Header.Del("Authorization")
	w.signer.sign(req, v, req.Header.Get("X-Amz-Content-Sha256"), time.Now())
	return req, nil
}
