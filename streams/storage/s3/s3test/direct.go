package s3test

import (
	"errors"
	"io"
	"net/http"
	"sync"
	"time"
)

// Transport returns a transport that calls the server without a network, for tests with large objects and in synctest
// bubbles. A handler that panics with http.ErrAbortHandler breaks the connection.
func (s *Server) Transport() http.RoundTripper { return handlerTransport{s} }

type handlerTransport struct{ h http.Handler }

var errCut = errors.New("connection reset by peer")

func (d handlerTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	in := req.Clone(req.Context())
	if in.Body == nil {
		in.Body = http.NoBody
	}
	in.RequestURI, in.Host = req.URL.RequestURI(), req.URL.Host
	r, w := io.Pipe()
	out := &responseWriter{header: http.Header{}, body: w, begun: make(chan struct{})}
	go func() {
		defer in.Body.Close()
		defer func() {
			if v := recover(); v != nil && v != http.ErrAbortHandler { //nolint:errorlint // recovered values are not wrapped
				panic(v)
			} else if v != nil {
				out.cut()
				return
			}
			out.WriteHeader(http.StatusOK)
			w.Close()
		}()
		d.h.ServeHTTP(out, in)
	}()
	select {
	case <-req.Context().Done():
		r.CloseWithError(req.Context().Err())
		return nil, req.Context().Err()
	case <-out.begun:
	}
	if out.status == 0 {
		return nil, errCut
	}
	if out.sent.Get("Date") == "" { // as net/http does
		out.sent.Set("Date", time.Now().UTC().Format(http.TimeFormat))
	}
	resp := &http.Response{
		StatusCode: out.status, Status: http.StatusText(out.status), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: out.sent, Body: r, ContentLength: -1, Request: req,
	}
	if req.Method == http.MethodHead || out.status == http.StatusNoContent {
		r.Close()
		resp.Body = http.NoBody
	}
	return resp, nil
}

// A responseWriter is an http.ResponseWriter with the body in a pipe.
type responseWriter struct {
	header, sent http.Header
	body         *io.PipeWriter
	status       int
	once         sync.Once
	begun        chan struct{}
}

func (p *responseWriter) Header() http.Header { return p.header }

func (p *responseWriter) WriteHeader(status int) {
	p.once.Do(func() {
		p.status, p.sent = status, p.header.Clone()
		close(p.begun)
	})
}

func (p *responseWriter) Write(b []byte) (int, error) {
	p.WriteHeader(http.StatusOK)
	return p.body.Write(b)
}

func (p *responseWriter) cut() {
	p.once.Do(func() { close(p.begun) })
	p.body.CloseWithError(errCut)
}
