// Package statedir keeps everything that millrace needs on one machine in one directory: an embedded
// Kafka broker and an embedded ClickHouse server with their data, and the configuration. Both engines
// listen on loopback.
//
// One process at a time holds a state directory. One that is in use, one of another version, and a
// directory with other contents are refused with precondition.Err. Files are written atomically and
// durably.
package statedir

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/cmd/config"
	clickhouse "github.com/millrace/millrace/sinks/clickhouse/embedded"
	kafka "github.com/millrace/millrace/streams/kafka/embedded"
)

// version is the version of the state directory. Directories of other versions are refused.
const version = 3

// engineGrace is the time that ClickHouse has to stop before it is killed.
const engineGrace = 2 * time.Second

// partitions is the number of partitions of topics in a state directory. It is low because the
// embedded broker syncs the batches of each partition separately, one after the other.
const partitions = 2

// versionFile marks a directory as a state directory, and has its version.
const versionFile = "state.json"

// A Dir is a state directory that this process holds, and the engines that run in it.
type Dir struct {
	path   string
	lock   *os.File
	broker *kafka.Broker
	engine *clickhouse.Server
}

// Config configures a Dir.
type Config struct {
	Dir           string
	Log           *slog.Logger
	Progress      io.Writer // gets messages about slow steps, such as downloading ClickHouse
	WithoutBroker bool      // do not start Kafka
	WithoutEngine bool      // do not start ClickHouse
}

// Open creates the directory if needed, locks it, and starts the engines. The caller closes it.
func Open(ctx context.Context, c Config) (_ *Dir, err error) {
	d := &Dir{path: c.Dir}
	if err := d.claim(); err != nil {
		return nil, explain(c.Dir, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(explainWithin(c.Dir, err), d.Close(ctx))
		}
	}()
	var g errgroup.Group
	g.Go(func() (err error) {
		if c.WithoutBroker {
			return nil
		}
		d.broker, err = kafka.StartBroker(kafka.BrokerConfig{Dir: filepath.Join(c.Dir, "kafka"), SyncWrites: true})
		if err != nil {
			return fmt.Errorf("start the embedded broker: %w", err)
		}
		return nil
	})
	g.Go(func() (err error) {
		if c.WithoutEngine {
			return nil
		}
		d.engine, err = clickhouse.Start(ctx,
			clickhouse.Config{Dir: filepath.Join(c.Dir, "clickhouse"), Log: c.Log, Progress: c.Progress})
		if err != nil {
			return fmt.Errorf("start the embedded ClickHouse: %w", err)
		}
		return nil
	})
	if err := g.Wait(); err != nil {
		return nil, err
	}
	return d, nil
}

// Configure changes cfg to use the embedded engines, which listen on loopback without
// authentication.
func (d *Dir) Configure(cfg *config.Config) {
	if d.broker != nil {
		cfg.Kafka.Brokers = []string{d.broker.Addr()}
	}
	cfg.Kafka.Replication, cfg.Kafka.MinInSync, cfg.Kafka.Partitions = 1, 1, partitions
	cfg.Kafka.TLS, cfg.Kafka.SASL = config.TLS{}, config.SASL{}
	if d.engine != nil {
		cfg.ClickHouse = config.ClickHouse{
			Addresses: []string{d.engine.Addr()}, Database: "millrace", User: "default",
		}
	}
}

// ConfigFile returns the path of the configuration in the state directory dir.
func ConfigFile(dir string) string { return filepath.Join(dir, "config.yaml") }

// SaveConfig writes cfg to the state directory, for commands that get only --state. The file is
// readable only by its owner. The settings of the engines are left out, since a state directory has
// its own engines.
func (d *Dir) SaveConfig(cfg *config.Config) error {
	kept := *cfg
	own := config.Default()
	kept.Kafka.Brokers, kept.Kafka.TLS, kept.Kafka.SASL = own.Kafka.Brokers, own.Kafka.TLS, own.Kafka.SASL
	kept.ClickHouse = own.ClickHouse
	var b bytes.Buffer
	if err := config.Save(&b, &kept); err != nil {
		return fmt.Errorf("save the configuration: %w", err)
	}
	return WriteFile(ConfigFile(d.path), b.Bytes())
}

// Path returns the path of name in the state directory.
func (d *Dir) Path(name ...string) string {
	return filepath.Join(append([]string{d.path}, name...)...)
}

// Watch waits until ctx is done. It returns an error if ClickHouse, if it was started, ends before.
func (d *Dir) Watch(ctx context.Context) error {
	if d.engine == nil {
		<-ctx.Done()
		return nil
	}
	if err := d.engine.Wait(ctx); ctx.Err() == nil {
		return fmt.Errorf("the embedded ClickHouse ended: %w", err)
	}
	return nil
}

// Close stops the engines and unlocks the directory, also after ctx is done. It takes a few seconds
// at most.
func (d *Dir) Close(ctx context.Context) error {
	var errs []error
	if d.broker != nil {
		d.broker.Close()
	}
	if d.engine != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), engineGrace)
		defer cancel()
		errs = append(errs, d.engine.Close(ctx))
	}
	// A child process that is just being started may still have a copy of the lock's descriptor, so closing alone
	// does not always unlock.
	return errors.Join(append(errs, unix.Flock(int(d.lock.Fd()), unix.LOCK_UN), d.lock.Close())...)
}
