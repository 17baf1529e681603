package health

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka/metrics"
)

// Each row is a case of notices.due.
func TestNotices(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	const watchdog = 30 * time.Second
	started := status{Live: true, Ready: true, Started: true, Reasons: []string{}}
	starting := status{Live: true, Reasons: []string{"role copier is not in its group"}}
	for name, tt := range map[string]struct {
		sent   notices
		status status
		ending bool
		want   string // messages, joined by |
	}{
		"before it has started": {status: starting, want: "STATUS=starting: role copier is not in its group"},
		"it has started":        {status: started, want: "READY=1|STATUS=ready"},
		"no news":               {sent: notices{ready: true, status: "ready"}, status: started},
		"started once, and not ready now": {sent: notices{ready: true, status: "ready"},
			status: status{Live: true, Started: true, Reasons: []string{"kafka is unavailable:\n x", "another"}},
			want:   "STATUS=not ready: kafka is unavailable: x (and 1 more)"},
		"the watchdog is due": {sent: notices{watchdog: watchdog, ready: true, status: "ready", live: now.Add(-watchdog)},
			status: started, want: "WATCHDOG=1"},
		"the watchdog is not due": {
			sent:   notices{watchdog: watchdog, ready: true, status: "ready", live: now.Add(-watchdog / 2)},
			status: started},
		"not live, and the watchdog is due": {
			sent:   notices{watchdog: watchdog, ready: true, status: "ready", live: now.Add(-watchdog)},
			status: status{Started: true, Reasons: []string{"stuck"}}, want: "STATUS=not live: stuck"},
		"the watchdog while it starts": {sent: notices{watchdog: watchdog}, status: starting,
			want: "WATCHDOG=1|STATUS=starting: role copier is not in its group"},
		"a long status": {sent: notices{watchdog: watchdog, ready: true},
			status: status{Live: true, Started: true, Reasons: []string{"x" + strings.Repeat("ü", 5000)}},
			want:   "WATCHDOG=1|STATUS=not ready: x" + strings.Repeat("ü", (512-len("not ready: x..."))/2) + "..."},
		"a status with control characters": {sent: notices{watchdog: watchdog, ready: true},
			status: status{Live: true, Started: true, Reasons: []string{"a\x00b\x1b[2J\xffc\nd"}},
			want:   "WATCHDOG=1|STATUS=not ready: ab[2J?c d"},
		"the stop": {sent: notices{ready: true, status: "ready"}, status: started, ending: true,
			want: "STOPPING=1|STATUS=stopping"},
		"the watchdog while it stops": {
			sent: notices{watchdog: watchdog, ready: true, stopping: true, status: "stopping",
				live: now.Add(-watchdog)},
			status: started, ending: true, want: "WATCHDOG=1"},
	} {
		t.Run(name, func(t *testing.T) {
			all, next := tt.sent.due(tt.status, tt.ending, now)
			if got := strings.Join(all, "|"); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
			if again, _ := next.due(tt.status, tt.ending, now); len(again) != 0 {
				t.Errorf("sent again: %q", again)
			}
		})
	}
}

// A manager is the socket of a service manager.
type manager struct{ conn *net.UnixConn }

func newManager(t *testing.T, watchdog string) *manager {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	t.Setenv("NOTIFY_SOCKET", socket)
	t.Setenv("WATCHDOG_USEC", watchdog)
	t.Setenv("WATCHDOG_PID", "")
	return &manager{conn}
}

// read returns the next message, or "" if none arrives in time.
func (m *manager) read(t *testing.T, within time.Duration) string {
	t.Helper()
	must(t, m.conn.SetReadDeadline(time.Now().Add(within)))
	buf := make([]byte, 4096)
	n, err := m.conn.Read(buf)
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
	return string(buf[:n])
}

// await reads messages until one contains text, and fails if one before it contains unwanted.
func (m *manager) await(t *testing.T, text, unwanted string) {
	t.Helper()
	for {
		got := m.read(t, 30*time.Second)
		switch {
		case got == "":
			t.Fatalf("no message with %s", text)
		case strings.Contains(got, text):
			return
		case unwanted != "" && strings.Contains(got, unwanted):
			t.Fatalf("%q before %s", got, text)
		}
	}
}

// A service manager is told of the start only when the process has started, gets no message of the watchdog
// while the process is not live, and one when it stops.
func TestNotify(t *testing.T) {
	m := newManager(t, "20000") // 20 ms
	roles := make(chan metrics.RoleState, 1)
	state := member(schemas.RoleCopier, schemas.High, "p.duplication.high")
	set := func(change func(*metrics.RoleState)) {
		select {
		case <-roles:
		default:
		}
		change(&state)
		roles <- state
	}
	set(func(s *metrics.RoleState) { s.Member = false })
	h := (&scene{}).monitor(stallAfter)
	h.c.Roles = func() []metrics.RoleState {
		s := <-roles
		roles <- s
		return []metrics.RoleState{s}
	}
	h.Collect(t.Context())
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- h.Notify(ctx) }()

	m.await(t, "WATCHDOG=1", "READY=1")
	m.await(t, "WATCHDOG=1", "READY=1")
	set(func(s *metrics.RoleState) { s.Member = true })
	m.await(t, "READY=1", "STOPPING=1")
	set(func(s *metrics.RoleState) { s.Stuck = 1 })
	m.await(t, "STATUS=not live: ", "READY=1")
	if got := m.read(t, 200*time.Millisecond); got != "" {
		t.Errorf("got %q although the process is not live", got)
	}
	set(func(s *metrics.RoleState) { s.Stuck = 0 })
	m.await(t, "WATCHDOG=1", "READY=1")
	h.Stop()
	m.await(t, "STOPPING=1", "READY=1")
	m.await(t, "WATCHDOG=1", "STOPPING=1")
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// A process that ends at once when it is asked to stop says that it stops.
func TestNotifyOfAShortStop(t *testing.T) {
	m := newManager(t, "")
	for range 20 {
		h := (&scene{}).monitor(stallAfter)
		h.Collect(t.Context())
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- h.Notify(ctx) }()
		m.await(t, "STATUS=ready", "")
		h.Stop()
		cancel()
		must(t, <-ended)
		if got := m.read(t, time.Second); got != "STOPPING=1" {
			t.Fatalf("got %q, want STOPPING=1", got)
		}
		m.await(t, "STATUS=stopping", "")
	}
}

// A message that could not be sent is sent again.
func TestNotifyAgain(t *testing.T) {
	m := newManager(t, "20000")
	h := (&scene{}).monitor(stallAfter)
	h.Collect(t.Context())
	socket := os.Getenv("NOTIFY_SOCKET")
	must(t, os.Rename(socket, socket+"2"))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- h.Notify(ctx) }()
	if got := m.read(t, 100*time.Millisecond); got != "" {
		t.Errorf("got %q", got)
	}
	must(t, os.Rename(socket+"2", socket))
	m.await(t, "READY=1", "")
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestNotifyRefusesBadWatchdog(t *testing.T) {
	newManager(t, "soon")
	if err := (&scene{}).monitor(stallAfter).Notify(t.Context()); err == nil {
		t.Error("WATCHDOG_USEC=soon is accepted")
	}
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
