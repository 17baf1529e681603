package s3bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"time"
)

// A Process is a running server process.
type Process struct {
	URL string // of the endpoint

	cmd *exec.Cmd
	in  io.Closer // the process exits when it is closed
}

// stopWait bounds how long a server may take to stop; it is killed then.
const stopWait = 5 * time.Second

// Start starts a program that calls Serve with its standard input and output, and waits until it is ready. The process
// is killed when ctx ends.
func Start(ctx context.Context, program string, args ...string) (*Process, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stderr = os.Stderr
	cmd.WaitDelay = stopWait
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start S3 server: %w", err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start S3 server: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start S3 server: %w", err)
	}
	p := &Process{cmd: cmd, in: in}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start S3 server: read its endpoint: %w", err), p.Close())
	}
	p.URL = strings.TrimSpace(line)
	return p, nil
}

// Drop removes a bucket and its objects.
func (p *Process) Drop(ctx context.Context, bucket string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodDelete, p.URL+"/"+bucket, http.NoBody)
	if err != nil {
		return fmt.Errorf("drop bucket %q: %w", bucket, err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("drop bucket %q: %w", bucket, err)
	}
	if err := resp.Body.Close(); err != nil || resp.StatusCode != http.StatusNoContent {
		return errors.Join(fmt.Errorf("drop bucket %q: %s", bucket, resp.Status), err)
	}
	return nil
}

// Close stops the process and waits until it has exited. Its data is lost.
func (p *Process) Close() error {
	_ = p.in.Close() // fails if the process has exited
	kill := time.AfterFunc(stopWait, func() { _ = p.cmd.Process.Kill() })
	defer kill.Stop()
	if err := p.cmd.Wait(); err != nil {
		return fmt.Errorf("stop S3 server: %w", err)
	}
	return nil
}
