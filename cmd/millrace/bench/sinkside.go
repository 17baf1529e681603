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
}

// Store does it. It returns the line that it is to print.
func (s SinkSide) Store(ctx context.Context) (line []byte, err error) {
	db, err := clickhouse.Open(clickhouse.Config{Addresses: []string{s.ClickHouse}, Database: s.Database}, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	defer db.Close()
	sink := &timed{Sink: clickhouse.NewSink(db), lap: newLap(s.Records)}
	g, err := kafka.NewBatchGroup(config(s.Broker), kafka.BatchConfig{Role: schemas.Role(s.Group), Topics: []schemas.Topic{schemas.Changes}}, sink)
	if err != nil {
		return nil, err
	}
	var rate float64
	sink.lap.begin() // what it takes to join the group counts
	if err := while(ctx, g, func(ctx context.Context) (err error) {
		rate, err = sink.lap.rate(ctx)
		return err
	}); err != nil {
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
	*clickhouse.Sink
	lap *lap
}

// Store implements kafka.BatchSink.
func (t *timed) Store(ctx context.Context, batch []*schemas.Delivery) error {
	n := len(batch) // Store lets go of it
	err := t.Sink.Store(ctx, batch)
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
