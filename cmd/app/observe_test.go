package app

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/cmd/health"
	"github.com/millrace/millrace/cmd/precondition"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/admin"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
	"github.com/millrace/millrace/streams/kafka/metrics"
)

func get(t *testing.T, h http.Handler, method, path string) (int, string) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), method, path, nil))
	return w.Code, w.Body.String()
}

func TestListen(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer taken.Close()
	a := &App{cfg: &config.Config{HTTP: config.HTTP{Listen: taken.Addr().String()}}, log: slog.New(slog.DiscardHandler)}
	// Run finds that out before it touches an engine: there is none here.
	err = a.Run(t.Context(), nil)
	if !errors.Is(err, precondition.Err) ||
		!strings.Contains(err.Error(), "http.listen: listen tcp "+taken.Addr().String()+": bind: address already in use") {
		t.Errorf("got %v, want what is wrong with which setting", err)
	}
	a.cfg.HTTP.Listen = ""
	if l, err := a.listen(t.Context()); l != nil || err != nil {
		t.Errorf("got %v and %v without the setting", l, err)
	}
}

// At a stop, running requests are answered, and hanging ones do not delay it.
func TestServeStops(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	began, release := make(chan struct{}, 2), make(chan struct{})
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began <- struct{}{}
		select {
		case <-release:
		case <-r.Context().Done():
		}
		io.WriteString(w, "answer")
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- serve(ctx, l, h, slog.New(slog.DiscardHandler)) }()
	answer := make(chan string, 1)
	go func() {
		resp, err := http.Get("http://" + l.Addr().String())
		if err != nil {
			answer <- err.Error()
			return
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		answer <- string(b)
	}()
	idle, err := net.Dial("tcp", l.Addr().String()) // says nothing, ever
	must(t, err)
	defer idle.Close()
	<-began
	cancel()
	close(release)
	if got := <-answer; got != "answer" {
		t.Errorf("got %q, want the answer", got)
	}
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(serveStop + 5*time.Second):
		t.Fatal("it goes on")
	}
	if _, err := net.Dial("tcp", l.Addr().String()); err == nil {
		t.Error("it still listens")
	}
}

// The endpoints of a planner, with an in-memory broker.
func TestObserved(t *testing.T) {
	b := kafkatest.New(t, kafkatest.Options{RealTime: true})
	log := slog.New(slog.DiscardHandler)
	reg := health.NewRegistry()
	cfg := b.Config()
	cfg.Metrics = metrics.New(reg)
	a, err := admin.New(cfg)
	must(t, err)
	t.Cleanup(a.Close)
	hang := make(chan struct{})
	g, err := kafka.NewPool(cfg, kafka.PoolConfig{Role: schemas.RolePlanner, Topics: []schemas.Topic{schemas.Changes}},
		func(ctx context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
			if d.Body.(*pb.Change).GetItem() == "hangs" {
				<-hang
			}
			return nil, nil
		})
	must(t, err)
	h := health.New(health.Config{Log: log, StallAfter: 2 * time.Second, TopicPrefix: cfg.Prefix,
		Roles: cfg.Metrics.State, Lags: a.Lags, Ping: func(context.Context) error { return nil },
		Unreadable: func() []string { return nil }, Stopped: client.NewUnreadables().Batches,
		SetLags: admin.NewLagMetrics(reg).Set})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan error, 1)
	go func() {
		stopped <- supervise(ctx, log, 20*time.Second, part{"planner", g.Run}, part{"health", h.Run},
			part{"http", func(ctx context.Context) error { return serve(ctx, l, h.Handler(reg), log) }})
	}()
	s := &site{t: t, url: "http://" + l.Addr().String()}
	s.await("/startupz", 200)
	s.await("/readyz", 200, `"role": "planner"`, `"partitions": 4`)
	b.Send(item("a"), item("b"))
	s.await("/metrics", 200, `millrace_kafka_messages_total{class="high",disposition="done",role="planner"} 2`,
		`millrace_kafka_lag_records{class="high",role="planner",topic="changes"} 0`,
		`millrace_kafka_client_connects_total{client="planner.high",`, `millrace_kafka_client_connects_total{client="admin",`)
	b.Send(item("hangs"))
	s.await("/livez", 503, "role planner: 1 messages are due, and nothing was done for ")
	s.await("/metrics", 200, `millrace_kafka_lag_records{class="high",role="planner",topic="changes"} 1`,
		`millrace_kafka_working_tasks{class="high",role="planner"} 1`)
	close(hang)
	s.await("/livez", 200)
	cancel()
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

func item(name string) schemas.Message {
	c := &pb.Change{Op: pb.Op_OP_ADD, Account: "acme", Store: "1", Space: "maps", Item: name, Version: "1",
		Time: timestamppb.New(time.Unix(1e9, 0))}
	c.Id = schemas.ChangeID(c)
	return schemas.Message{Topic: schemas.Changes, Body: c}
}
