package s3

import (
	"context"
	"net/http"
	"testing"

	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/s3/s3test"
)

// direct returns a store with a space "s" that calls a server without a network and knows its features.
func direct(t *testing.T, o s3test.Options, edit ...func(*Config)) (*Store, *s3test.Server) {
	t.Helper()
	o.MinPart = testPart
	srv := s3test.New(o)
	srv.Close() // the network is not used
	known := factsOf(o)
	s := openKnown(t, srv, &known, append([]func(*Config){through(srv)}, edit...)...)
	must(t, s.CreateSpace(t.Context(), storage.Space{Name: "s"}))
	return s, srv
}

// through makes a store send its requests to the server without a network.
func through(srv *s3test.Server) func(*Config) {
	return func(c *Config) { c.Transport = srv.Transport() }
}

// A script responds to requests instead of the server, once it is on.
type script struct {
	on     bool
	answer func(w http.ResponseWriter, r *http.Request) bool
}

func (s *script) hook(w http.ResponseWriter, r *http.Request) bool {
	return s.on && s.answer != nil && s.answer(w, r)
}

// noTest is the context for changes that happen while a test reads.
var noTest = context.Background()

// hangUp closes a connection without a response.
func hangUp() { panic(http.ErrAbortHandler) }

// must fails the test with an error.
func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
