package integration

import (
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/millrace/millrace/"

// kafkaParts are the packages of the Kafka runtime.
const kafkaParts = "streams/kafka/..."

// A layer is one row of the table "may import": packages, and what of ours they may
// import. A pattern that ends in /... stands for a package and those below it.
type layer struct {
	packages []string
	may      []string
}

// layers holds every package; the first row that matches counts.
func layers() []layer {
	const (
		wire    = "schemas/..."
		retry   = "streams/retry"
		storage = "streams/storage"
		digest  = "streams/digest"
		child   = "streams/child"
		policy  = "streams/policy"
		// documents by compare-and-set, of policies and accounts
		revision = "streams/revision"
		need     = "internal/need"
		nearest  = "internal/nearest"
		tally    = "internal/tally"
		parts    = "internal/jsonpart"
		denied   = "internal/denied"
		sizes    = "internal/bytesize"
		// files that are complete when they have their names
		wholefile = "internal/wholefile"
		chunks    = "streams/chunks"
		record    = "streams/storage/record" // between what is on record and what a store shows

		kafkaClient = "streams/kafka/client"
		kafkaCore   = "streams/kafka/internal/core"
	)
	return []layer{
		{[]string{"schemas/millrace/v1", retry, digest, child, need, nearest, tally, parts, denied, sizes,
			wholefile, "internal/heaptest", "internal/logtest", "internal/rowdoc"}, nil},
		{[]string{"schemas"}, []string{"schemas/millrace/v1"}},
		{[]string{storage}, []string{digest}},
		{[]string{chunks}, []string{storage, digest}},
		// Drivers, decorators and their contract.
		{[]string{"streams/storage/emit"}, []string{wire, retry, storage, digest, record, "streams/storage/outbox"}},
		{[]string{"streams/storage/outbox/..."}, []string{wire, retry, storage, digest, denied,
			"streams/storage/outbox/..."}},
		{[]string{"streams/storage/s3/..."}, []string{wire, retry, storage, digest, child, "streams/storage/s3/..."}},
		{[]string{"streams/storage/storagetest"}, []string{wire, retry, storage, digest, need}},
		{[]string{record}, []string{wire, storage, digest}},
		{[]string{"streams/storage/file"}, []string{wire, retry, storage, digest, denied}},
		{[]string{"streams/storage/..."}, []string{wire, retry, storage, digest}},
		{[]string{"streams/incident", "streams/space"}, []string{wire}},
		{[]string{"streams/restore"}, []string{wire, storage, digest, record, policy}},
		{[]string{"streams/extract"}, []string{storage, digest}},
		{[]string{revision}, []string{wire}},
		{[]string{policy}, []string{wire, nearest, sizes, revision}},
		{[]string{"streams/policy/exclusion"}, []string{retry, policy}},
		{[]string{"streams/policy/preview"}, []string{digest, policy}},
		{[]string{"streams/policy/folder"}, []string{wire, retry, policy, "streams/incident"}},
		{[]string{"streams/inventory"}, []string{wire, digest, tally}},
		{[]string{"streams/inventory/sorted"}, []string{wire, digest, "streams/inventory"}},
		{[]string{"streams/plan"}, []string{wire, policy, retry}}, // retry: to say which errors are permanent
		{[]string{"streams/brake/..."}, []string{wire, retry, "streams/brake"}},
		{[]string{"streams/held/..."}, []string{wire, retry, "streams/held"}},
		{[]string{"streams/deletion"}, []string{wire, retry, storage, digest, policy, record, "streams/brake/...",
			"streams/held/...", "streams/duplicate"}},
		{[]string{"streams/duplicate"}, []string{wire, retry, storage, digest, policy, record, chunks,
			"streams/brake/...", "streams/held/..."}},
		{[]string{"streams/fixity", "streams/sweep"}, []string{wire, retry, storage, digest, policy, record}},
		{[]string{"streams/steward"}, []string{wire, retry, digest, "streams/incident", "streams/held"}},
		{[]string{"streams/sweep/merge", "streams/sweep/filter", "streams/schedule"}, nil},
		{[]string{"streams/sweep/..."}, []string{wire, retry, storage, digest, policy, record, chunks,
			"streams/sweep/..."}},
		{[]string{"streams/ingest/..."}, []string{wire, retry, storage, digest, record, parts, "streams/ingest/..."}},
		{[]string{"sinks/clickhouse/clickhousetest"}, []string{wire, retry, child, need, tally, "sinks/clickhouse/..."}},
		// The parts of the Kafka runtime, from those that the others use to those that use them.
		{[]string{"streams/kafka/schedule"}, []string{wire}},
		{[]string{"streams/kafka/metrics"}, []string{wire, retry, "streams/kafka/metrics/metricstest"}},
		{[]string{"streams/kafka/metrics/metricstest"}, nil},
		{[]string{"streams/kafka/client"}, []string{wire, retry, "streams/kafka/metrics/..."}},
		{[]string{kafkaCore}, []string{wire, retry, kafkaClient, "streams/kafka/metrics/..."}},
		{[]string{"streams/kafka/admin", "streams/kafka/deadletter"},
			[]string{wire, retry, kafkaClient, kafkaCore, "streams/kafka/metrics/..."}},
		{[]string{"streams/kafka"},
			[]string{wire, retry, kafkaClient, kafkaCore, "streams/kafka/metrics/...", "streams/kafka/schedule"}},
		{[]string{"streams/kafka/kafkatest"},
			[]string{wire, retry, kafkaClient, "streams/kafka/access", "streams/kafka/admin", "streams/kafka/embedded"}},
		{[]string{kafkaParts}, []string{wire, retry, kafkaParts}},
		{[]string{"sinks/clickhouse/..."}, []string{wire, retry, child, tally, "sinks/clickhouse/..."}},
		{[]string{"sinks/export"}, []string{wire}},
		{[]string{"sinks/fixityreport"}, []string{digest, "sinks/clickhouse/read"}},
		{[]string{"cmd/config"}, []string{nearest, sizes, "cmd/precondition", "streams/schedule", "streams/sweep/filter",
			"sinks/export"}},
		{[]string{"cmd/millrace-clickhouse", "cmd/millrace/progress", "cmd/config/mill"}, nil},
		{[]string{"cmd/precondition"}, nil},
		{[]string{"cmd/statedir"}, []string{"streams/kafka/embedded", "sinks/clickhouse/embedded", "cmd/config",
			"cmd/precondition", denied, wholefile}},
		{[]string{"cmd/health"}, []string{wire, retry, kafkaClient, "streams/kafka/admin", "streams/kafka/metrics",
			"streams/storage/limit", "sinks/clickhouse"}},
		{[]string{"cmd/app"}, []string{wire, "streams/...", "sinks/...", denied, wholefile, "cmd/config",
			"cmd/precondition", "cmd/health", "cmd/tracing"}},
		{[]string{"cmd/tracing"}, []string{wire, "cmd/config", "streams/kafka/..."}},
		{[]string{"cmd/millrace/..."}, []string{wire, "streams/...", "sinks/...", "cmd/..."}},
		{[]string{"examples/..."}, []string{wire, "streams/..."}},
		{[]string{"deploy/libchdb"}, []string{"sinks/clickhouse/embedded"}},
		{[]string{"integration/harness"}, []string{need, wire, kafkaClient, retry, child, "streams/storage/s3/s3proc"}},
		{[]string{"integration/..."}, []string{wire, "streams/...", "sinks/...", "cmd/...", "integration/harness",
			"integration/converge"}},
	}
}

// inTests is what the tests of any package may import besides, of ours.
func testOnlyImports() []string {
	return []string{
		"internal/need", "internal/heaptest", "internal/logtest", "internal/rowdoc",
		"schemas/...", "streams/retry", "streams/digest", "streams/storage", "streams/storage/mem", "streams/storage/file",
		"streams/storage/s3", "streams/storage/s3/s3test",
		"streams/storage/storagetest", "streams/storage/outbox/outboxtest", "streams/kafka/kafkatest",
		"sinks/clickhouse/clickhousetest",
	}
}

// onlyImporters are modules of others that one place of ours hides from the rest.
func onlyImporters() map[string][]string {
	const harness = "integration/harness" // it breaks what the others use
	return map[string][]string{
		"github.com/twmb/franz-go":          {"streams/kafka/...", harness},
		"github.com/testcontainers":         {harness},
		"github.com/moby/moby":              {harness},
		"github.com/Shopify/toxiproxy":      {harness},
		"github.com/ClickHouse":             {"sinks/clickhouse/..."},
		"github.com/knadh/koanf":            {"cmd/config"},
		"github.com/ebitengine/purego":      {"cmd/millrace-clickhouse"},
		"github.com/spf13/cobra":            {"cmd/millrace/..."},
		"github.com/vbauerster/mpb":         {"cmd/millrace/..."},
		"github.com/planetscale/vtprotobuf": {"schemas/..."},
		"github.com/coreos/go-systemd":      {"cmd/health"},
		"github.com/parquet-go":             {"sinks/export"},
		"github.com/minio/minio-go":         {"streams/storage/s3", harness},
		"github.com/minio/crc64nvme":        {"streams/digest", "streams/storage/s3/..."},
	}
}

// standardOnly are packages that import nothing of others either, but in their tests.
func standardOnly() []string {
	return []string{"internal/tally", "streams/retry", "streams/storage", "streams/kafka/schedule"}
}

func matches(pattern, pkg string) bool {
	if below, ok := strings.CutSuffix(pattern, "/..."); ok {
		return pkg == below || strings.HasPrefix(pkg, below+"/")
	}
	return pkg == pattern
}

func matchesAny(patterns []string, pkg string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return matches(p, pkg) })
}

