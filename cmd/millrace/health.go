package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/millrace/usage"
)

// probes are the endpoints that a probe asks.
func probes() map[string]string {
	return map[string]string{"ready": "/readyz", "live": "/livez", "started": "/startupz"}
}

const maxHealthReport = 1 << 20 // bytes

func newHealth() *cobra.Command {
	var (
		address, probe string
		timeout        time.Duration
		o              *output
	)
	c := &cobra.Command{
		Use:   "health",
		Short: "Ask a running process whether it is ready, live or started",
		Long: `Asks the process that listens on http.listen, and prints its state and the reasons.

Exit codes: 0 the probe succeeds, 1 no process answers, 2 usage, 3 the probe fails: the process answers 503.`,
		Args: usage.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			path, ok := probes()[probe]
			if !ok {
				return fmt.Errorf("%w: --probe is ready, live or started, not %q", usage.Err, probe)
			}
			_, port, err := net.SplitHostPort(address)
			if _, bad := strconv.ParseUint(port, 10, 16); err != nil || bad != nil {
				return fmt.Errorf("%w: --address is HOST:PORT, such as 127.0.0.1:8080, not %q", usage.Err, address)
			}
			if timeout <= 0 {
				return fmt.Errorf("%w: --timeout is above 0, not %v", usage.Err, timeout)
			}
			ctx, cancel := context.WithTimeout(c.Context(), timeout)
			defer cancel()
			code, body, err := askHealth(ctx, "http://"+address+path)
			if err != nil {
				if ctx.Err() != nil && c.Context().Err() == nil {
					err = fmt.Errorf("no answer within %v", timeout)
				}
				return fmt.Errorf("ask %s%s: %w; --address is the http.listen of the process, which serves nothing if that "+
					"is empty", address, path, err)
			}
			if err := printHealth(c.OutOrStdout(), o.form, body); err != nil {
				return err
			}
			if code != http.StatusOK {
				return fmt.Errorf("%w: the process is not %s", errFindings, probe)
			}
			return nil
		},
	}
	c.Flags().StringVar(&address, "address", "127.0.0.1:8080", "`HOST:PORT` of http.listen")
	c.Flags().StringVar(&probe, "probe", "ready", "what to ask: ready, live or started")
	c.Flags().DurationVar(&timeout, "timeout", 3*time.Second, "`TIME` to wait for the answer")
	o = outputFlag(c, formText, formJSON)
	return c
}

// askHealth returns the status and the report of a probe: 200 or 503. It uses no proxy and follows no redirect.
func askHealth(ctx context.Context, url string) (code int, report []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, nil, err
	}
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	report, err = io.ReadAll(io.LimitReader(resp.Body, maxHealthReport))
	if err != nil {
		return 0, nil, err
	}
	ok := resp.StatusCode == http.StatusOK || resp.StatusCode == http.StatusServiceUnavailable
	var form struct{ Live *bool }
	if !ok || json.Unmarshal(report, &form) != nil || form.Live == nil {
		return 0, nil, errors.New("the answer " + resp.Status + " is not from http.listen of a millrace process")
	}
	return resp.StatusCode, report, nil
}

// printHealth prints a report: as it is, or its state and the reasons as lines.
func printHealth(w io.Writer, form string, report []byte) error {
	if form == formJSON {
		_, err := w.Write(report)
		return err
	}
	var r struct {
		Live, Ready, Started bool
		Reasons              []string
	}
	if err := json.Unmarshal(report, &r); err != nil {
		return err
	}
	yes := map[bool]string{true: "yes", false: "no"}
	text := fmt.Sprintf("live: %s, ready: %s, started: %s\n", yes[r.Live], yes[r.Ready], yes[r.Started])
	for _, reason := range r.Reasons {
		text += strings.Join(strings.Fields(printable(reason)), " ") + "\n"
	}
	_, err := io.WriteString(w, text)
	return err
}
