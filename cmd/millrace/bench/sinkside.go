package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/streams/kafka"
)

// A SinkSide is what a process of its own does for a figure of the sink: store the changes of a broker in a database
// that is there, and say how long it took and how much memory.
type SinkSide struct {
	Broker, ClickHouse, Database string
	Group                        string
	Records                      int
	State                        bool // the state of copies too, as the role sink does
}

// Store does it. It returns the line that it is to print.
func (s SinkSide) Store(ctx context.Context) (line []byte, err error) {
	db, err := clickhouse.Open(clickhouse.Config{Addresses: []string{s.ClickHouse}, Database: s.Database}, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	defer db.Close()
	store := func(ctx context.Context, group string, memory int64, sink kafka.BatchSink) (rate float64, err error) {
		t := &timed{BatchSink: sink, lap: newLap(s.Records)}
		g, err := kafka.NewBatchGroup(config(s.Broker), kafka.BatchConfig{Role: schemas.Role(group), Topics: []schemas.Topic{schemas.Changes}, Memory: memory}, t)
		if err != nil {
			return 0, err
		}
		t.lap.begin() // what it takes to join the group counts
		err = while(ctx, g, func(ctx context.Context) (err error) {
			rate, err = t.lap.rate(ctx)
			return err
		})
		return rate, err
	}
	var rate float64
	sides, ctx := errgroup.WithContext(ctx)
	sides.Go(func() (err error) {
		rate, err = store(ctx, s.Group, kafka.BatchMemory, clickhouse.NewSink(db))
		return err
	})
	if s.State {
		sides.Go(func() error {
			_, err := store(ctx, s.Group+".state", kafka.BatchMemory/3, clickhouse.NewState(db)) // as the role has it
			return err
		})
	}
	if err := sides.Wait(); err != nil {
		return nil, err
	}
	most, err := mostMemory()
	if err != nil {
		return nil, err
	}
	return json.Marshal(sideResult{Records: int64(s.Records), Seconds: float64(s.Records) / rate, Bytes: most})
}

// timed takes the time until all records are stored.
type timed struct {
	kafka.BatchSink
	lap *lap
}

// Store implements kafka.BatchSink.
func (t *timed) Store(ctx context.Context, batch []*schemas.Delivery) error {
	n := len(batch) // Store lets go of it
	err := t.BatchSink.Store(ctx, batch)
	if err == nil {
		t.lap.ended(n)
	}
	return err
}

// mostMemory is the most that this process ever had. Linux counts for a child what its parent had when it
// began, so it is asked for its own where it tells that.
func mostMemory() (bytes int64, err error) {
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
