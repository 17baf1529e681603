package app

import (
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/millrace/millrace/cmd/precondition"
)

// An address that cannot be used is a precondition, and the error says what to do.
func TestListenOn(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
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
