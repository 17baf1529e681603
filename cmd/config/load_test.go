package config

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	_ "time/tzdata" // the tests do not depend on the zones of the machine

	"github.com/millrace/millrace/streams/schedule"
)

// load reads the text of a file, with variables.
func load(t *testing.T, text string, env ...string) (*Config, *Origins, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "c.yaml")
	must(t, os.WriteFile(file, []byte(text), 0o600))
	if env == nil {
		env = []string{}
	}
	return Load(Sources{File: file, Env: env})
}

const twoStores = `accounts:
  - id: acme
    stores:
      - {id: "1", driver: file, root: /a, primary: true}
      - id: "2"
        root: /b
        repair: off
`

func TestLoadNothing(t *testing.T) {
	got, origins, err := Load(Sources{Env: []string{"PATH=/bin", "MILLRACE_TEST_KAFKA=x:1", "MILLRACE_TOKEN=x"}})
	must(t, err)
	if want := Default(); !reflect.DeepEqual(*got, want) {
		t.Errorf("got %+v, want %+v", *got, want)
	}
	if got := origins.Of("kafka.brokers"); got != "default" {
		t.Errorf("origin: got %s", got)
	}
}

// Each layer overrides the one before, setting by setting.
func TestLoadLayers(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.yaml")
	text := twoStores + "kafka:\n  topic_prefix: from-file.\n  partitions: 3\n  tls: {enabled: true}\nfixity: " +
		"{recheck: [1s, 2s]}\nsweep: {reconcile: off}\n"
	must(t, os.WriteFile(file, []byte(text), 0o600))
	got, origins, err := Load(Sources{
		File: file,
		Env: []string{"MILLRACE_KAFKA__PARTITIONS=4", "MILLRACE_KAFKA__BROKERS=a:1, b:2", "MILLRACE_FIXITY__AFTER_COPY=false",
			"MILLRACE_SINK__BYTES=2MiB", "MILLRACE_SWEEP__FIXITY=cron 0,30 3 * * *",
			`MILLRACE_DELAY__LANES=[{"name":"1s","delay":"1s"}]`,
			"MILLRACE_CLICKHOUSE__PASSWORD=env:CH"},
		Flags: map[string]any{"state.dir": "/state", "kafka.topic_prefix": "from-flag."},
	})
	must(t, err)
	want := Default()
	want.Accounts = []Account{{ID: "acme", Stores: []Store{
		{ID: "1", Driver: "file", Layout: "millrace", Root: "/a", Primary: true,
			Read: "always", Repair: "approve", ExternalWrites: "refused", Corrections: "approve"},
		{ID: "2", Driver: "file", Layout: "millrace", Root: "/b",
			Read: "always", Repair: "off", ExternalWrites: "refused", Corrections: "approve"},
	}}}
	want.Kafka.TopicPrefix, want.Kafka.Partitions, want.Kafka.Brokers = "from-flag.", 4, []string{"a:1", "b:2"}
	want.Kafka.TLS.Enabled = true
	want.Fixity.Recheck, want.Fixity.AfterCopy = []time.Duration{time.Second, 2 * time.Second}, false
	want.Sweep.Fixity, want.Sweep.Reconcile = schedule.MustParse("cron 0,30 3 * * *"), schedule.Schedule{}
	want.Sink.Bytes, want.State.Dir = 2<<20, "/state"
	want.Delay.Lanes = []Lane{{"1s", time.Second}}
	want.ClickHouse.Password = Secret{"env:CH"}
	if !reflect.DeepEqual(*got, want) {
		t.Errorf("got %+v, want %+v", *got, want)
	}
	for path, want := range map[string]string{
		"accounts[0].id":               file + ":2",
		"accounts[0].stores[0].root":   file + ":4",
		"accounts[0].stores[1].repair": file + ":7",
		"accounts[0].stores[1].read":   "default",
		"kafka.tls.enabled":            file + ":11",
		"fixity.recheck":               file + ":12",
		"fixity.recheck[1]":            file + ":12",
		"kafka.partitions":             "MILLRACE_KAFKA__PARTITIONS",
		"delay.lanes[0].delay":         "MILLRACE_DELAY__LANES",
		"kafka.topic_prefix":           "command line",
		"kafka.replication":            "default",
	} {
		if got := origins.Of(path); got != want {
			t.Errorf("origin of %s: got %s, want %s", path, got, want)
		}
	}
}

