package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/cmd/statedir"
	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse/clickhousetest"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/storage/s3/s3test"
)

// A cluster is the Kafka, the ClickHouse and the S3 server that commands use.
type cluster struct {
	kafka, clickhouse, s3 string            // addresses
	values                map[string]string // of words that commands contain, such as KEY
}

// A page runs the commands of one document in a directory of its own, which has the files of testdata/documents. The
// paths and addresses that documents name are replaced by those of the test.
type page struct {
	dir     string
	env     map[string]string
	replace *strings.Replacer
}

func newPage(t *testing.T, c *cluster) *page {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	must(t, err)
	p := &page{dir: t.TempDir(), env: map[string]string{
		"FILE": "millrace.yaml", "ACCOUNT": "acme", "STORE": "2", "SPACE": "photos", "TEXT": "documented",
		"TOKEN": "a secret of a test",
	}}
	maps.Copy(p.env, c.values)
	p.replace = strings.NewReplacer("/srv/archive", p.path("archive"), "/mnt/copies", p.path("copies"),
		"localhost:9092", c.kafka, "localhost:9000", c.clickhouse, "localhost:7070", c.s3, ":8080", ":"+port)
	millrace, err := exec.LookPath("millrace")
	must(t, err)
	examples, err := filepath.Abs("../../examples")
	must(t, err)
	must(t, errors.Join(os.CopyFS(p.dir, os.DirFS("testdata/documents")), os.Mkdir(p.path("bin"), 0o755),
		os.Symlink(millrace, p.path("bin/millrace")), os.Symlink(examples, p.path("examples")),
		os.Mkdir(p.path("copies"), 0o755)))
	text, err := os.ReadFile(p.path("millrace.yaml"))
	must(t, err)
	p.write(t, "millrace.yaml", string(text))
	return p
}

func (p *page) path(name string) string { return filepath.Join(p.dir, name) }

func (p *page) write(t *testing.T, name, text string) {
	t.Helper()
	must(t, os.WriteFile(p.path(name), []byte(p.replace.Replace(text)), 0o644))
}

var (
	placeholder = regexp.MustCompile(`\b(ACCOUNT|STORE|SPACE|FILE|DIR|KEY|TEXT|PARTITION|OFFSET)\b`)
	background  = regexp.MustCompile(`(?m)^\S*millrace (run|standalone) [^#\n]*`)
	ofMillrace  = regexp.MustCompile(`(?m)^\S*millrace .*`)
)

// script returns a script of the blocks of a document with the given marks. Roles run until it ends.
func (p *page) script(t *testing.T, blocks []*block, marks ...string) string {
	t.Helper()
	var script string
	for _, b := range blocks {
		if name, isFile := strings.CutPrefix(b.mark, markFile); isFile {
			p.write(t, name, b.text)
		}
		if b.language == "sh" && slices.Contains(marks, b.mark) {
			script += b.text
		}
	}
	script = ofMillrace.ReplaceAllStringFunc(script, func(line string) string {
		return placeholder.ReplaceAllString(line, "$$$1")
	})
	return p.replace.Replace(background.ReplaceAllString(script, "$0 &"))
}

// run runs a script in the page's directory. Each command must succeed.
func (p *page) run(t *testing.T, script string) {
	t.Helper()
	const prelude = `set -euxo pipefail
trap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT
curl() { command curl --fail-with-body --retry 60 --retry-delay 1 --retry-all-errors "$@"; }
`
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-c", prelude+script)
	cmd.Dir, cmd.Env, cmd.WaitDelay = p.dir, os.Environ(), 10*time.Second
	for name, value := range p.env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// The commands that need no servers succeed, in the order of the document.
func TestDocumentedCommands(t *testing.T) {
	t.Parallel()
	all := readBlocks(t)
	run := 0
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if !slices.ContainsFunc(all[name], func(b *block) bool { return b.language == "sh" && b.mark == "" }) {
			continue
		}
		run++
		t.Run(name, func(t *testing.T) {
			p := newPage(t, &cluster{kafka: "127.0.0.1:1", clickhouse: "127.0.0.1:1", s3: "127.0.0.1:1"})
			p.run(t, p.script(t, all[name], ""))
		})
	}
	if run < 4 {
		t.Errorf("%d documents have commands that need no servers", run)
	}
}

