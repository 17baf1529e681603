package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/millrace/millrace/integration/harness"
	"github.com/millrace/millrace/internal/logtest"
	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/streams/child"
)

// A cluster of one broker is too small for the default topics: run refuses to start and creates none. Topics with
// other settings than those configured are refused too, and topics with fewer replicas are logged.
func TestTooFewReplicas(t *testing.T) {
	t.Parallel()
	need.Full(t)
	c := harness.Kafka(t, harness.Options{Brokers: 1})
	cfg := c.Config("small.")
	program := binaries(t)
	file := filepath.Join(t.TempDir(), "config.yaml")
	start := func(kafka string) (code int, output string) {
		t.Helper()
		text := fmt.Sprintf("kafka: {brokers: [%q], topic_prefix: %q, partitions: 2, %s}\n",
			cfg.Brokers[0], cfg.Prefix, kafka)
		must(t, os.WriteFile(file, []byte(text), 0o600))
		out := new(logtest.Lines)
		cmd := exec.CommandContext(t.Context(), program, "run", "--config", file, "--roles", "delayer")
		cmd.Stdout, cmd.Stderr = out, out
		ended, err := child.Start(cmd)
		must(t, err)
		harness.Eventually(t, time.Minute, "end, or run the role", func(context.Context) error {
			select {
			case <-ended:
				return nil
			default:
			}
			if out.Count("msg=run ") == 0 {
				return errors.New(out.String())
			}
			return cmd.Process.Signal(syscall.SIGTERM)
		})
		<-ended
		return cmd.ProcessState.ExitCode(), out.String()
	}
	const defaults, one = "replication: 3, min_insync: 2", "replication: 1, min_insync: 1"
	for _, step := range []struct {
		kafka, want string
		code        int
	}{
		{defaults, "kafka.replication is 3 and kafka.min_insync 2, but the cluster has 1 broker, and 36 topics " +
			"must be created: start the other brokers, or set kafka.replication to 1 and kafka.min_insync to 1", 5},
		{one, "msg=stopped", 0},
		{defaults, "min.insync.replicas is 1, want at least 2 (kafka.min_insync)", 5},
		{"replication: 3, min_insync: 1", "find topics with fewer replicas than kafka.replication", 0},
	} {
		if code, output := start(step.kafka); code != step.code || !strings.Contains(output, step.want) {
			t.Fatalf("with %s: exit code %d, want %d and %q:\n%s", step.kafka, code, step.code, step.want, output)
		}
	}
}