func TestLoadExample(t *testing.T) {
	example := filepath.Join("..", "..", "examples", "millrace.yaml")
	got, _, err := Load(Sources{File: example, Env: []string{}})
	must(t, err)
	// The defaults in the example are those of Default.
	want := Default()
	want.Accounts, want.Policies, want.State = got.Accounts, got.Policies, got.State
	want.Kafka.Brokers, want.Kafka.TLS, want.Kafka.SASL = got.Kafka.Brokers, got.Kafka.TLS, got.Kafka.SASL
	want.ClickHouse, want.Ingest = got.ClickHouse, got.Ingest
	if !reflect.DeepEqual(*got, want) {
		t.Errorf("got %+v, want %+v", *got, want)
	}
	if text, err := os.ReadFile(example); err != nil || !strings.Contains(string(text), "repair:") {
		t.Error(err)
	}
}

// Load reports every fault at once, each with its key, its origin and the allowed values.
func TestLoadReportsAllFaults(t *testing.T) {
	_, _, err := load(t, `accounts:
  - id: acme
    stores:
      - {id: "1", driver: fiel, root: /a, primary: true}
      - {id: "1", root: relative, primary: true}
      - {id: 3, rot: /c}
kafka:
  brokrs: [a:1]
  partitions: many
  sasl: {mechanism: PLAIN, user: u, password: hunter2}
delay:
  lanes: [{name: a, delay: 5m}, {name: b, delay: 1m}]
topic_prefix: x
`, "MILLRACE_FIXITY__PERIOD=-1d", "MILLRACE_KAFKA_BROKERS=x:1", "MILLRACE_SINK__ROW=1")
	var got Faults
	if !errors.As(err, &got) {
		t.Fatalf("got %v", err)
	}
	type fault struct{ origin, key, value, reason string }
	want := []fault{
		{":6", "accounts[0].stores[2].id", "3", `want a text: numbers go in quotes here, as in "1"`},
		{":6", "accounts[0].stores[2].rot", "", "unknown setting; did you mean root?"},
		{":8", "kafka.brokrs", "", "unknown setting; did you mean brokers?"},
		{":9", "kafka.partitions", "many", "want a whole number"},
		{":10", "kafka.sasl.password", "", "want " + errSecret.Error()},
		{":13", "topic_prefix", "", "unknown setting; did you mean kafka.topic_prefix?"},
		{"MILLRACE_KAFKA_BROKERS", "", "", "sets nothing; did you mean MILLRACE_KAFKA__BROKERS?"},
		{"MILLRACE_SINK__ROW", "", "", "sets nothing; did you mean MILLRACE_SINK__ROWS?"},
		{":4", "accounts[0].stores[0].driver", "fiel", "unknown driver; want one of file, s3"},
		{":5", "accounts[0].stores[1].id", "1", "is taken by accounts[0].stores[0].id"},
		{":5", "accounts[0].stores[1].root", "relative", "want an absolute path: " +
			"a relative one depends on the working directory"},
		{":5", "accounts[0].stores[1].primary", "true", "an account has one primary store, which is accounts[0].stores[0]"},
		{":12", "delay.lanes[1].delay", "1m", "want more than the lane before: lanes are sorted from the shortest"},
		{"MILLRACE_FIXITY__PERIOD", "fixity.period", "-1d", "want more than 0"},
	}
	var reported []fault
	for _, f := range got {
		if i := strings.LastIndex(f.Origin, ":"); i >= 0 {
			f.Origin = f.Origin[i:]
		}
		reported = append(reported, fault{f.Origin, f.Key, f.Value, f.Reason})
	}
	if !slices.Equal(reported, want) {
		t.Errorf("got\n%v\nwant\n%v", reported, want)
	}
	if strings.Contains(err.Error(), "hunter2") {
		t.Error("the error contains a secret")
	}
	if !strings.HasPrefix(err.Error(), "14 faults") || strings.Count(err.Error(), "\n") != 14 {
		t.Errorf("got %s", err)
	}
}

