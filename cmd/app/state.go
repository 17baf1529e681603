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
	clickhouse "github.com/millrace/millrace/sinks/clickhouse/embedded"
	kafka "github.com/millrace/millrace/streams/kafka/embedded"
)

// stateVersion is raised when an older millrace could not read a state directory any more.
const stateVersion = 1

// engineGrace is how long the engine has to stop before it is made to.
const engineGrace = 2 * time.Second

// partitions of the topics that are made in a state directory: the embedded broker syncs
// each partition's batches for itself, one after the other, so few are fast.
const partitions = 2

// stateFile makes a directory a state directory.
const stateFile = "state.json"

// ErrPrecondition is wrapped by errors that a person must mend before trying again:
// a state directory in use or of another version, a store without its marker.
var ErrPrecondition = errors.New("precondition")

// State is a state directory with the embedded engines that run in it: a Kafka broker
// and a ClickHouse, both on loopback. One process at a time holds it.
type State struct {
	dir    string
	lock   *os.File
	broker *kafka.Broker
	engine *clickhouse.Server
}

// StateConfig says which directory, and what to start in it.
type StateConfig struct {
	Dir           string
	Log           *slog.Logger
	Progress      io.Writer // told of what takes long, such as fetching the engine once
	WithoutBroker bool      // for those who read ClickHouse only
	WithoutEngine bool      // for those who need Kafka only
}

// OpenState locks the directory, which is made where it is missing, and starts the engines.
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
		s.engine, err = clickhouse.Start(ctx, clickhouse.Config{Dir: filepath.Join(c.Dir, "clickhouse"), Log: c.Log, Progress: c.Progress})
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

// claim makes the directory, takes its lock and checks its version.
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
		return fmt.Errorf("%w: state directory %s is in use by process %s: stop it first, or name another directory with --state",
			ErrPrecondition, s.dir, strings.TrimSpace(string(holder)))
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

// recognise refuses a directory that holds something else, so that a wrong path does no harm.
func (s *State) recognise() error {
	if IsState(s.dir) {
		return nil
	}
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return fmt.Errorf("read the state directory: %w", err)
	}
	for _, e := range entries {
		if e.Name() != "lock" && !strings.HasPrefix(e.Name(), tmpPrefix) { // left by a kill
			return fmt.Errorf("%w: %s holds %s but no %s: it is not a state directory; name an empty or new one with --state",
				ErrPrecondition, s.dir, e.Name(), stateFile)
		}
	}
	return nil
}

// checkVersion reads the directory's version; a new one gets the present version.
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
		return fmt.Errorf("%w: %s is not readable (%w): restore it or name another directory with --state", ErrPrecondition, file, err)
	}
	if held.Version != stateVersion {
		return fmt.Errorf("%w: state directory %s is of version %d, this millrace reads version %d: "+
			"use the millrace that made it, or name another directory with --state", ErrPrecondition, s.dir, held.Version, stateVersion)
	}
	return nil
}

// Configure points cfg at the embedded engines, which listen on loopback and ask for no login.
func (s *State) Configure(cfg *config.Config) {
	if s.broker != nil {
		cfg.Kafka.Brokers = []string{s.broker.Addr()}
	}
	cfg.Kafka.Replication, cfg.Kafka.MinInSync, cfg.Kafka.Partitions = 1, 1, partitions
	cfg.Kafka.TLS, cfg.Kafka.SASL = config.TLS{}, config.SASL{}
	if s.engine != nil {
		cfg.ClickHouse = config.ClickHouse{Addresses: []string{s.engine.Addr()}, Database: "millrace", User: "default", InsertQuorum: "all"}
	}
}

// IsState reports whether dir is a state directory.
func IsState(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, stateFile))
	return err == nil
}

// ConfigIn is where a state directory keeps its configuration.
func ConfigIn(dir string) string { return filepath.Join(dir, "config.yaml") }

// SaveConfig keeps cfg in the state directory, for commands that are given only that, and for nobody else's eyes. The
// engines' own part is left out: a state has its own engines.
func SaveConfig(s *State, cfg *config.Config) error {
	kept := *cfg
	own := config.Default()
	kept.Kafka.Brokers, kept.Kafka.TLS, kept.Kafka.SASL = own.Kafka.Brokers, own.Kafka.TLS, own.Kafka.SASL
	kept.ClickHouse = own.ClickHouse
	var b bytes.Buffer
	if err := config.Save(&b, &kept); err != nil {
		return fmt.Errorf("keep the configuration: %w", err)
	}
	return WriteFile(ConfigIn(s.dir), b.Bytes())
}

// Path returns the path of name in the state directory.
func (s *State) Path(name ...string) string {
	return filepath.Join(append([]string{s.dir}, name...)...)
}

// Watch returns when ctx is done, or with an error when an engine dies.
func (s *State) Watch(ctx context.Context) error {
	if err := s.engine.Wait(ctx); ctx.Err() == nil {
		return fmt.Errorf("the embedded ClickHouse ended by itself: %w", err)
	}
	return nil
}

// Close stops the engines, also after ctx is done, and gives the directory free. It takes a
// few seconds at most.
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

// tmpPrefix begins the names of files that are being written.
const tmpPrefix = ".tmp-"

// WriteFile writes a file that is there whole or not at all, also after a crash.
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
