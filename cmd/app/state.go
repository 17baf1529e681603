package app

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/cmd/precondition"
	clickhouse "github.com/millrace/millrace/sinks/clickhouse/embedded"
	kafka "github.com/millrace/millrace/streams/kafka/embedded"
)

// stateVersion is the version of the state directory. It is raised when older versions of millrace
// could not read one any more.
const stateVersion = 1

// engineGrace is the time that ClickHouse has to stop before it is killed.
const engineGrace = 2 * time.Second

// partitions is the number of partitions of topics in a state directory. It is low because the
// embedded broker syncs the batches of each partition separately, one after the other.
const partitions = 2

// stateFile marks a directory as a state directory, and has its version.
const stateFile = "state.json"

// State is a state directory and the embedded engines that run in it: a Kafka broker and a
// ClickHouse server, both on loopback. One process at a time holds it.
type State struct {
	dir    string
	lock   *os.File
	broker *kafka.Broker
	engine *clickhouse.Server
}

// StateConfig configures a State.
type StateConfig struct {
	Dir           string
	Log           *slog.Logger
	Progress      io.Writer // gets messages about slow steps, such as downloading ClickHouse
	WithoutBroker bool      // do not start Kafka
	WithoutEngine bool      // do not start ClickHouse
}

// OpenState creates the directory if needed, locks it, and starts the engines.
func OpenState(ctx context.Context, c StateConfig) (_ *State, err error) {
	s := &State{dir: c.Dir}
	if err := s.claim(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close(ctx))
		}
	}()
	var g errgroup.Group
	g.Go(func() (err error) {
		if c.WithoutBroker {
			return nil
		}
		s.broker, err = kafka.StartBroker(kafka.BrokerConfig{Dir: filepath.Join(c.Dir, "kafka"), SyncWrites: true})
		if err != nil {
			return fmt.Errorf("start the embedded broker: %w", err)
		}
		return nil
	})
	g.Go(func() (err error) {
		if c.WithoutEngine {
			return nil
		}
		s.engine, err = clickhouse.Start(ctx,
			clickhouse.Config{Dir: filepath.Join(c.Dir, "clickhouse"), Log: c.Log, Progress: c.Progress})
		if err != nil {
			return fmt.Errorf("start the embedded ClickHouse: %w", err)
		}
		return nil
	})
	if err := g.Wait(); err != nil {
		return nil, err
	}
	return s, nil
}

// claim creates the directory, locks it, and checks its version.
func (s *State) claim() (err error) {
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return fmt.Errorf("make the state directory: %w", err)
	}
	if err := s.recognise(); err != nil {
		return err
	}
	s.lock, err = os.OpenFile(filepath.Join(s.dir, "lock"), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return fmt.Errorf("open the state directory's lock: %w", err)
	}
	defer func() {
		if err != nil {
			s.lock.Close()
		}
	}()
	if err := unix.Flock(int(s.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		holder, _ := io.ReadAll(io.LimitReader(s.lock, 32))
		return fmt.Errorf(
			"%w: state directory %s is in use by process %s: stop it first, or name another directory with --state",
			precondition.Err, s.dir, strings.TrimSpace(string(holder)))
	}
	if err := s.checkVersion(); err != nil {
		return err
	}
	if err := s.lock.Truncate(0); err != nil {
		return fmt.Errorf("write the state directory's lock: %w", err)
	}
	if _, err := s.lock.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0); err != nil {
		return fmt.Errorf("write the state directory's lock: %w", err)
	}
	return nil
}

// recognise refuses a directory with other contents, so that a wrong path does no harm.
func (s *State) recognise() error {
	if IsState(s.dir) {
		return nil
	}
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return fmt.Errorf("read the state directory: %w", err)
	}
	for _, e := range entries {
		if e.Name() != "lock" && !strings.HasPrefix(e.Name(), tmpPrefix) { // a killed process can leave these
			return fmt.Errorf("%w: %s holds %s but no %s: it is not a state directory; name an empty or new one with --state",
				precondition.Err, s.dir, e.Name(), stateFile)
		}
	}
	return nil
}