func TestLoadFile(t *testing.T) {
	for name, tt := range map[string]struct {
		text string
		want string // the fault, without its file; empty: no fault
	}{
		"empty":              {"", ""},
		"comments":           {"# nothing\n", ""},
		"null tables":        {"kafka:\nfixity:\n", ""},
		"a list":             {"- a\n", ":1: want a table of settings"},
		"a word":             {"hello\n", ":1: want a table of settings"},
		"two documents":      {"log: {level: warn}\n---\nlog: {level: info}\n", ":3: holds more than one document"},
		"a word for a table": {"log: {level: warn}\nkafka: localhost\n", ":2: kafka: want a table of settings"},
		"a word for a list":  {"kafka: {brokers: \"a:1\"}\n", ":1: kafka.brokers: want a list"},
		"a list for a word":  {"log: {level: [info]}\n", ":1: log.level = [info]: want a text"},
		"a word for a flag": {"kafka:\n  tls:\n    enabled: yes please\n", ":3: kafka.tls.enabled = yes please: " +
			"want true or false"},
		"no unit":         {"fixity: {period: 90}\n", ":1: fixity.period = 90: want " + errDuration.Error()},
		"negative size":   {"sink: {bytes: -1}\n", ":1: sink.bytes = -1: want " + errSize.Error()},
		"a gap in a list": {"kafka:\n  brokers:\n    - a:1\n    -\n", ":4: kafka.brokers[1]: is empty"},
		"twice the same key": {"log: {level: warn}\nlog: {level: info}\n", ":2: is not YAML: " +
			"mapping key \"log\" already defined at [1:1]"},
		"an anchor": {"clickhouse:\n  tls: &tls {enabled: true}\nkafka:\n  tls: *tls\n", ""},
		"a cluster": {"clickhouse: {cluster: main}\n", ":1: clickhouse.cluster = main: millrace makes no tables on a " +
			"cluster, because no test ever ran them on one: leave it out, and see docs/clickhouse.md, Replicas"},
		"a reader, no name": {"clickhouse:\n  reader: {password: \"env:R\"}\n", ":2: clickhouse.reader.password: " +
			"is set, but clickhouse.reader.user is missing"},
		"a reader":     {"clickhouse: {reader: {user: r, password: \"env:R\"}}\n", ""},
		"nothing near": {"log: {colour: red}\n", ":1: log.colour: unknown setting; known here: level, format"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := load(t, tt.text)
			if tt.want == "" {
				if err != nil {
					t.Errorf("got %v", err)
				}
				return
			}
			var faults Faults
			if !errors.As(err, &faults) || len(faults) != 1 || !strings.HasSuffix(faults[0].String(), "c.yaml"+tt.want) {
				t.Errorf("got %v, want %s", err, tt.want)
			}
		})
	}
}

func TestLoadMissingFile(t *testing.T) {
	_, _, err := Load(Sources{File: filepath.Join(t.TempDir(), "no.yaml"), Env: []string{}})
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

func TestLoadEnv(t *testing.T) {
	for name, tt := range map[string]struct {
		env  string
		want string // the fault; empty: no fault
	}{
		"a table": {"MILLRACE_KAFKA__TLS=true", "MILLRACE_KAFKA__TLS: is a table of settings: " +
			"set those, such as MILLRACE_KAFKA__TLS__ENABLED"},
		"below a setting": {"MILLRACE_LOG__LEVEL__X=info", "MILLRACE_LOG__LEVEL__X: " +
			"sets nothing; did you mean MILLRACE_LOG__LEVEL?"},
		"into a list": {"MILLRACE_ACCOUNTS__ID=x", "MILLRACE_ACCOUNTS__ID: " +
			"sets nothing; did you mean MILLRACE_ACCOUNTS?"},
		"a list, not JSON": {"MILLRACE_ACCOUNTS=acme", "MILLRACE_ACCOUNTS: accounts: " +
			"want a list of tables of settings: it is not a list in JSON"},
		"a word for a number": {"MILLRACE_ROLES__ATTEMPTS=five", "MILLRACE_ROLES__ATTEMPTS: roles.attempts = five: " +
			"want a whole number"},
		"a word for a flag": {"MILLRACE_KAFKA__TLS__ENABLED=yes", "MILLRACE_KAFKA__TLS__ENABLED: " +
			"kafka.tls.enabled = yes: want true or false"},
		"accounts as JSON":  {`MILLRACE_ACCOUNTS=[{"id":"a","stores":[{"id":"1","root":"/r"}]}]`, ""},
		"a list as JSON":    {`MILLRACE_KAFKA__BROKERS=["a:1","b:2"]`, ""},
		"a number in words": {"MILLRACE_STATE__DIR=7", ""},
		"an unknown in JSON": {`MILLRACE_ACCOUNTS=[{"id":"a","stores":[{"id":"1","root":"/r","primry":true}]}]`,
			"MILLRACE_ACCOUNTS: accounts[0].stores[0].primry: unknown setting; did you mean primary?"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := Load(Sources{Env: []string{tt.env}})
			var faults Faults
			switch {
			case tt.want == "" && err != nil:
				t.Errorf("got %v", err)
			case tt.want != "" && (!errors.As(err, &faults) || len(faults) != 1 || faults[0].String() != tt.want):
				t.Errorf("got %v, want %s", err, tt.want)
			}
		})
	}
}

