package integration

import (
	"bytes"
	"context"
	"crypto/md5"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
)

const producers = "../examples/producers"

// TestProducers checks that the producers in other languages write the same records as millrace: the same key and so
// partition, the same id, and a value that decodes to the same Change.
func TestProducers(t *testing.T) {
	need.Integration(t)
	for name, c := range map[string]struct {
		source, agent string
		command       func(t *testing.T) ([]string, error)
	}{
		"kcat":   {"example/kcat", "add.sh", kcat},
		"Python": {"example/python", "add.py", python},
		"Java":   {"example/java", "Add.java", java},
	} {
		t.Run(name, func(t *testing.T) {
			command, err := c.command(t)
			if err != nil {
				need.Missing(t, need.Program(name), err)
			}
			producer(t, command, c.source, c.agent)
		})
	}
}

// producer runs a producer and checks its records.
func producer(t *testing.T, command []string, source, agent string) {
	b := kafkatest.New(t, kafkatest.Options{Partitions: 12, Loopback: true, RealTime: true})
	const account, store, space = "acme", "store/1 100%", "Fotos é"
	dir, items := t.TempDir(), []string{"plain.txt", "a/b c/100%.txt", "été/☂\U0001F30A.jpg", "new\nline\ttab",
		`quote"and\back`, "empty", strings.Repeat("long", 50)}
	want := map[string]*pb.Change{}
	for i, item := range items {
		content := []byte(strings.Repeat(item, i))
		if item == "empty" {
			content = nil
		}
		path := filepath.Join(dir, item)
		at := time.Date(2020, 1, 2, 3, 4, i, (100*i+7)*1e6+999_999, time.UTC) // fractions of a millisecond are truncated
		must(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, content, 0o644),
			os.Chtimes(path, at, at)))
		short, long := md5.Sum(content), sha256.Sum256(content)
		change := &pb.Change{
			Op: pb.Op_OP_ADD, Account: account, Store: store, Space: space, Item: item, Size: int64(len(content)),
			Digests:    map[string]string{"md5": hex.EncodeToString(short[:]), "sha256": hex.EncodeToString(long[:])},
			Provenance: pb.Provenance_PROVENANCE_CLAIMED, Time: timestamppb.New(at.Truncate(time.Millisecond)), Agent: agent,
			Origin: pb.Origin_ORIGIN_CLIENT,
		}
		change.Id = schemas.ChangeID(change)
		want[item] = change
	}

	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, command[0], append(append(command[1:], account, store, space, dir), items...)...)
	cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8", "BROKERS="+strings.Join(b.Config().Brokers, ","),
		"TOPIC="+b.Config().Prefix+string(schemas.Changes))
	cmd.WaitDelay = 5 * time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", command, err, out)
	}
	theirs := map[string]kafkatest.Record{}
	for _, r := range b.Read(schemas.Changes) {
		body, err := schemas.Decode(schemas.Changes, r.Headers, r.Value)
		if err != nil {
			t.Fatalf("record %s: %v", r.Value, err)
		}
		got := body.(*pb.Change)
		item := got.GetItem()
		if got.GetUser() == "" {
			t.Errorf("%q: no user", item)
		}
		got.User = ""
		if !proto.Equal(got, want[item]) {
			t.Errorf("%q:\n got %v\nwant %v", item, got, want[item])
		}
		theirs[item] = r
	}
	if len(theirs) != len(items) {
		t.Fatalf("%d records, want %d", len(theirs), len(items))
	}
	compareRecords(t, b, want, theirs, source)
}