// The commands that need Kafka and ClickHouse succeed too, in the order of the document, and so do statements in SQL.
func TestDocumentedCommandsWithCluster(t *testing.T) {
	need.Integration(t)
	if _, err := exec.LookPath("curl"); err != nil {
		need.Missing(t, need.Program("curl"), err)
	}
	engineOnPath(t)
	all := readBlocks(t)
	const first = "docs/first-steps.md" // it prepares its cluster itself
	t.Run(first, func(t *testing.T) {
		c := newCluster(t)
		bucket := newBucket(t, "acme-archive")
		c.s3 = strings.TrimPrefix(bucket, "http://")
		p := newPage(t, c)
		p.run(t, p.script(t, all[first], "", markCluster)+
			"until cmp archive/photos/1.jpg copies/photos/1.jpg; do sleep 0.1; done\n"+
			"until command curl -s "+bucket+"/acme-archive/photos/1.jpg | cmp archive/photos/1.jpg -; do sleep 0.1; done\n")
	})
	c := newCluster(t)
	c.prepare(t)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if name == first ||
			!slices.ContainsFunc(all[name], func(b *block) bool { return b.mark == markCluster || b.language == "sql" }) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			p := newPage(t, c)
			script := p.script(t, all[name], "", markCluster)
			if name == "docs/ingest.md" {
				script = "millrace run --config millrace.yaml --roles ingester &\n" + script
			}
			p.run(t, script)
			for _, b := range all[name] {
				if b.language == "sql" {
					c.execute(t, b)
				}
			}
		})
	}
}

// newCluster starts the engines of a state directory.
func newCluster(t *testing.T) *cluster {
	t.Helper()
	state, err := statedir.Open(t.Context(), statedir.Config{Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler)})
	must(t, err)
	t.Cleanup(func() {
		if err := state.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	cfg := config.Default()
	state.Configure(&cfg)
	return &cluster{kafka: cfg.Kafka.Brokers[0], clickhouse: cfg.ClickHouse.Addresses[0], values: map[string]string{}}
}

// newBucket starts an S3 server with a bucket, and returns its URL.
func newBucket(t *testing.T, name string) string {
	t.Helper()
	s := s3test.New(s3test.Options{})
	t.Cleanup(s.Close)
	create, err := http.NewRequestWithContext(t.Context(), http.MethodPut, s.URL()+"/"+name, nil)
	must(t, err)
	response, err := http.DefaultClient.Do(create)
	must(t, err)
	response.Body.Close()
	if response.StatusCode != http.StatusOK {
		t.Fatalf("create bucket %s: %s", name, response.Status)
	}
	return s.URL()
}

// execute runs the statements of a block, which are separated by empty lines.
func (c *cluster) execute(t *testing.T, b *block) {
	t.Helper()
	for _, statement := range strings.Split(b.text, "\n\n") {
		if err := clickhousetest.Exec(t.Context(), c.clickhouse, statement); err != nil {
			t.Errorf("%s: %v", b, err)
		}
	}
}

// prepare makes tables and topics, an open incident of a copy (KEY), a dead letter (PARTITION-OFFSET), and a kept state
// (DIR).
func (c *cluster) prepare(t *testing.T) {
	t.Helper()
	p := newPage(t, c)
	cfg, err := loadConfig(p.path("millrace.yaml"))
	must(t, err)
	a, err := app.Open(t.Context(), cfg, app.Options{Log: slog.New(slog.DiscardHandler), Drain: app.QuickDrain})
	must(t, err)
	defer a.Close()
	if _, err := a.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	damaged := &pb.Incident{Id: schemas.NewID(), Account: "acme", Store: "2", Space: "photos", Item: "1.jpg",
		Kind: "content-corrupt", State: pb.IncidentState_INCIDENT_STATE_AWAITING_APPROVAL,
		Opened: timestamppb.Now(), Updated: timestamppb.Now()}
	c.values["KEY"], c.values["DIR"] = schemas.IncidentKey(damaged), p.path("state")
	k := client.Config{Brokers: cfg.Kafka.Brokers, Prefix: "millrace.", Heartbeat: 100 * time.Millisecond}
	engine, err := exec.LookPath("millrace-clickhouse")
	must(t, err)
	producer, err := kafka.NewProducer(k, "test")
	must(t, err)
	defer producer.Close()
	must(t, errors.Join(producer.Publish(t.Context(), schemas.Message{Topic: schemas.Incidents, Body: damaged}),
		refuse(t.Context(), k, 1), makeStored(t.Context(), c.values["DIR"], engine, 1),
		a.RunWhile(t.Context(), []schemas.Role{schemas.RoleSink}, a.CatchUp)))
	var out bytes.Buffer
	var letters []letterRow
	list := []string{"dead", "list", "--each", "--config", p.path("millrace.yaml"), "-o", "json"}
	if code := run(t.Context(), list, &out, t.Output()); code != exitOK {
		t.Fatalf("exit code %d", code)
	}
	if err := json.Unmarshal(out.Bytes(), &letters); err != nil || len(letters) != 1 {
		t.Fatalf("dead letters: %s (%v), want one", out.String(), err)
	}
	c.values["PARTITION"], c.values["OFFSET"], _ = strings.Cut(letters[0].ID, "-")
}