// checkVersion checks the version of the directory. A new directory gets the present version.
func (s *State) checkVersion() error {
	file := filepath.Join(s.dir, stateFile)
	var held struct {
		Version int `json:"version"`
	}
	data, err := os.ReadFile(file)
	switch {
	case errors.Is(err, os.ErrNotExist):
		held.Version = stateVersion
		data, err := json.Marshal(held)
		if err != nil {
			return err
		}
		return WriteFile(file, append(data, '\n'))
	case err != nil:
		return fmt.Errorf("read the state directory's version: %w", err)
	}
	if err := json.Unmarshal(data, &held); err != nil {
		return fmt.Errorf("%w: %s is not readable (%w): restore it or name another directory with --state",
			precondition.Err, file, err)
	}
	if held.Version != stateVersion {
		return fmt.Errorf("%w: state directory %s has version %d, this millrace reads version %d: "+
			"use the millrace that made it, or name another directory with --state",
			precondition.Err, s.dir, held.Version, stateVersion)
	}
	return nil
}

// Configure changes cfg to use the embedded engines, which listen on loopback without
// authentication.
func (s *State) Configure(cfg *config.Config) {
	if s.broker != nil {
		cfg.Kafka.Brokers = []string{s.broker.Addr()}
	}
	cfg.Kafka.Replication, cfg.Kafka.MinInSync, cfg.Kafka.Partitions = 1, 1, partitions
	cfg.Kafka.TLS, cfg.Kafka.SASL = config.TLS{}, config.SASL{}
	if s.engine != nil {
		cfg.ClickHouse = config.ClickHouse{
			Addresses: []string{s.engine.Addr()}, Database: "millrace", User: "default", InsertQuorum: "all",
		}
	}
}

// IsState reports whether dir is a state directory.
func IsState(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, stateFile))
	return err == nil
}

// ConfigIn returns the path of the configuration in a state directory.
func ConfigIn(dir string) string { return filepath.Join(dir, "config.yaml") }

// SaveConfig writes cfg to the state directory, for commands that get only --state. The file is
// readable only by its owner. The settings of the engines are left out, since a state has its own
// engines.
func SaveConfig(s *State, cfg *config.Config) error {
	kept := *cfg
	own := config.Default()
	kept.Kafka.Brokers, kept.Kafka.TLS, kept.Kafka.SASL = own.Kafka.Brokers, own.Kafka.TLS, own.Kafka.SASL
	kept.ClickHouse = own.ClickHouse
	var b bytes.Buffer
	if err := config.Save(&b, &kept); err != nil {
		return fmt.Errorf("save the configuration: %w", err)
	}
	return WriteFile(ConfigIn(s.dir), b.Bytes())
}

// Path returns the path of name in the state directory.
func (s *State) Path(name ...string) string {
	return filepath.Join(append([]string{s.dir}, name...)...)
}

// Watch waits until ctx is done. It returns an error if ClickHouse ends before.
func (s *State) Watch(ctx context.Context) error {
	if err := s.engine.Wait(ctx); ctx.Err() == nil {
		return fmt.Errorf("the embedded ClickHouse ended: %w", err)
	}
	return nil
}

// Close stops the engines and unlocks the directory, also after ctx is done. It takes a few seconds
// at most.
func (s *State) Close(ctx context.Context) error {
	var errs []error
	if s.broker != nil {
		s.broker.Close()
	}
	if s.engine != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), engineGrace)
		defer cancel()
		errs = append(errs, s.engine.Close(ctx))
	}
	return errors.Join(append(errs, s.lock.Close())...)
}

// tmpPrefix is the prefix of temporary files that WriteFile renames.
const tmpPrefix = ".tmp-"

// WriteFile writes a file atomically and durably: after a crash it is complete or absent.
func WriteFile(name string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(name), tmpPrefix+"*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(data)
	err = errors.Join(err, f.Sync(), f.Close())
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	if err := os.Rename(f.Name(), name); err != nil {
		return err
	}
	d, err := os.Open(filepath.Dir(name))
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