// compareRecords publishes the same changes with millrace's producer, and compares keys, partitions and headers.
func compareRecords(
	t *testing.T, b *kafkatest.Broker, want map[string]*pb.Change, theirs map[string]kafkatest.Record, source string,
) {
	t.Helper()
	for _, change := range want {
		publish(t, b.Config(), schemas.Message{Topic: schemas.Changes, Body: change, Source: source})
	}
	ours, partitions := 0, map[int32]bool{}
	for _, r := range b.Read(schemas.Changes) {
		if r.Header(schemas.HeaderContentType) != schemas.ContentProtobuf {
			continue
		}
		ours++
		body, err := schemas.Decode(schemas.Changes, r.Headers, r.Value)
		must(t, err)
		item := body.(*pb.Change).GetItem()
		other := theirs[item]
		partitions[r.Partition] = true
		if !bytes.Equal(r.Key, other.Key) || r.Partition != other.Partition {
			t.Errorf("%q: key %q in partition %d, ours %q in %d", item, other.Key, other.Partition, r.Key, r.Partition)
		}
		for _, h := range r.Headers {
			value := string(h.Value)
			if h.Key == schemas.HeaderContentType {
				value = schemas.ContentJSON
			}
			if other.Header(h.Key) != value {
				t.Errorf("%q: header %s is %q, want %q", item, h.Key, other.Header(h.Key), value)
			}
		}
	}
	if ours != len(want) || len(partitions) < 2 {
		t.Errorf("%d records of ours in %d partitions", ours, len(partitions))
	}
}

func kcat(*testing.T) ([]string, error) {
	for _, tool := range []string{"bash", "kcat", "jq", "sha256sum"} {
		if _, err := exec.LookPath(tool); err != nil {
			return nil, err
		}
	}
	return []string{producers + "/add.sh"}, nil
}

// python creates an environment with the pinned requirements.txt once.
func python(t *testing.T) ([]string, error) {
	python, err := exec.LookPath("python3")
	if err != nil {
		return nil, err
	}
	dir, err := fetchPinned(t, "python", producers+"/python/requirements.txt", func(dir, pins string) error {
		if err := runCommand(t, python, "-m", "venv", dir); err != nil {
			return err
		}
		return runCommand(t, filepath.Join(dir, "bin", "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check",
			"--require-hashes", "-r", pins)
	})
	return []string{filepath.Join(dir, "bin", "python"), producers + "/python/add.py"}, err
}

// java downloads the jars of the POM once.
func java(t *testing.T) ([]string, error) {
	java, err := exec.LookPath("java")
	if err != nil {
		return nil, err
	}
	if out, err := exec.CommandContext(t.Context(), java, "--list-modules").Output(); err != nil || !bytes.Contains(out,
		[]byte("jdk.compiler@")) {
		return nil, fmt.Errorf("%s is not a JDK: it cannot run a source file (%w)", java, err)
	}
	maven, err := exec.LookPath("mvn")
	if err != nil {
		return nil, err
	}
	dir, err := fetchPinned(t, "java", producers+"/java/pom.xml", func(dir, pom string) error {
		return runCommand(t, maven, "-q", "-B", "-ntp", "--strict-checksums", "-f", pom, "dependency:copy-dependencies",
			"-DincludeScope=runtime", "-DoutputDirectory="+dir)
	})
	return []string{java, "-cp", filepath.Join(dir, "*"), producers + "/java/Add.java"}, err
}

// fetchPinned returns a directory filled by fetch as pins describes, from the cache if possible.
func fetchPinned(t *testing.T, name, pins string, fetch func(dir, pins string) error) (string, error) {
	pins, err := filepath.Abs(pins)
	if err != nil {
		return "", err
	}
	data, err := os.ReadFile(pins)
	must(t, err)
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(data)
	dir := filepath.Join(cache, "millrace", fmt.Sprintf("producer-%s-%x", name, sum[:6]))
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", err
	}
	// Use a temporary directory: two tests may fetch at the same time, and either may be killed.
	//nolint:usetesting // it is moved, so it must be on the cache's file system
	tmp, err := os.MkdirTemp(filepath.Dir(dir), "fetch-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	if err := fetch(filepath.Join(tmp, "it"), pins); err != nil {
		return "", err
	}
	if err := os.Rename(filepath.Join(tmp, "it"), dir); err != nil {
		if _, there := os.Stat(dir); there != nil {
			return "", err
		}
	}
	return dir, nil
}

// runCommand runs a command. The error contains its output.
func runCommand(t *testing.T, name string, args ...string) error {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.WaitDelay = 5 * time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", filepath.Base(name), strings.Join(args, " "), err, out)
	}
	return nil
}
