package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/millrace/millrace/cmd/millrace/usage"
	"github.com/millrace/millrace/streams/child"
)

// A side is the job of one child process, with its options as exported fields.
type side interface {
	run(ctx context.Context) (sideResult, error)
}

// sideResult is the line that a side prints, ours and watermill's alike.
type sideResult struct {
	Records int64   `json:"records"`
	Seconds float64 `json:"seconds"`
}

func (r sideResult) rate() float64 { return float64(r.Records) / r.Seconds }

// sides returns the jobs of child processes by their names.
func sides() map[string]side {
	return map[string]side{
		"consume": &consumeSide{}, "sink": &sinkSide{}, "stores": &storesSide{}, "roles": &rolesSide{},
		"pairs": &pairsSide{}, "reconcile": &reconcileSide{},
	}
}

// Child does the job of a child process of this program: that of the name, with options in JSON. A server writes its
// address to out and runs until in ends; the other jobs write their result.
func Child(ctx context.Context, name, options string, in io.Reader, out io.Writer) error {
	switch name {
	case "broker":
		return serveBroker(in, out)
	case "objects":
		return serveObjects(options, in, out)
	}
	s, ok := sides()[name]
	if !ok {
		return fmt.Errorf("%w: %q is not the job of a child process", usage.Err, name)
	}
	if err := json.Unmarshal([]byte(options), s); err != nil {
		return fmt.Errorf("%w: options of %s: %w", usage.Err, name, err)
	}
	res, err := s.run(ctx)
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(res)
}

// runSide runs our side in a child process, and returns its result and the seconds of the whole process.
func (r *runner) runSide(ctx context.Context, name string, s side) (res sideResult, seconds float64, err error) {
	options, err := json.Marshal(s)
	if err != nil {
		return res, 0, err
	}
	env := []string{objectsVariable + "=" + objectsKey}
	seconds, out, err := runTimed(ctx, env, r.cfg.Self, "child", name, string(options))
	if err != nil {
		return res, 0, err
	}
	res, err = parseResult(name, out)
	return res, seconds, err
}

// parseResult parses the line that a side prints.
func parseResult(name string, line []byte) (res sideResult, err error) {
	if err := json.Unmarshal(line, &res); err != nil {
		return res, fmt.Errorf("parse the output of %s: %w", name, err)
	}
	if res.Records <= 0 || res.Seconds <= 0 {
		return res, fmt.Errorf("%s reported an invalid result: %g s for %d records", name, res.Seconds, res.Records)
	}
	return res, nil
}

// childStop is how long a child process may take to stop after an interrupt.
const childStop = 10 * time.Second

// runTimed runs a program until it exits and returns the seconds that it took and its standard output. A terminal's
// Ctrl-C does not reach the child; the end of ctx interrupts it once.
func runTimed(
	ctx context.Context, env []string, program string, args ...string,
) (seconds float64, out []byte, err error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = childStop
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	start := time.Now()
	exited, err := child.Start(cmd)
	if err != nil {
		return 0, nil, fmt.Errorf("run %s: %w", filepath.Base(program), err)
	}
	<-exited
	seconds = time.Since(start).Seconds()
	if !cmd.ProcessState.Success() {
		err = fmt.Errorf("run %s: %w: %s", filepath.Base(program), &exec.ExitError{ProcessState: cmd.ProcessState},
			strings.TrimSpace(stderr.String()))
	}
	return seconds, stdout.Bytes(), err
}

// A server is a child process that serves until its standard input ends, also if this process is killed. Its data is
// lost then.
type server struct {
	addr string // the line that it has printed
	cmd  *exec.Cmd
	in   io.Closer
}

// startServer starts a server and waits for its address. The process is killed when ctx ends.
func (r *runner) startServer(ctx context.Context, name, options string) (*server, error) {
	cmd := exec.CommandContext(ctx, r.cfg.Self, "child", name, options)
	cmd.Stderr = os.Stderr
	cmd.WaitDelay = childStop
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	s := &server{cmd: cmd, in: in}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		s.close()
		return nil, fmt.Errorf("start %s: it reports no address: %w", name, err)
	}
	s.addr = strings.TrimSpace(line)
	return s, nil
}

// close stops the server and waits for its end. It ignores errors, which do not affect the results.
func (s *server) close() {
	_ = s.in.Close()
	kill := time.AfterFunc(childStop, func() { _ = s.cmd.Process.Kill() })
	defer kill.Stop()
	_ = s.cmd.Wait()
}

// serve prints the address of a server and returns when in ends.
func serve(addr string, in io.Reader, out io.Writer) error {
	if _, err := fmt.Fprintln(out, addr); err != nil {
		return fmt.Errorf("report the address: %w", err)
	}
	_, err := io.Copy(io.Discard, in)
	return err
}

// inTemp calls do with a temporary directory and removes the directory.
func inTemp(do func(dir string) error) (err error) {
	dir, err := os.MkdirTemp("", "millrace-bench-")
	if err != nil {
		return fmt.Errorf("make a directory for the figure: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	return do(dir)
}
