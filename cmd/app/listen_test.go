package app

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/millrace/millrace/cmd/precondition"
	"github.com/millrace/millrace/internal/logtest"
)

// An address that cannot be used is a precondition, and the error says what to do.
func TestListenOn(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer taken.Close()
	for name, tt := range map[string]struct{ address, want string }{
		"taken": {taken.Addr().String(),
			"another process listens there (ss -ltnp names it): stop it, or set another port"},
		"another machine": {"192.0.2.1:8080",
			"no interface of this machine has this address: set one that it has"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := listenOn(t.Context(), "ingest.listen", tt.address)
			if !errors.Is(err, precondition.Err) || !strings.HasPrefix(err.Error(), "ingest.listen: ") ||
				!strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

// An address beyond loopback is logged with what is served there.
func TestLogListen(t *testing.T) {
	t.Parallel()
	for address, beyond := range map[string]bool{
		"127.0.0.1:8080": false, "127.1.2.3:8080": false, "[::1]:8080": false,
		"0.0.0.0:8080": true, "[::]:8080": true, "192.0.2.1:8080": true,
	} {
		at := net.TCPAddrFromAddrPort(netip.MustParseAddrPort(address))
		var said logtest.Lines
		logListen(said.Log(), at)
		const served = "can read /livez, /readyz, /startupz and /metrics, without authentication"
		if said.Count("level=INFO") != 1 || said.Count(at.String()) != 1 || said.Count(served) == 1 != beyond {
			t.Errorf("%s: got %s", address, said.String())
		}
	}
}
