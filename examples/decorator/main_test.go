package main

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
)

// Files are stored while Kafka is unavailable, and their Changes are published by the next run; the item is
// the path.
func TestDecorator(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	var names []string
	for i := range 20 {
		name := fmt.Sprintf("in/%02d.txt", i)
		names = append(names, name)
		if err := os.MkdirAll("in", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	root, outbox := filepath.Join(dir, "store"), filepath.Join(dir, "outbox")
	decorate := func(brokers, wait, stdin string, args ...string) (code int, out string) {
		var stdout, stderr bytes.Buffer
		all := append([]string{
			"-brokers", brokers, "-root", root, "-outbox", outbox, "-user", "ann", "-wait", wait,
		}, args...)
		code = run(t.Context(), all, strings.NewReader(stdin), &stdout, &stderr)
		return code, stdout.String() + stderr.String()
	}
	l, err := net.Listen("tcp", "127.0.0.1:0") // closed again: connections are refused
	if err != nil {
		t.Fatal(err)
	}
	refused := l.Addr().String()
	l.Close()
	// Nothing is written to a directory without the marker.
	if err := os.Mkdir(root, 0o755); err != nil {
		t.Fatal(err)
	}
	if code, out := decorate(refused, "100ms", names[0]); code != 1 || !strings.Contains(out, "marker is missing") ||
		!strings.Contains(out, "-init") {
		t.Errorf("without a marker: exit code %d: %s", code, out)
	}
	if left, err := os.ReadDir(root); err != nil || len(left) > 0 {
		t.Errorf("without a marker: %v was written, %v", left, err)
	}
	if code, out := decorate(refused, "100ms", "", "-init"); code != 0 || !strings.Contains(out, "0 stored") {
		t.Fatalf("with -init: exit code %d: %s", code, out)
	}
	if code, out := decorate(refused, "100ms", strings.Join(names[:15], "\n")); code != 0 ||
		!strings.Contains(out, "15 stored, 16 changes pending") {
		t.Fatalf("without Kafka: exit code %d: %s", code, out)
	}
	b := kafkatest.New(t, kafkatest.Options{RealTime: true, Loopback: true})
	brokers := strings.Join(b.Config().Brokers, ",")
	code, out := decorate(brokers, "10s", "", append([]string{"in/none.txt"}, names[15:]...)...)
	if code != 1 || !strings.Contains(out, "5 stored, 0 changes pending") || !strings.Contains(out, "in/none.txt") {
		t.Fatalf("with Kafka: exit code %d: %s", code, out)
	}
	published := map[string]*pb.Change{}
	for _, body := range b.Bodies(schemas.Changes) {
		c := body.(*pb.Change)
		published[c.GetItem()] = c
	}
	if len(published) != 21 || published[""].GetOp() != pb.Op_OP_CREATE_SPACE {
		t.Errorf("got changes of %d items, want of 20 and the space", len(published))
	}
	for _, name := range names {
		c := published[name]
		if c.GetOp() != pb.Op_OP_ADD || c.GetSize() != int64(len(name)) || c.GetUser() != "ann" ||
			c.GetDigests()["sha256"] == "" {
			t.Errorf("%s: got %v", name, c)
		}
		if got, err := os.ReadFile(filepath.Join(root, "files", name)); err != nil || string(got) != name {
			t.Errorf("%s: got %q, %v", name, got, err)
		}
	}
	if code, _ := decorate(brokers, "10s", "", "-root", ""); code != 2 {
		t.Errorf("without a root: exit code %d", code)
	}
}