// violation says why pkg must not import target; empty: it may.
func violation(pkg, target string, test bool) string {
	rows := layers()
	i := slices.IndexFunc(rows, func(l layer) bool { return matchesAny(l.packages, pkg) })
	if i < 0 {
		return "has no row in layers_test.go"
	}
	of, ours := strings.CutPrefix(target, module)
	switch {
	case ours && (of == pkg || matchesAny(rows[i].may, of) || test && matchesAny(testOnlyImports(), of)):
		return ""
	case ours && test && matches(kafkaParts, pkg) && matches(kafkaParts, of): // each part is tested with the others
		return ""
	case ours:
		return "may import of ours only " + strings.Join(rows[i].may, ", ")
	case !strings.Contains(strings.Split(target, "/")[0], "."):
		return "" // the standard library
	}
	for library, only := range onlyImporters() {
		if matches(library+"/...", target) && !matchesAny(only, pkg) {
			return "is not " + strings.Join(only, " or ") + ", the only importer of " + library
		}
	}
	if !test && slices.Contains(standardOnly(), pkg) {
		return "imports the standard library only"
	}
	return ""
}

// Every file of the repository imports only what the table allows, for all build targets.
func TestLayers(t *testing.T) {
	seen := map[string]bool{}
	err := filepath.WalkDir("..", func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			// bench and tools are modules of their own.
			if name := d.Name(); name != ".." && (strings.HasPrefix(name,
				".") || slices.Contains([]string{"testdata", "bench", "tools", "bin", "dist"}, name)) {
				return fs.SkipDir
			}
			return nil
		}
		if path.Ext(file) != ".go" {
			return nil
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		if err != nil {
			return fmt.Errorf("read the imports of %s: %w", file, err)
		}
		rel, err := filepath.Rel("..", file)
		if err != nil {
			return err
		}
		pkg := path.Dir(filepath.ToSlash(rel))
		seen[pkg] = true
		for _, i := range parsed.Imports {
			target, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				return err
			}
			if reason := violation(pkg, target, strings.HasSuffix(file, "_test.go")); reason != "" {
				t.Errorf("%s imports %s: %s %s", filepath.ToSlash(rel), target, pkg, reason)
			}
		}
		return nil
	})
	must(t, err)
	for pkg := range seen {
		if reason := violation(pkg, "fmt", true); reason != "" {
			t.Errorf("%s %s", pkg, reason)
		}
	}
	for _, pkg := range []string{"schemas", "streams/kafka", "cmd/app", "integration"} {
		if !seen[pkg] {
			t.Errorf("%s was not checked", pkg)
		}
	}
}

