package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/rogpeppe/go-internal/testscript"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/admin"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/kafka/deadletter"
	"github.com/millrace/millrace/streams/kafka/embedded"
	"github.com/millrace/millrace/streams/retry"
)

// deadState is the command "deadstate DIR N": it makes a state directory with N dead letters of
// changes that a planner refused, the first one for a different reason.
func deadState(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: deadstate DIR N")
	}
	n, err := strconv.Atoi(args[1])
	ts.Check(err)
	ts.Check(makeDeadState(context.Background(), ts.MkAbs(args[0]), n))
}

func makeDeadState(ctx context.Context, dir string, n int) (err error) {
	b, err := embedded.StartBroker(embedded.BrokerConfig{Dir: filepath.Join(dir, "kafka")})
	if err != nil {
		return err
	}
	defer b.Close()
	cfg := client.Config{Brokers: []string{b.Addr()}, Prefix: "millrace.", Heartbeat: 100 * time.Millisecond}
	if err := admin.EnsureTopics(ctx, cfg, admin.TopicOptions{Partitions: 2, Replication: 1}); err != nil {
		return err
	}
	if err := refuse(ctx, cfg, n); err != nil {
		return err
	}
	err = os.WriteFile(filepath.Join(dir, "config.yaml"), []byte("log: {level: warn}\n"), 0o644)
	return errors.Join(err, os.WriteFile(filepath.Join(dir, "state.json"), []byte(`{"version": 3}`), 0o644))
}

// refuse makes a planner produce dead letters of n changes.
func refuse(ctx context.Context, cfg client.Config, n int) error {
	var changes []schemas.Message
	for i := range n {
		c := &pb.Change{
			Op: pb.Op_OP_ADD, Account: "acme", Store: "1", Space: "maps", Item: fmt.Sprintf("item-%d", i), Version: "v",
			Time: timestamppb.New(time.UnixMilli(1_700_000_000_000)),
		}
		c.Id = schemas.ChangeID(c)
		changes = append(changes, schemas.Message{Topic: schemas.Changes, Body: c})
	}
	return refuseAll(ctx, cfg, schemas.RolePlanner, changes)
}

// refuseAll makes a role produce dead letters of messages of one topic.
func refuseAll(ctx context.Context, cfg client.Config, role schemas.Role, msgs []schemas.Message) error {
	p, err := kafka.NewProducer(cfg, "test")
	if err != nil {
		return err
	}
	defer p.Close()
	for _, m := range msgs { // one by one, so that their order is known
		if err := p.Publish(ctx, m); err != nil {
			return err
		}
	}
	ctx, stop := context.WithTimeout(ctx, time.Minute)
	defer stop()
	topic := msgs[0].Topic
	g, err := kafka.NewPool(cfg, kafka.PoolConfig{Role: role, Topics: []schemas.Topic{topic}},
		func(_ context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
			if c, ok := d.Body.(*pb.Change); ok && c.GetItem() == "item-0" {
				return nil, retry.Permanent(errors.New("unknown store \"9\"\x1b[31m\nand more"))
			}
			return nil, retry.Permanent(errors.New("no policy"))
		})
	if err != nil {
		return err
	}
	adm, err := admin.New(cfg)
	if err != nil {
		return err
	}
	defer adm.Close()
	ended := make(chan error, 1)
	go func() { ended <- g.Run(ctx) }()
	_, err = adm.NewWatermark(topic, map[schemas.Role][]schemas.Topic{role: {topic}}).Wait(ctx)
	stop()
	return errors.Join(err, <-ended)
}

// A stopper cancels a context at the first progress.
type stopper struct {
	bytes.Buffer
	stop context.CancelFunc
}

func (s *stopper) Write(p []byte) (int, error) {
	var l struct{ Done int }
	if json.Unmarshal(p, &l) == nil && l.Done > 0 {
		s.stop()
	}
	return s.Buffer.Write(p)
}

