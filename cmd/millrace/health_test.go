package main

import (
	"bytes"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestHealth(t *testing.T) {
	const ready = `{"live": true, "ready": true, "started": true, "reasons": []}`
	const starting = `{"live": true, "ready": false, "started": false,
  "reasons": ["clickhouse is unavailable: refused\nby x", "role copier is not in its group"]}` + "\n"
	const startingText = "live: yes, ready: no, started: no\nclickhouse is unavailable: refused by x\n" +
		"role copier is not in its group\n"
	for name, tt := range map[string]struct {
		args   []string
		status int // of the answer
		body   string
		path   string // that is asked
		code   int
		out    string
		err    string // part of the error
	}{
		"ready": {status: 200, body: ready, path: "/readyz", out: "live: yes, ready: yes, started: yes\n"},
		"not ready": {status: 503, body: starting, path: "/readyz", code: exitFindings, out: startingText,
			err: "the process is not ready"},
		"not ready, as JSON": {args: []string{"-o", "json"}, status: 503, body: starting, path: "/readyz",
			code: exitFindings, out: starting, err: "the process is not ready"},
		"live, although not ready": {args: []string{"--probe", "live"}, status: 200, body: starting, path: "/livez",
			out: startingText},
		"not started": {args: []string{"--probe", "started"}, status: 503, body: starting, path: "/startupz",
			code: exitFindings, out: startingText, err: "the process is not started"},
		"another service": {status: 200, body: "hello", path: "/readyz", code: exitError,
			err: "200 OK is not from http.listen of a millrace process"},
		"another service in JSON": {status: 200, body: "{}", path: "/readyz", code: exitError,
			err: "is not from http.listen"},
		"not found": {status: 404, body: ready, path: "/readyz", code: exitError,
			err: "404 Not Found is not from http.listen"},
		"a redirect": {status: 302, body: ready, path: "/readyz", code: exitError, err: "302 Found is not from"},
		"no answer in time": {args: []string{"--timeout", "50ms"}, path: "/readyz", code: exitError,
			err: "no answer within 50ms"},
		"an unknown probe":   {args: []string{"--probe", "well"}, code: exitUsage, err: `not "well"`},
		"an unknown form":    {args: []string{"-o", "yaml"}, code: exitUsage, err: "text or json"},
		"no time":            {args: []string{"--timeout", "0s"}, code: exitUsage, err: "--timeout is above 0"},
		"an argument":        {args: []string{"copier"}, code: exitUsage, err: "copier"},
		"an invalid address": {args: []string{"--address", "http://x"}, code: exitUsage, err: "--address is HOST:PORT"},
	} {
		t.Run(name, func(t *testing.T) {
			var asked string
			end := make(chan struct{})
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				asked = r.URL.Path
				if tt.status == 0 {
					<-end
					return
				}
				w.Header().Set("Location", "/livez")
				w.WriteHeader(tt.status)
				_, _ = w.Write([]byte(tt.body))
			}))
			var out, stderr bytes.Buffer
			code := run(t.Context(), append([]string{"health", "--address", srv.Listener.Addr().String()}, tt.args...),
				&out, &stderr)
			close(end)
			srv.Close()
			if code != tt.code || out.String() != tt.out || asked != tt.path {
				t.Errorf("got %d, %q from %q, want %d, %q from %q", code, out.String(), asked, tt.code, tt.out, tt.path)
			}
			if !strings.Contains(stderr.String(), tt.err) || tt.err == "" && stderr.Len() > 0 {
				t.Errorf("got the error %q, want %q", stderr.String(), tt.err)
			}
		})
	}
}

// If nothing listens, the error names the address and the setting.
func TestHealthOfNoProcess(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	address := l.Addr().String()
	l.Close()
	var out, stderr bytes.Buffer
	code := run(t.Context(), []string{"health", "--address", address}, &out, &stderr)
	for _, part := range []string{address + "/readyz", "connection refused", "http.listen"} {
		if !strings.Contains(stderr.String(), part) {
			t.Errorf("no %q in %q", part, stderr.String())
		}
	}
	if code != exitError || out.Len() > 0 {
		t.Errorf("got %d, %q", code, out.String())
	}
}