// The check itself: it finds each forbidden import, and accepts each allowed one.
func TestViolation(t *testing.T) {
	for name, tt := range map[string]struct {
		pkg, target string
		test, bad   bool
	}{
		"a processor and Kafka":              {"streams/fixity", module + "streams/kafka", false, true},
		"a processor and a driver":           {"streams/duplicate", module + "streams/storage/file", false, true},
		"a processor's test and a driver":    {"streams/duplicate", module + "streams/storage/mem", true, false},
		"a processor's test and the runtime": {"streams/duplicate", module + "streams/kafka", true, true},
		"a processor's test and its broker":  {"streams/steward", module + "streams/kafka/kafkatest", true, false},
		"a processor and a sink":             {"streams/steward", module + "sinks/clickhouse", false, true},
		"an ingest package and a driver":     {"streams/ingest/hint", module + "streams/storage/file", false, true},
		"an ingest package and Kafka":        {"streams/ingest", module + "streams/kafka", false, true},
		"an ingest package and its hints":    {"streams/ingest/watch", module + "streams/ingest/hint", false, false},
		"a processor and its storage":        {"streams/fixity", module + "streams/storage", false, false},
		"deletion and duplicate":             {"streams/deletion", module + "streams/duplicate", false, false},
		"duplicate and deletion":             {"streams/duplicate", module + "streams/deletion", false, true},
		"a sink and a stream":                {"sinks/clickhouse", module + "streams/storage", false, true},
		"the wire and anything":              {"schemas", module + "streams/retry", false, true},
		"the wire and its messages":          {"schemas", module + "schemas/millrace/v1", false, false},
		"storage and the wire":               {"streams/storage", module + "schemas", false, true},
		"a driver and the wire":              {"streams/storage/file", module + "schemas", false, false},
		"a driver and another":               {"streams/storage/file", module + "streams/storage/mem", false, true},
		"retry and a library":                {"streams/retry", "golang.org/x/sync/errgroup", false, true},
		"retry's test and a library":         {"streams/retry", "pgregory.net/rapid", true, false},
		"retry and the standard library":     {"streams/retry", "math/rand/v2", false, false},
		"Kafka's client elsewhere":           {"cmd/app", "github.com/twmb/franz-go/pkg/kgo", false, true},
		"Kafka's client in a test elsewhere": {"integration", "github.com/twmb/franz-go/pkg/kfake", true, true},
		"Kafka's client in the harness":      {"integration/harness", "github.com/twmb/franz-go/pkg/kadm", false, false},
		"containers in a test":               {"integration", "github.com/testcontainers/testcontainers-go", true, true},
		"the harness and the application":    {"integration/harness", module + "cmd/app", false, true},
		"Kafka's client in its package": {"streams/kafka/kafkatest", "github.com/twmb/franz-go/pkg/kfake", false,
			false},
		"ClickHouse's client elsewhere":    {"cmd/millrace", "github.com/ClickHouse/ch-go", false, true},
		"the scheduler and its Pool":       {"streams/kafka/schedule", module + "streams/kafka", false, true},
		"the scheduler and Kafka's client": {"streams/kafka/schedule", "github.com/twmb/franz-go/pkg/kgo", false, true},
		"pools and admin":                  {"streams/kafka", module + "streams/kafka/admin", false, true},
		"the core and pools":               {"streams/kafka/internal/core", module + "streams/kafka", false, true},
		"the test of admin and pools":      {"streams/kafka/admin", module + "streams/kafka", true, false},
		"dead letters and the core": {"streams/kafka/deadletter", module + "streams/kafka/internal/core",
			false, false},
		"the Pool and its scheduler":              {"streams/kafka", module + "streams/kafka/schedule", false, false},
		"koanf below cmd":                         {"streams/kafka", "github.com/knadh/koanf/v2", false, true},
		"purego in the static binary":             {"cmd/millrace", "github.com/ebitengine/purego", false, true},
		"the application and all":                 {"cmd/app", module + "sinks/clickhouse/embedded", false, false},
		"the application and one of its commands": {"cmd/app", module + "cmd/millrace/demo", false, true},
		"settings and the application":            {"cmd/config", module + "cmd/app", false, true},
		"a package without a layer":               {"streams/new", "fmt", false, true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := violation(tt.pkg, tt.target, tt.test); (got != "") != tt.bad {
				t.Errorf("got %q, want a violation: %t", got, tt.bad)
			}
		})
	}
}
