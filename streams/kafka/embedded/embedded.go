// Package embedded runs a Kafka broker in this process, for a single machine: kfake with its data in a directory.
//
// Acknowledged records, topics and committed offsets survive a kill of the process and, with SyncWrites, a power
// failure. Committed offsets never expire. The broker listens on loopback only and keeps one replica. It reads
// its whole log at the start, so it is not for large amounts of data.
package embedded

import (
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
)

// BrokerConfig configures a Broker.
type BrokerConfig struct {
	Dir string // created if missing; used by one broker at a time
	// SyncWrites writes every batch and every commit to disk before it is acknowledged.
	SyncWrites bool
}

// A Broker is a running broker.
type Broker struct {
	cluster *kfake.Cluster
	addr    string
	close   sync.Once
}

// StartBroker starts a broker with the data in c.Dir.
func StartBroker(c BrokerConfig) (*Broker, error) {
	if c.Dir == "" {
		return nil, errors.New("embedded broker: no directory")
	}
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("embedded broker: %w", err)
	}
	opts := []kfake.Opt{
		kfake.NumBrokers(1),
		kfake.ClusterID("millrace"),
		kfake.DataDir(c.Dir),
		kfake.ListenFn(func(network, _ string) (net.Listener, error) {
			return net.Listen(network, "127.0.0.1:0") // any port: no file in Dir depends on it
		}),
		kfake.BrokerConfigs(map[string]string{
			"offsets.retention.minutes": strconv.Itoa(math.MaxInt32), // committed offsets never expire
			"log.retention.ms":          "-1",
			"log.retention.bytes":       "-1",
		}),
	}
	if c.SyncWrites {
		opts = append(opts, kfake.SyncWrites())
	}
	cluster, err := kfake.NewCluster(opts...)
	if err != nil {
		return nil, fmt.Errorf("start embedded broker in %s: %w", c.Dir, err)
	}
	SetLogAppendTimes(cluster, time.Now)
	return &Broker{cluster: cluster, addr: cluster.ListenAddrs()[0]}, nil
}

// Addr returns the host and port to connect to.
func (b *Broker) Addr() string { return b.addr }

// Close writes buffered data to disk and stops the broker. It may be called more than once.
func (b *Broker) Close() { b.close.Do(b.cluster.Close) }