// Ctrl-C stops a redrive, which reports its progress; the same command completes it.
func TestRedriveIsStopped(t *testing.T) {
	dir := t.TempDir()
	must(t, makeDeadState(t.Context(), dir, 20))
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var out bytes.Buffer
	stderr := &stopper{stop: stop}
	if code := run(ctx, []string{"dead", "redrive", "--state", dir, "--role", "planner", "--rate", "4/s"}, &out,
		stderr); code != exitInterrupted {
		t.Errorf("exit code %d, want %d", code, exitInterrupted)
	}
	var done, total int
	said := stderr.String()[strings.LastIndex(stderr.String(), "stopped: "):]
	if _, err := fmt.Sscanf(said, "stopped: %d of %d dead letters", &done, &total); err != nil || done < 1 || done > 19 ||
		total != 20 {
		t.Fatalf("said %q", stderr.String())
	}
	code := run(t.Context(), []string{"dead", "redrive", "--state", dir, "--role", "planner", "--rate", "1000"}, &out,
		&stderr.Buffer)
	if want := fmt.Sprintf("redriven %d dead letters\n", total-done); code != exitOK ||
		!strings.Contains(out.String(), want) {
		t.Errorf("exit code %d, %q, want %q", code, out.String(), want)
	}
}

// A dead letter that is not a message is shown as bytes, without control characters.
func TestShowLetter(t *testing.T) {
	long := bytes.Repeat([]byte{0xff}, maxHexBytes+10)
	l := &deadletter.Letter{
		ID: "1-7", State: deadletter.Discarded, By: "ann", Reason: "test\x1b[2J", Decided: time.Unix(1_800_000_000,
			0), Time: time.Unix(1_700_000_000, 0),
		Role: schemas.RolePlanner, Topic: schemas.Changes, Partition: 3, Offset: 5, Class: "permanent",
		Error: "malformed\x1b[31m\nstack", Attempts: 1,
		Key: []byte("k\xff"), Value: long, Headers: []schemas.Header{{Key: "a", Value: []byte{0xff}},
			{Key: "b", Value: []byte("text")}},
		History: []deadletter.Failure{{Attempt: 1, Class: "permanent", Error: "malformed", By: "planner", Times: 1}},
	}
	var out bytes.Buffer
	must(t, showLetter(&out, l))
	for _, want := range []string{"dead letter 1-7: discarded by ann on 2027-01-15",
		"from   changes, partition 3, offset 5", "       stack", "/w==", "text",
		fmt.Sprintf("value of %d bytes, which is not a message: malformed message",
			maxHexBytes+10), "00000000  ff ff", "and 10 more bytes", "1 times"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%.400q does not say %q", out.String(), want)
		}
	}
	if !utf8.Valid(out.Bytes()) || strings.Contains(out.String(), "\x1b") {
		t.Error("what is shown holds what is no text")
	}
	v := fullLetter(l)
	if v.Message != nil || len(v.Value) != maxHexBytes+10 || v.Broken == "" || !v.Headers[0].Base64 ||
		v.Headers[1].Base64 {
		t.Errorf("got %+v", v)
	}
}

func TestSinceTime(t *testing.T) {
	now := time.Date(2026, 3, 10, 12, 0, 0, 0, time.UTC)
	for text, want := range map[string]string{
		"2026-03-01T10:00:00Z": "2026-03-01T10:00:00Z", "2026-03-01": "2026-03-01T00:00:00Z", "90m": "2026-03-10T10:30:00Z",
		"7d":        "2026-03-03T12:00:00Z",
		"yesterday": "", "-3h": "", "d": "", "": "",
	} {
		at, err := sinceTime(text, now)
		if got := at.Format(time.RFC3339); (err == nil) != (want != "") || err == nil && got != want {
			t.Errorf("%q: %s, %v, want %q", text, got, err, want)
		}
	}
}

// --topic accepts the topics of millrace, and any foreign one.
func TestDeadTopic(t *testing.T) {
	for topic, bad := range map[string]bool{"": false, "changes": false, "foreign:bucket-events": false,
		"bucket-events": true, "dead": true} {
		if q, err := (&deadFlags{topic: topic}).query(nil); (err != nil) != bad || !bad && string(q.Topic) != topic {
			t.Errorf("%q: got %q, %v", topic, q.Topic, err)
		}
	}
}
