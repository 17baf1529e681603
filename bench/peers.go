package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/millrace/millrace/schemas"
)

// Side is the job of one child process in a comparison: consume a topic with a handler that does nothing, and report
// the time it took.
type Side struct {
	Broker  string
	Group   string
	Records int
}

// sideResult is the line that a side prints, ours and the peers' alike.
type sideResult struct {
	Records int64   `json:"records"`
	Seconds float64 `json:"seconds"`
	Bytes   int64   `json:"bytes,omitempty"` // peak memory of the process
	// Copied is the p99 time in seconds from a Change to the end of its copy, as the log of results has it.
	Copied float64 `json:"copied,omitempty"`
	// CPU is the processor time in seconds of the job, in all processes.
	CPU float64 `json:"cpu,omitempty"`
}

func (r sideResult) rate() float64 { return float64(r.Records) / r.Seconds }

// Consume runs our side and returns the line to print.
func (s Side) Consume(ctx context.Context) (line []byte, err error) {
	rate, err := consume(ctx, s.Broker, copierConfig(schemas.Role(s.Group), consumedTopic), s.Records, noWork)
	if err != nil {
		return nil, err
	}
	return json.Marshal(sideResult{Records: int64(s.Records), Seconds: float64(s.Records) / rate})
}

// watermill is the file name of the peer's program, as built by make peers.
const watermill = "watermill-kafka"

// compareWatermill runs our side and watermill's router in turns, each in its own process. Our side decodes and
// schedules messages; the peer passes on their bytes.
func (r *runner) compareWatermill(ctx context.Context) (m measurement, err error) {
	record, err := commands(accounts()...)
	if err != nil {
		return m, err
	}
	n := r.amounts.peerRecords
	peer := filepath.Join(r.cfg.Peers, watermill)
	c := rateBenchmark{n: n, record: record, ours: func(ctx context.Context, g *testBroker, round int) (float64, error) {
		return side(ctx, r.cfg.Self, "side", "--broker", g.Addr(), "--group", string(roundRole(round)),
			"--records", strconv.Itoa(n))
	}}
	_, err = os.Stat(peer)
	switch {
	case err == nil:
		c.peer = func(ctx context.Context, g *testBroker, round int) (float64, error) {
			return side(ctx, peer, "--broker", g.Addr(), "--topic", prefix+string(consumedTopic),
				"--group", prefix+"peer."+string(roundRole(round)), "--records", strconv.Itoa(n))
		}
	case errors.Is(err, os.ErrNotExist):
	default:
		return m, fmt.Errorf("find the peer: %w", err)
	}
	if m, err = c.run(ctx, r, r.amounts.fewRounds()); err == nil && c.peer == nil {
		m.absent = "make peers"
	}
	return m, err
}

// sideStop is how long a child process may take to stop after an interrupt.
const sideStop = 10 * time.Second

// side runs one side and returns its records per second.
func side(ctx context.Context, program string, args ...string) (rate float64, err error) {
	res, err := runSide(ctx, program, args...)
	if err != nil {
		return 0, err
	}
	return res.rate(), nil
}

// runSide runs a side's program until it exits and returns its result.
func runSide(ctx context.Context, program string, args ...string) (res sideResult, err error) {
	name := filepath.Base(program)
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = sideStop
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	if err := runChild(cmd); err != nil {
		return res, fmt.Errorf("run %s: %w: %s", name, err, strings.TrimSpace(stderr.String()))
	}
	if err := json.Unmarshal(out.Bytes(), &res); err != nil {
		return res, fmt.Errorf("parse the output of %s: %w", name, err)
	}
	if res.Records <= 0 || res.Seconds <= 0 {
		return res, fmt.Errorf("%s reported an invalid result: %g s for %d records", name, res.Seconds, res.Records)
	}
	return res, nil
}
