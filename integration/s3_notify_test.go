package integration

import (
	"context"
	"crypto/md5"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/integration/harness"
	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka/client"
)

// hookToken is the token that servers send to the ingester.
const hookToken = "0123456789abcdef-of-a-test"

// notifyingServer is a server that sends notifications about one bucket, which is one store.
type notifyingServer struct {
	*harness.S3Server
	store, bucket string
}

// TestS3Notifications checks that mutations by other programs become Changes, by topic and by webhook, each once and
// with any characters in keys.
func TestS3Notifications(t *testing.T) {
	t.Parallel()
	need.Integration(t)
	if os.Getenv(harness.EnvS3) != "" {
		need.Missing(t, need.Server(), "notifications have to be set up with a server's start")
	}
	x := newNotifications(t)
	x.run(t)
	keys := []string{
		"plain", "with space", "a+b", "100%", "percent%2Fslash", "été", "emoji \U0001F39E", "deep/er/item", `quote"&<>?#=;`,
		"comma,colon:",
	}
	content := func(store, key string) string { return store + " has " + key }
	for _, s := range x.servers {
		for _, key := range keys {
			s.Put(t, s.bucket, "photos/"+key, content(s.store, key))
		}
		s.Put(t, s.bucket, ".millrace/probe/of-another", "it is no item")
	}
	var want []string
	for _, s := range x.servers {
		for _, key := range keys {
			sum := md5.Sum([]byte(content(s.store, key)))
			want = append(want,
				fmt.Sprintf("OP_ADD %s/photos/%s %d %s", s.store, key, len(content(s.store, key)), hex.EncodeToString(sum[:])))
		}
	}
	x.changed(t, want)
	for _, s := range x.servers {
		for _, key := range keys {
			s.Delete(t, s.bucket, "photos/"+key)
			want = append(want, fmt.Sprintf("OP_DELETE %s/photos/%s", s.store, key))
		}
	}
	x.changed(t, want)
	for _, r := range x.kafka.Read(t, x.cfg, schemas.Dead) {
		t.Errorf("dead letter: %s", r.Value)
	}
}

// notifications has servers, Kafka and the ingester.
type notifications struct {
	kafka   *harness.Cluster
	cfg     client.Config
	listen  string // of the ingester
	servers []notifyingServer
}

func newNotifications(t *testing.T) *notifications {
	t.Helper()
	x := &notifications{kafka: harness.Kafka(t, harness.Options{Brokers: 1}), listen: freeAddr(t)}
	x.cfg = x.kafka.Config("notified.")
	all := x.kafka.Config("")
	broker, prefix := all.Brokers[0], all.Prefix
	for _, topic := range []schemas.Topic{"minio", "versitygw"} {
		x.kafka.CreateTopic(t, all, topic, 2)
	}
	// A proxy before the ingester, which starts last: versitygw needs an open port at its start.
	ingester := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: x.listen})
	ingester.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	front := httptest.NewServer(ingester)
	t.Cleanup(front.Close)
	hook := front.URL + "/v1/notifications/s3?store="
	minio := harness.S3(t, harness.S3Options{Kind: harness.MinIO, Own: true, Env: []string{
		"MINIO_NOTIFY_KAFKA_ENABLE_T=on", "MINIO_NOTIFY_KAFKA_BROKERS_T=" + broker,
		"MINIO_NOTIFY_KAFKA_TOPIC_T=" + prefix + "minio",
		"MINIO_NOTIFY_WEBHOOK_ENABLE_H=on", "MINIO_NOTIFY_WEBHOOK_ENDPOINT_H=" + hook + "minio-hook",
		"MINIO_NOTIFY_WEBHOOK_AUTH_TOKEN_H=Bearer " + hookToken,
	}})
	byTopic := harness.S3(t, harness.S3Options{Kind: harness.Versitygw, Own: true, Args: []string{
		"--event-kafka-url", broker, "--event-kafka-topic", prefix + "versitygw",
	}})
	byHook := harness.S3(t, harness.S3Options{Kind: harness.Versitygw, Own: true, Args: []string{
		"--event-webhook-url", strings.Replace(hook, "http://", "http://any:"+hookToken+"@", 1) + "versitygw-hook",
	}})
	x.servers = []notifyingServer{
		{minio, "minio-topic", "minio-topic"}, {minio, "minio-hook", "minio-hook"},
		{byTopic, "versitygw-topic", "versitygw-topic"}, {byHook, "versitygw-hook", "versitygw-hook"},
	}
	for _, s := range x.servers {
		s.Bucket(t, s.bucket, false)
	}
	minio.Notify(t, "minio-topic", "kafka", "T")
	minio.Notify(t, "minio-hook", "webhook", "H")
	return x
}

