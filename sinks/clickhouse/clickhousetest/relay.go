package clickhousetest

import (
	"net"
	"sync/atomic"
)

// Relay forwards connections to a server. It calls see for each piece of data from a client; if see returns false,
// it cuts the connection. While quiet is set, it forwards nothing from the server.
func Relay(l net.Listener, server string, quiet *atomic.Bool, see func(sent string, pass func()) bool) {
	for {
		client, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer client.Close()
			up, err := net.Dial("tcp", server)
			if err != nil {
				return
			}
			defer up.Close()
			go func() {
				defer client.Close()
				buf := make([]byte, 1<<16)
				for {
					n, err := up.Read(buf)
					if err != nil {
						return
					}
					if !quiet.Load() {
						if _, err := client.Write(buf[:n]); err != nil {
							return
						}
					}
				}
			}()
			buf := make([]byte, 1<<20)
			for {
				n, err := client.Read(buf)
				if err != nil || !see(string(buf[:n]), func() { _, _ = up.Write(buf[:n]) }) {
					return
				}
				if _, err := up.Write(buf[:n]); err != nil {
					return
				}
			}
		}()
	}
}
