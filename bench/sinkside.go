package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/millrace/millrace/bench/clickhousebench"
	"github.com/millrace/millrace/cmd/app"
	settings "github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/retry"
)

// SinkSide is the job of one child process in the sink figures. It runs the role sink, both the logs and the state of
// copies, until the changes of a broker are stored in an existing database, and reports the time and the peak memory.
type SinkSide struct {
	Broker, ClickHouse, Database string
	Partitions                   int // of each topic
	Records                      int
}

// open opens the app for the role. The caller closes it.
func (s SinkSide) open(ctx context.Context) (*app.App, error) {
	return openApp(ctx, func(cfg *settings.Config) {
		cfg.Kafka.Brokers, cfg.Kafka.Partitions = []string{s.Broker}, s.Partitions
		cfg.Kafka.Replication, cfg.Kafka.MinInSync = 1, 1 // as testBroker's topics
		cfg.ClickHouse.Addresses, cfg.ClickHouse.Database = []string{s.ClickHouse}, s.Database
	})
}

// Store runs the role and returns the line to print.
func (s SinkSide) Store(ctx context.Context) (line []byte, err error) {
	b, err := clickhousebench.Open(s.ClickHouse, s.Database)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	a, err := s.open(ctx)
	if err != nil {
		return nil, err
	}
	defer a.Close()
	const rows = "SELECT toFloat64(count()) FROM {db}.audit_log"
	before, err := b.Number(ctx, rows)
	if err != nil {
		return nil, err
	}
	res := sideResult{Records: int64(s.Records)}
	start := time.Now() // includes the time to join the groups
	err = runWhile(ctx, rolesService(a, schemas.RoleSink), func(ctx context.Context) error {
		err := pollUntil(ctx, func() (bool, error) {
			n, err := b.Number(ctx, rows)
			return n-before >= float64(s.Records), err
		})
		if err != nil {
			return err
		}
		res.Seconds = time.Since(start).Seconds()
		return pollUntil(ctx, func() (bool, error) { // also wait for the state
			left, err := a.Lag(ctx, schemas.RoleSink, schemas.RoleState)
			return left == 0, err
		})
	})
	if err != nil {
		return nil, err
	}
	if res.Bytes, err = peakMemory(); err != nil {
		return nil, err
	}
	return json.Marshal(res)
}

// sinkTimeout is how long storing may take.
const sinkTimeout = 5 * time.Minute

// pollUntil calls look every 20 ms until it is done.
func pollUntil(ctx context.Context, look func() (done bool, err error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, sinkTimeout, fmt.Errorf("rows not stored within %v", sinkTimeout))
	defer cancel()
	for {
		if done, err := look(); done || err != nil {
			return err
		}
		if err := retry.Sleep(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
}

// peakMemory returns the peak memory of this process. On Linux it reads VmHWM: the rusage of a child starts with the
// parent's peak.
func peakMemory() (bytes int64, err error) {
	if status, err := os.ReadFile("/proc/self/status"); err == nil {
		for line := range strings.Lines(string(status)) {
			if _, err := fmt.Sscanf(line, "VmHWM: %d kB", &bytes); err == nil {
				return bytes << 10, nil
			}
		}
	}
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0, fmt.Errorf("read the memory of the process: %w", err)
	}
	if runtime.GOOS == "darwin" {
		return u.Maxrss, nil // macOS reports bytes, other systems KiB
	}
	return u.Maxrss << 10, nil
}