// freeAddr returns a free loopback address.
func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	return l.Addr().String()
}

// run runs role ingester until the end of the test.
func (x *notifications) run(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	secret := func(name, value string) string {
		path := filepath.Join(dir, name)
		must(t, os.WriteFile(path, []byte(value), 0o600))
		return "file:" + path
	}
	prefix := x.kafka.Config("").Prefix
	var text strings.Builder
	fmt.Fprintf(&text,
		"kafka: {brokers: [%q], topic_prefix: %q, replication: 1, min_insync: 1, partitions: 4}\n"+
			"clickhouse: {addresses: [%q]}\n",
		x.cfg.Brokers[0], x.cfg.Prefix, freeAddr(t))
	fmt.Fprintf(&text,
		"http: {listen: %q}\ningest:\n  listen: %q\n"+
			"  tokens: [{name: hooks, account: acme, stores: [minio-hook, versitygw-hook], token: %q}]\n"+
			"  notifications: [{topic: %q}, {topic: %q}]\n",
		freeAddr(t), x.listen, secret("token", hookToken), prefix+"minio", prefix+"versitygw")
	fmt.Fprint(&text, "accounts:\n  - id: acme\n    stores:\n")
	for i, s := range x.servers {
		fmt.Fprintf(&text,
			"      - {id: %s, driver: s3, endpoint: %q, bucket: %s, path_style: true, primary: %t, "+
				"credentials: {access_key: %q, secret_key: %q}}\n",
			s.store, s.URL, s.bucket, i == 0, secret(s.store+".access", s.Access), secret(s.store+".secret", s.Secret))
	}
	path := filepath.Join(dir, "millrace.yaml")
	must(t, os.WriteFile(path, []byte(text.String()), 0o600))
	cfg, _, err := config.Load(config.Sources{File: path})
	if err != nil {
		t.Fatalf("%v\n%s", err, text.String())
	}
	log := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	for _, s := range x.servers {
		must(t, app.InitStore(t.Context(), cfg, log, app.StoreName{Account: "acme", Store: s.store}))
	}
	a, err := app.Open(t.Context(), cfg, app.Options{Log: log, Drain: time.Second})
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx, []schemas.Role{schemas.RoleIngester, schemas.RoleDelayer}) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		a.Close()
	})
	harness.Eventually(t, time.Minute, "wait for the ingester", func(ctx context.Context) error {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+x.listen, http.NoBody)
		if err != nil {
			return err
		}
		resp, err := http.DefaultClient.Do(r) // any response will do
		if err != nil {
			return err
		}
		return resp.Body.Close()
	})
}

// changed waits until the published changes are exactly the wanted ones, each with one id.
func (x *notifications) changed(t *testing.T, want []string) {
	t.Helper()
	want = slices.Sorted(slices.Values(want))
	r := x.kafka.Reader(t, x.cfg, schemas.Changes)
	ids, got := map[string]bool{}, []string{}
	harness.Eventually(t, time.Minute, "wait for changes", func(ctx context.Context) error {
		recs, err := r.CatchUp(ctx)
		if err != nil {
			return err
		}
		for _, rec := range recs {
			body, err := schemas.Decode(rec.Topic, rec.Headers, rec.Value)
			if err != nil {
				return err
			}
			c := body.(*pb.Change)
			if ids[c.GetId()] {
				continue
			}
			ids[c.GetId()] = true
			line := fmt.Sprintf("%s %s/%s/%s", c.GetOp(), c.GetStore(), c.GetSpace(), c.GetItem())
			if c.GetOp() == pb.Op_OP_ADD {
				line += fmt.Sprintf(" %d %s", c.GetSize(), c.GetEtag())
			}
			if c.GetAgent() == "" || c.GetOrigin() != pb.Origin_ORIGIN_NOTIFICATION || c.GetSequence() == "" {
				line += fmt.Sprintf(" by %q, of %s, sequence %q", c.GetAgent(), c.GetOrigin(), c.GetSequence())
			}
			got = append(got, line)
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			return fmt.Errorf("got %d, want %d\n%s", len(got), len(want), difference(got, want))
		}
		return nil
	})
}

// difference returns the lines that only one side has.
func difference(got, want []string) string {
	var text strings.Builder
	for _, l := range got {
		if !slices.Contains(want, l) {
			fmt.Fprintf(&text, "too many: %s\n", l)
		}
	}
	for _, l := range want {
		if !slices.Contains(got, l) {
			fmt.Fprintf(&text, "missing:  %s\n", l)
		}
	}
	return text.String()
}
