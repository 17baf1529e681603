package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/integration/harness"
	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka/admin"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/storage"
)

// TestS3Unavailable checks that after an S3 server returns, each waiting command is executed within a minute, and that
// the log has one line per state change.
func TestS3Unavailable(t *testing.T) {
	need.Full(t)
	n, least := need.Amount(0, 500, 10_000), time.Duration(need.Amount(0, 25, 50))*time.Second
	s3 := harness.S3(t, harness.S3Options{Kind: harness.Versitygw, Own: true})
	s3.Bucket(t, "acme-copies", false)
	x := newUnavailableSetup(t, s3)
	log := x.run(t, "planner,copier,checker,deleter,steward,delayer,sink")
	ctx := t.Context()
	x.cfg.Outbox.Dir = t.TempDir()
	a, err := app.Open(ctx, x.cfg, app.Options{Log: slog.New(slog.DiscardHandler), Drain: time.Second})
	must(t, err)
	defer a.Close()
	source := runClient(t, a)
	put := func(from, to int) {
		t.Helper()
		for i := from; i < to; i++ {
			item := strings.NewReader("an item")
			if _, err := source.Put(ctx, "photos", fmt.Sprint(i), item, storage.PutOptions{Size: item.Size()}); err != nil {
				t.Fatal(err)
			}
		}
	}
	copied := func(limit time.Duration, want int) {
		t.Helper()
		harness.Eventually(t, limit, "copy the items", func(ctx context.Context) error {
			if have := len(s3.Keys(t, "acme-copies", "acme/photos/")); have < want {
				return fmt.Errorf("%d of %d items are copied", have, want)
			}
			return nil
		})
	}
	must(t, source.CreateSpace(ctx, storage.Space{Name: "photos"}))
	const before = 20
	put(0, before)
	copied(2*time.Minute, before)

	s3.Kill(t)
	stopped := time.Now()
	put(before, before+n)
	harness.Eventually(t, 5*time.Minute, "wait until all messages wait for the store", func(context.Context) error {
		if waiting, outage := x.waitingMessages(t), time.Since(stopped); waiting < n*9/10 || outage < least {
			return fmt.Errorf("after %v %d messages wait", outage, waiting)
		}
		return nil
	})
	s3.Restart(t)
	back := time.Now()
	t.Logf("unavailable for %v, with %d items", back.Sub(stopped).Round(time.Second), n)
	harness.Eventually(t, 2*time.Minute, "resume all waiting messages", func(context.Context) error {
		if left := x.waitingMessages(t); left > 0 {
			return fmt.Errorf("%d messages wait for the store", left)
		}
		return nil
	})
	if took := time.Since(back); took > time.Minute {
		t.Errorf("the last message resumed %v after the store's return, want a minute at most", took)
	}
	t.Logf("all messages resumed after %v", time.Since(back).Round(100*time.Millisecond))
	copied(time.Duration(n)*200*time.Millisecond+time.Minute, before+n)
	t.Logf("all are copied after %v", time.Since(back).Round(100*time.Millisecond))
	said, err := os.ReadFile(log)
	must(t, err)
	for line, want := range map[string]int{
		`msg="open breaker`: 1, `msg="close breaker`: 1, `msg="route failed message`: 0, `msg="retry message`: 0,
	} {
		if got := strings.Count(string(said), line); got != want {
			t.Errorf("%d log lines contain %s, want %d:\n%s", got, line, want, said[max(0, len(said)-3000):])
		}
	}
}

// TestRestartAfterKill checks that a process that is killed and restarted at once does its work within 15 s and logs
// the groups that it waits for.
func TestRestartAfterKill(t *testing.T) {
	need.Full(t)
	x := newUnavailableSetup(t, nil)
	must(t, admin.EnsureTopics(t.Context(), x.kafka, admin.TopicOptions{Partitions: 3, Replication: 1, MinInSync: 1}))
	x.run(t, "planner")
	publish(t, x.kafka, change("a", 0))
	planned := func(limit time.Duration, want int) {
		t.Helper()
		harness.Eventually(t, limit, "plan the commands", func(context.Context) error {
			if got := len(x.c.Read(t, x.kafka, schemas.DuplicationHigh)); got < want {
				return fmt.Errorf("%d commands, want %d", got, want)
			}
			return nil
		})
	}
	planned(time.Minute, 1)
	x.last.kill()
	killed := time.Now()
	log := x.run(t, "planner")
	publish(t, x.kafka, change("b", 0))
	planned(time.Minute, 2)
	took := time.Since(killed)
	t.Logf("work resumes after %v", took.Round(100*time.Millisecond))
	if took > 15*time.Second {
		t.Errorf("work resumes %v after the kill, want 15s at most", took)
	}
	harness.Eventually(t, 10*time.Second, "log the wait", func(context.Context) error {
		said, err := os.ReadFile(log)
		for _, want := range []string{"wait to join groups", x.kafka.Prefix + "planner", "session=10s", "joined the groups"} {
			if err == nil && !bytes.Contains(said, []byte(want)) {
				err = fmt.Errorf("the log does not contain %q:\n%s", want, said)
			}
		}
		return err
	})
}

