package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	dockerclient "github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
	tcnetwork "github.com/testcontainers/testcontainers-go/network"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/streams/kafka/client"
)

// Paths and listener ports of a broker in a container.
const (
	containerConfig = "/etc/kafka"
	containerData   = "/var/lib/kafka"
	clientPort      = "9092"
	peerPort        = "9093"
	controllerPort  = "9094"
)

// containers starts brokers in containers. It builds their image if necessary.
func containers(ctx context.Context, t testing.TB, o Options) (*Cluster, string, error) {
	docker, err := dialDocker(ctx)
	if err != nil {
		return nil, "", err
	}
	t.Cleanup(func() { docker.Close() })
	image, err := kafkaImage(ctx, docker, o.release())
	if err != nil {
		return nil, "", err
	}
	nw, err := tcnetwork.New(ctx)
	if err != nil {
		return nil, "", fmt.Errorf("create network: %w", err)
	}
	t.Cleanup(func() {
		if err := nw.Remove(context.WithoutCancel(t.Context())); err != nil {
			t.Errorf("remove network: %v", err)
		}
	})
	ports, err := freePorts(o.Brokers)
	if err != nil {
		return nil, "", err
	}
	var specs []brokerSpec
	for i, port := range ports {
		name := fmt.Sprint("kafka-", i+1)
		specs = append(specs, brokerSpec{
			id: i + 1, data: containerData,
			client:     endpoint{"0.0.0.0:" + clientPort, port},
			peer:       endpoint{"0.0.0.0:" + peerPort, name + ":" + peerPort},
			controller: endpoint{"0.0.0.0:" + controllerPort, name + ":" + controllerPort},
		})
	}
	c := &Cluster{addrs: ports}
	more, files := []map[string]string{o.accessProperties(), o.Properties}, map[string][]byte{}
	c.base.SASL = o.login()
	if o.Secure {
		s, err := newTLSFiles()
		if err != nil {
			return nil, "", err
		}
		more, files[storeFile] = append(more, s.properties(containerConfig)), s.store
		c.base.TLS, c.base.SASL = s.client, &client.SASL{Mechanism: "PLAIN", User: User, Password: Password}
	}
	c.base.Brokers = c.addrs
	brokers := make([]*containerBroker, len(specs))
	var starting errgroup.Group
	for i, p := range specs {
		brokers[i] = &containerBroker{docker: docker}
		c.nodes = append(c.nodes, brokers[i])
		t.Cleanup(func() { brokers[i].remove(t) })
		text := properties(settings(p, specs, more...))
		starting.Go(func() error { return brokers[i].run(ctx, image, nw.Name, p, text, files) })
	}
	return c, image, starting.Wait()
}

// dialDocker returns a client of the Docker daemon if one answers. It configures testcontainers so that it pulls no
// image of its own.
func dialDocker(ctx context.Context) (*dockerclient.Client, error) {
	docker, err := dockerclient.New(dockerclient.FromEnv)
	if err != nil {
		return nil, unavailable("no Docker: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	if _, err := docker.Ping(ctx, dockerclient.PingOptions{NegotiateAPIVersion: true}); err != nil {
		return nil, unavailable("no Docker daemon answers: %w", errors.Join(err, docker.Close()))
	}
	// Ports are published on loopback. Without the override, testcontainers uses the bridge's address if this machine
	// looks like a container.
	return docker, errors.Join(os.Setenv("TESTCONTAINERS_RYUK_DISABLED", "true"),
		os.Setenv("TESTCONTAINERS_HOST_OVERRIDE", "127.0.0.1"))
}

// discardLogger discards the log of testcontainers. The tests report what they do to containers.
type discardLogger struct{}

func (discardLogger) Printf(string, ...any) {}

// containerBroker is a broker in a container.
type containerBroker struct {
	docker *dockerclient.Client
	c      *testcontainers.DockerContainer
}

// run creates and starts the container of broker p.
//
//nolint:revive // the parts of a container
func (b *containerBroker) run(
	ctx context.Context, image, networkName string, p brokerSpec, text string, files map[string][]byte,
) (err error) {
	name, _, err := net.SplitHostPort(p.peer.advertised)
	if err != nil {
		return err
	}
	_, hostPort, err := net.SplitHostPort(p.client.advertised)
	if err != nil {
		return err
	}
	files = withFile(files, "server.properties", []byte(text))
	var copied []testcontainers.ContainerFile
	for file, content := range files {
		copied = append(copied, testcontainers.ContainerFile{
			Reader: bytes.NewReader(content), ContainerFilePath: containerConfig + "/" + file, FileMode: 0o644,
		})
	}
	b.c, err = testcontainers.Run(ctx, image,
		testcontainers.WithLogger(discardLogger{}),
		testcontainers.WithExposedPorts(clientPort+"/tcp"),
		testcontainers.WithEnv(map[string]string{"CLUSTER_ID": clusterID}),
		testcontainers.WithFiles(copied...),
		tcnetwork.WithNetworkName([]string{name}, networkName),
		// A broker advertises its address to clients, so the port must be known before it starts.
		testcontainers.WithHostConfigModifier(func(h *container.HostConfig) {
			h.PortBindings = network.PortMap{network.MustParsePort(clientPort + "/tcp"): {
				{HostIP: netip.MustParseAddr("127.0.0.1"), HostPort: hostPort},
			}}
		}))
	return err
}

func withFile(files map[string][]byte, name string, content []byte) map[string][]byte {
	all := map[string][]byte{name: content}
	for n, c := range files {
		all[n] = c
	}
	return all
}

func (b *containerBroker) remove(t testing.TB) {
	if b.c == nil {
		return
	}
	ctx := context.WithoutCancel(t.Context())
	_ = b.thaw(ctx) // a frozen container cannot be removed; thaw fails for the others
	if err := b.c.Terminate(ctx, testcontainers.StopTimeout(0)); err != nil {
		t.Errorf("remove container: %v", err)
	}
}

func (b *containerBroker) start(ctx context.Context) error { return b.c.Start(ctx) }

func (b *containerBroker) stop(ctx context.Context) error {
	limit := callLimit - 5*time.Second
	return b.c.Stop(ctx, &limit)
}

func (b *containerBroker) kill(ctx context.Context) error {
	_, err := b.docker.ContainerKill(ctx, b.c.GetContainerID(), dockerclient.ContainerKillOptions{Signal: "KILL"})
	return err
}

// freeze tries several times: a kernel under load may not freeze all threads in time, and then thaws those that it has.
func (b *containerBroker) freeze(ctx context.Context) (err error) {
	for range 5 {
		_, err = b.docker.ContainerPause(ctx, b.c.GetContainerID(), dockerclient.ContainerPauseOptions{})
		if err == nil {
			return nil
		}
	}
	return err
}

func (b *containerBroker) thaw(ctx context.Context) error {
	_, err := b.docker.ContainerUnpause(ctx, b.c.GetContainerID(), dockerclient.ContainerUnpauseOptions{})
	return err
}
