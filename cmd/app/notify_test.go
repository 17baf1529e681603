package app

import (
	"context"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/schemas"
)

// Without http.listen too, a service manager gets messages of the start, of the watchdog and of the stop.
func TestRunNotifies(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	t.Setenv("NOTIFY_SOCKET", socket)
	t.Setenv("WATCHDOG_USEC", "100000")
	t.Setenv("WATCHDOG_PID", "")

	s := newSite(t)
	s.cfg.HTTP.Listen = ""
	a, err := Open(t.Context(), s.cfg, Options{Log: s.said.Log(), Drain: time.Second})
	must(t, err)
	defer a.Close()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx, []schemas.Role{schemas.RoleDelayer}) }()
	must(t, conn.SetReadDeadline(time.Now().Add(time.Minute)))
	await := func(text string) {
		t.Helper()
		buf := make([]byte, 4096)
		for {
			n, err := conn.Read(buf)
			if err != nil {
				t.Fatalf("wait for %s: %v\n%s", text, err, s.said.String())
			}
			if strings.Contains(string(buf[:n]), text) {
				return
			}
		}
	}
	await("STATUS=starting: ")
	await("READY=1")
	await("WATCHDOG=1")
	cancel()
	await("STOPPING=1")
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
