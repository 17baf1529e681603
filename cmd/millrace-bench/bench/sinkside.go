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

	"github.com/millrace/millrace/cmd/app"
	settings "github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/sinks/clickhouse/clickhousebench"
	"github.com/millrace/millrace/streams/retry"
)

// A SinkSide is what a process of its own does for a figure of the sink: it runs the role sink, the state of copies
// beside the logs, until the changes of a broker are stored in a database that is there, and reports how long that took
// and how much memory.
type SinkSide struct {
	Broker, ClickHouse, Database string
	Partitions                   int // of each topic
	Records                      int
}

// open opens the parts of the role. The caller closes them.
func (s SinkSide) open(ctx context.Context) (*app.App, error) {
	return openApp(ctx, func(cfg *settings.Config) {
		cfg.Kafka.Brokers, cfg.Kafka.Partitions = []string{s.Broker}, s.Partitions
		cfg.Kafka.Replication, cfg.Kafka.MinInSync = 1, 1 // as the rig's topics are
		cfg.ClickHouse.Addresses, cfg.ClickHouse.Database = []string{s.ClickHouse}, s.Database
	})
}

// Store does it. It returns the line that it is to print.
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
	start := time.Now() // what it takes to join the groups counts
	err = runWhile(ctx, rolesService(a, schemas.RoleSink), func(ctx context.Context) error {
		err := pollUntil(ctx, func() (bool, error) {
			n, err := b.Number(ctx, rows)
			return n-before >= float64(s.Records), err
		})
		if err != nil {
			return err
		}
		res.Seconds = time.Since(start).Seconds()
		return pollUntil(ctx, func() (bool, error) { // the state too
			left, err := a.Behind(ctx, schemas.RoleSink, schemas.RoleState)
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

// sinkStall is how long storing may take.
const sinkTimeout = 5 * time.Minute

// lookUntil looks every 20 ms until it is done.
func pollUntil(ctx context.Context, look func() (done bool, err error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, sinkTimeout, fmt.Errorf("not all is stored within %v", sinkTimeout))
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

// mostMemory is the most that this process ever had. Linux counts for a child what its parent had when it
// began, so it is asked for its own, if it shows that.
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
		return 0, fmt.Errorf("ask for the memory of the process: %w", err)
	}
	if runtime.GOOS == "darwin" {
		return u.Maxrss, nil // there it is bytes
	}
	return u.Maxrss << 10, nil
}
