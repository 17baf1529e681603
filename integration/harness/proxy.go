package harness

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
)

// Proxy is a toxiproxy in this process in front of one broker. Clients must dial with Proxies.Dial, because brokers
// advertise their own addresses.
type Proxy struct{ proxy *toxiproxy.Proxy }

// Proxies are the proxies of all brokers of a cluster.
type Proxies []*Proxy

// Proxies starts the proxies. They stop when t ends.
func (c *Cluster) Proxies(t testing.TB) Proxies {
	t.Helper()
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(prometheus.NewRegistry()), zerolog.Nop())
	var all Proxies
	for i, addr := range c.addrs {
		p := toxiproxy.NewProxy(server, fmt.Sprint("broker-", i), "127.0.0.1:0", addr)
		if err := p.Start(); err != nil {
			t.Fatalf("start proxy: %v", err)
		}
		t.Cleanup(p.Stop)
		all = append(all, &Proxy{p})
	}
	return all
}

// Dial connects to the proxy of addr. It is a Dial function for client.Config.
func (ps Proxies) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	for _, p := range ps {
		if p.proxy.Upstream == addr {
			addr = p.proxy.Listen
		}
	}
	return new(net.Dialer).DialContext(ctx, network, addr)
}

// Cut closes all connections and refuses new ones until Restore is called.
func (p *Proxy) Cut() { p.proxy.Stop() }

// Restore listens again on the same port.
func (p *Proxy) Restore(t testing.TB) {
	t.Helper()
	if err := p.proxy.Start(); err != nil {
		t.Fatalf("start proxy: %v", err)
	}
}

// Add adds a toxic in toxiproxy's JSON format and returns a function that removes it. Example:
// {"name":"slow","type":"latency","stream":"upstream","attributes":{"latency":100}}.
func (p *Proxy) Add(t testing.TB, toxic string) (remove func()) {
	t.Helper()
	added, err := p.proxy.Toxics.AddToxicJson(strings.NewReader(toxic))
	if err != nil {
		t.Fatalf("add toxic: %v", err)
	}
	return func() {
		if err := p.proxy.Toxics.RemoveToxic(t.Context(), added.Name); err != nil {
			t.Errorf("remove toxic: %v", err)
		}
	}
}