func TestShare(t *testing.T) {
	for text, want := range map[string]Share{"0%": 0, "2.5%": 0.025, "10%": 0.1, "99.9%": 0.999, "100%": 1} {
		c, _, err := Load(Sources{Env: []string{"MILLRACE_DELETES__MAX_SHARE=" + text}})
		if err != nil || c.Deletes.MaxShare != want || want.String() != text {
			t.Errorf("%s: got %v, %v", text, c, err)
		}
	}
	for _, text := range []string{"", "10", "0.1", "-1%", "101%", "ten%", "1e1%", "%"} {
		if _, _, err := Load(Sources{Env: []string{"MILLRACE_DELETES__MAX_SHARE=" + text}}); err == nil ||
			!strings.Contains(err.Error(), "10%, 2.5%") {
			t.Errorf("%q: got %v", text, err)
		}
	}
}

func TestPrintLoadRoundTrip(t *testing.T) {
	want := Default()
	want.Accounts = []Account{
		{ID: "a", Stores: []Store{
			Store{ID: "1", Root: "/a: \"#1\"", Primary: true}.withDefaults(),
			Store{ID: "2", Root: "/☂"}.withDefaults(),
		}},
		{ID: "b", Stores: []Store{Store{ID: "1", Root: "/c"}.withDefaults()}},
	}
	want.Fixity.Settle = 36*time.Hour + 1500*time.Millisecond
	want.Sweep.Fixity = schedule.MustParse("cron 0,30 3 * * mon-fri window 22:00-06:00 zone Europe/Zurich")
	want.Sweep.Reconcile = schedule.Schedule{} // off, unlike the default
	want.Deletes = Deletes{Delay: 14 * day, MaxShare: 0.025, MaxCount: 7}
	for name, origins := range map[string]*Origins{
		"plain":        nil,
		"with origins": {map[string]string{"accounts": "c.yaml:1", "log.level": "MILLRACE_LOG__LEVEL"}},
	} {
		t.Run(name, func(t *testing.T) {
			var b strings.Builder
			must(t, Print(&b, &want, origins))
			got, _, err := load(t, b.String())
			if err != nil {
				t.Fatalf("%v of\n%s", err, b.String())
			}
			if !reflect.DeepEqual(*got, want) {
				t.Errorf("got %+v, want %+v", *got, want)
			}
		})
	}
}

func TestPrintOrigins(t *testing.T) {
	c := Default()
	c.ClickHouse.Password = Secret{"env:PASSWORD"}
	c.Accounts = []Account{{ID: "a", Stores: []Store{Store{ID: "1", Root: "/r"}.withDefaults()}}}
	origins := &Origins{map[string]string{"accounts[0].id": "c.yaml:2", "clickhouse.password": "c.yaml:9"}}
	var b strings.Builder
	must(t, Print(&b, &c, origins))
	for _, want := range []string{
		"accounts: # default\n  - id: \"a\" # c.yaml:2\n    stores: # default\n      - id: " +
			"\"1\" # default\n        driver: \"file\" # default\n",
		"  password: \"***\" # c.yaml:9\n", "  period: 90d # default\n", "  brokers: [\"localhost:9092\"] # default\n",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("got\n%s\nwant in it\n%s", b.String(), want)
		}
	}
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