// unavailableSetup has topics on Kafka brokers, an engine, a file store and a store on an S3 server.
type unavailableSetup struct {
	setup
	c     *harness.Cluster
	kafka client.Config
	last  *process
}

func newUnavailableSetup(t *testing.T, s3 *harness.S3Server) *unavailableSetup {
	t.Helper()
	dir := t.TempDir()
	x := &unavailableSetup{c: harness.Kafka(t, harness.Options{Brokers: 1})}
	x.kafka = x.c.Config("unavailable.")
	t.Setenv("PATH", filepath.Dir(binaries(t))+string(os.PathListSeparator)+os.Getenv("PATH"))
	cfg := config.Default()
	cfg.Kafka.Brokers, cfg.Kafka.TopicPrefix = x.kafka.Brokers, x.kafka.Prefix
	cfg.Kafka.Partitions, cfg.Kafka.Replication, cfg.Kafka.MinInSync = 3, 1, 1
	cfg.HTTP.Listen = freeAddr(t)
	cfg.Policies.Folder = filepath.Join(dir, "policies")
	x.cfg, x.file = &cfg, filepath.Join(dir, "millrace.yaml")
	first := config.Store{ID: "1", Driver: "file", Root: filepath.Join(dir, "store-1"), Primary: true}
	must(t, os.Mkdir(first.Root, 0o755))
	second := config.Store{ID: "2", Driver: "file", Root: filepath.Join(dir, "store-2")}
	if s3 != nil {
		cfg.ClickHouse.Addresses = []string{newEngine(t, dir).server.Addr()}
		t.Setenv("AWS_ACCESS_KEY_ID", s3.Access)
		t.Setenv("AWS_SECRET_ACCESS_KEY", s3.Secret)
		second = config.Store{
			ID: "2", Driver: "s3", Endpoint: s3.URL, Bucket: "acme-copies", Prefix: "acme/", PathStyle: true,
		}
		second.Credentials.FromEnvironment = true
	} else if err := os.Mkdir(second.Root, 0o755); err != nil {
		t.Fatal(err)
	}
	cfg.Accounts = []config.Account{{ID: "acme", Stores: []config.Store{first, second}}}
	x.write(t, "policies/duplication-accounts.json", `["acme"]`)
	x.write(t, "policies/acme-duplication-policy.json", `{"defaultPolicies": [{"srcStoreId": "1", "destStoreId": "2"}]}`)
	var text bytes.Buffer
	must(t, config.Print(&text, &cfg, nil))
	x.write(t, "millrace.yaml", text.String())
	if s3 != nil {
		x.want(t, 0, "applied", "migrate")
		for _, id := range []string{"1", "2"} {
			x.want(t, 0, "has its marker", "store", "init", "acme/"+id)
		}
	}
	return x
}

// run starts a process with roles that ends with the test, and returns the path of its log.
func (x *unavailableSetup) run(t *testing.T, roles string) (log string) {
	t.Helper()
	x.last = startProgram(t, roles, exec.Command(binaries(t), "run", "--config", x.file, "--roles", roles))
	return x.last.log
}

// waitingMessages returns the number of messages that the process reports as waiting for store 2.
func (x *unavailableSetup) waitingMessages(t *testing.T) (n int) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+x.cfg.HTTP.Listen+"/readyz", nil)
	must(t, err)
	resp, err := http.DefaultClient.Do(req)
	must(t, err)
	defer resp.Body.Close()
	var says struct {
		Breakers []struct {
			Store   string
			Waiting int
		}
	}
	body, err := io.ReadAll(resp.Body)
	if err == nil {
		err = json.Unmarshal(body, &says)
	}
	if err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	for _, b := range says.Breakers {
		if b.Store == "acme/2" {
			return b.Waiting
		}
	}
	t.Fatalf("no breaker of acme/2 in %s", body)
	return 0
}
