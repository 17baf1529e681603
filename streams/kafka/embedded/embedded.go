// Package embedded is a Kafka broker inside this process, for one machine: kfake with
// its data in a directory.
//
// A record that it acknowledged survives the process being killed, where SyncWrites is
// set also the machine losing power; so do topics and committed offsets, which never
// expire. It listens on loopback only, keeps one replica, and reads its whole log when
// it starts: it is not for more data than that bears.
package embedded

import (
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"strconv"
	"sync"

	"github.com/twmb/franz-go/pkg/kfake"
)

// BrokerConfig says where a Broker keeps its data and where it listens.
type BrokerConfig struct {
	Dir string // made if it is not there; nobody else may use it meanwhile
	// SyncWrites has every batch and commit on disk before it is acknowledged.
	SyncWrites bool
}

// A Broker is running from StartBroker until Close.
type Broker struct {
	cluster *kfake.Cluster
	addr    string
	close   sync.Once
}

// StartBroker starts a broker on the data in its directory.
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
			return net.Listen(network, "127.0.0.1:0") // nothing in Dir depends on the port
		}),
		kfake.BrokerConfigs(map[string]string{
			"offsets.retention.minutes": strconv.Itoa(math.MaxInt32), // committed offsets are never forgotten
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
	StampAppends(cluster)
	return &Broker{cluster: cluster, addr: cluster.ListenAddrs()[0]}, nil
}

// Addr is the host and port to connect to.
func (b *Broker) Addr() string { return b.addr }

// Close writes out what is in memory and stops listening. It may be called again.
func (b *Broker) Close() { b.close.Do(b.cluster.Close) }
