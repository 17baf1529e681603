package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/kafka/internal/parttest"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
	"github.com/millrace/millrace/streams/retry"
)

// A link is the connection of one member to the broker. It can be cut, and sees each commit before the
// broker.
type link struct {
	dial func(ctx context.Context, network, addr string) (net.Conn, error)
	see  func(*kmsg.OffsetCommitRequest, error)

	mu    sync.Mutex // guards the fields below
	down  bool
	wires []*linkConn
}

// latency is the duration of a request: a member acts earlier by the clock if it does not wait for a
// response.
const latency = 2 * time.Millisecond

func (l *link) connect(ctx context.Context, network, addr string) (net.Conn, error) {
	l.mu.Lock()
	down := l.down
	l.mu.Unlock()
	if down {
		select { // the client must not spin
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
		return nil, errors.New("the link is cut")
	}
	far, err := l.dial(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	near, middle := net.Pipe()
	w := &linkConn{Conn: near, link: l}
	go func() {
		_, _ = io.Copy(far, middle)
		if !w.cut.Load() {
			far.Close()
		}
	}()
	go func() {
		_, _ = io.Copy(middle, far)
		middle.Close()
		_, _ = io.Copy(io.Discard, far) // until the broker closes, as the test ends
	}()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wires = append(l.wires, w)
	return w, nil
}

// cut ends the connections for the member. They stay open for the broker, and its responses are dropped.
func (l *link) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down = true
	for _, w := range l.wires {
		w.cut.Store(true)
		w.Close()
	}
	l.wires = nil
}

func (l *link) mend() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down = false
}

// A linkConn is a connection of a link. Each Write is one request.
type linkConn struct {
	net.Conn
	link *link
	cut  atomic.Bool // before it was closed
}

func (w *linkConn) Write(b []byte) (int, error) {
	if req, err := commitIn(b); req != nil {
		w.link.see(req, err)
	}
	time.Sleep(latency)
	return w.Conn.Write(b)
}

// commitIn decodes a request if it is a commit.
func commitIn(b []byte) (*kmsg.OffsetCommitRequest, error) {
	r := kbin.Reader{Src: b}
	_ = r.Int32() // length
	if kmsg.Key(r.Int16()) != kmsg.OffsetCommit {
		return nil, nil
	}
	req := kmsg.NewPtrOffsetCommitRequest()
	req.SetVersion(r.Int16())
	_, _ = r.Int32(), r.NullableString() // correlation id, client id
	if req.IsFlexible() {
		kmsg.ReadTags(&r)
	}
	return req, req.ReadFrom(r.Src)
}

// A member is a Pool in its own process.
type member struct {
	link *link
	stop context.CancelFunc
	gone chan struct{} // closed when Run has returned
	out  bool          // stopped or killed
}

func (m *member) up() bool {
	select {
	case <-m.gone:
		return false
	default:
		return !m.out
	}
}

// An intent is a commit of one partition that a member sent.
type intent struct {
	topic  schemas.Topic
	id     [16]byte // of the topic, if it is not named
	part   int32
	offset int64
	at     time.Time
}

// A simulation is a scenario while it runs.
type simulation struct {
	*scenario
	t       *testing.T
	b       *kafkatest.Broker
	members []*member
	sent    int              // of jobs
	last    map[string]int64 // commits at the last look

	mu      sync.Mutex // guards the fields below
	busy    map[string]int
	running map[int]int  // tasks that are not parked, by member
	tried   map[int]bool // jobs that were called
	commits []intent
	wrong   []string
}

func (w *simulation) fault(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wrong = append(w.wrong, fmt.Sprintf(format, args...))
}

// run runs the scenario until every message is settled and every member has left.
func (p *scenario) run(t *testing.T) *simulation {
	lanes := []client.Lane{{Name: "2s", Delay: 2 * time.Second}, {Name: "8s", Delay: 8 * time.Second}}
	b := kafkatest.New(t, kafkatest.Options{NoTopics: true, Lanes: lanes})
	for topic, n := range map[schemas.Topic]int32{
		schemas.Changes: p.Partitions, schemas.Again(schemas.RolePlanner): p.Partitions,
		schemas.DuplicationHigh: 1, schemas.Dead: 1, schemas.Delay("2s"): 1, schemas.Delay("8s"): 1,
	} {
		b.MakeTopic(topic, n, map[string]string{"message.timestamp.type": "LogAppendTime"})
	}
	w := &simulation{scenario: p, t: t, b: b, last: map[string]int64{}, busy: map[string]int{}, running: map[int]int{},
		tried: map[int]bool{}}
	if p.Delayer {
		parttest.Background(t, parttest.Delayer(t, b))
	}
	for _, e := range p.Events {
		time.Sleep(e.After)
		w.step(e)
		w.look()
	}
	for deadline := time.Now().Add(15 * time.Minute); w.look() < int64(w.sent) || !w.ended(); time.Sleep(4 * time.Second) {
		if !slices.ContainsFunc(w.members, (*member).up) {
			w.start()
		}
		if time.Now().After(deadline) {
			w.fault("not all of %d messages are ever committed and done", w.sent)
			break
		}
	}
	time.Sleep(4 * time.Second) // for what must not happen
	for _, m := range w.members {
		m.stop()
	}
	for i, m := range w.members {
		select {
		case <-m.gone:
		case <-time.After(5 * time.Minute):
			t.Fatalf("member %d does not end", i)
		}
	}
	w.look()
	return w
}

func (w *simulation) step(e event) {
	var ups []*member
	for _, m := range w.members {
		if m.up() {
			ups = append(ups, m)
		}
	}
	var m *member
	if len(ups) > 0 {
		m = ups[e.Which%len(ups)]
	}
	switch {
	case e.What == "send":
		var msgs []schemas.Message
		for _, j := range w.Jobs[w.sent : w.sent+e.N] {
			msg := parttest.Change(fmt.Sprint(j.Key))
			msg.Body.(*pb.Change).Version = fmt.Sprint(w.sent + len(msgs))
			msgs = append(msgs, msg)
		}
		w.sent += e.N
		w.b.Send(msgs...)
	case e.What == "start":
		w.start()
	case e.What == "outputs":
		w.b.FailProduce([]schemas.Topic{schemas.DuplicationHigh, schemas.Dead}[e.Which%2], e.Fault, e.N)
	case e.What == "commits":
		w.b.FailCommit(schemas.RolePlanner, e.Fault, e.N)
	case e.What == "fence":
		w.b.Fence(schemas.RolePlanner)
	case m == nil:
	case e.What == "stop":
		m.out = true
		m.stop()
	case e.What == "crash":
		m.out = true
		m.link.cut()
		m.stop()
	case e.What == "cut":
		m.link.cut()
		time.AfterFunc(time.Duration(e.N)*time.Second, m.link.mend)
	}
}

// start adds a member.
func (w *simulation) start() {
	l, i := &link{dial: w.b.Config().Dialer, see: w.saw}, len(w.members)
	cfg := w.b.Config()
	cfg.Dialer, cfg.ServerSide, cfg.SessionTimeout = l.connect, w.ServerSide, 10*time.Second
	p, err := kafka.NewPool(cfg, kafka.PoolConfig{
		Role: schemas.RolePlanner, Topics: []schemas.Topic{schemas.Changes},
		Workers: w.Workers, Window: 64, DrainTimeout: w.Drain, Retry: retry.Policy{Attempts: 2, Wait: 100 * time.Millisecond},
	}, func(ctx context.Context, d *schemas.Delivery) ([]schemas.Message, error) { return w.handle(ctx, i, d) })
	must(w.t, err)
	ctx, stop := context.WithCancel(w.t.Context())
	m := &member{link: l, stop: stop, gone: make(chan struct{})}
	w.members = append(w.members, m)
	go func() {
		defer close(m.gone)
		if err := p.Run(ctx); err != nil && w.Calm {
			w.fault("member %d: Run: %v", i, err)
		}
	}()
}

// saw records a commit on its way to the broker.
func (w *simulation) saw(req *kmsg.OffsetCommitRequest, err error) {
	if err != nil {
		w.fault("a commit that cannot be read: %v", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, t := range req.Topics {
		for _, p := range t.Partitions {
			topic := schemas.Topic(strings.TrimPrefix(t.Topic, w.b.Config().Prefix))
			w.commits = append(w.commits, intent{topic, t.TopicID, p.Partition, p.Offset, time.Now()})
		}
	}
}

// look compares the committed offsets with the earlier ones, and returns the number of committed changes.
func (w *simulation) look() (n int64) {
	w.mu.Lock()
	known := len(w.commits) > 0 && time.Since(w.commits[0].at) > time.Second
	w.mu.Unlock()
	if !known { // nor is the group, maybe
		return 0
	}
	for _, topic := range []schemas.Topic{schemas.Changes, schemas.Again(schemas.RolePlanner)} {
		for part, at := range w.b.Committed(schemas.RolePlanner, topic) {
			name := fmt.Sprint(topic, "/", part)
			if at < w.last[name] {
				w.fault("%s: the commit went from %d back to %d", name, w.last[name], at)
			}
			w.last[name] = at
			if topic == schemas.Changes {
				n += at
			}
		}
	}
	return n
}

// handle is the handler of member i. It acts as the job says.
func (w *simulation) handle(ctx context.Context, i int, d *schemas.Delivery) ([]schemas.Message, error) {
	c := d.Body.(*pb.Change)
	v, _ := strconv.Atoi(c.GetVersion())
	j := w.Jobs[v]
	name := fmt.Sprintf("key %s at member %d", c.GetItem(), i)
	if w.Calm && !w.Delayer { // otherwise a returned message is on another partition, so maybe with another member
		name = "key " + c.GetItem()
	}
	w.mu.Lock()
	if w.busy[name]++; w.busy[name] > 1 {
		w.wrong = append(w.wrong, fmt.Sprintf("%s: message %d is handled beside another", name, v))
	}
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.busy[name]--
	}()
	sleep := retry.Sleep
	if j.IgnoresCancel {
		sleep = func(_ context.Context, d time.Duration) error { time.Sleep(d); return nil }
	}
	if j.Parks > 0 {
		if err := kafka.Park(ctx, func(ctx context.Context) error { return sleep(ctx, j.Parks) }); err != nil {
			return nil, err
		}
	}
	w.mu.Lock()
	if w.running[i]++; w.running[i] > w.Workers {
		w.wrong = append(w.wrong, fmt.Sprintf("member %d has %d running tasks and %d workers", i, w.running[i], w.Workers))
	}
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.running[i]--
	}()
	if err := sleep(ctx, j.Takes); err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	first := !w.tried[v]
	w.tried[v] = true
	switch {
	case j.End == jobInvalid:
		return nil, retry.Permanent(errors.New("invalid"))
	case j.End == jobOnce && first, j.End == jobStubborn && d.Attempt == 1:
		return nil, errors.New("try again")
	case j.End == jobLater && d.Waits == 0:
		return nil, retry.Wait(errors.New("not yet"), time.Now().Add(5*time.Second))
	}
	out := parttest.Command(c)
	out.Body.(*pb.DuplicationCommand).ChangeVersion = c.GetVersion()
	return []schemas.Message{out}, nil
}

// ended reports whether every message is an output or a dead letter, or waits for an absent delayer.
func (w *simulation) ended() bool {
	topics, at := []schemas.Topic{schemas.DuplicationHigh, schemas.Dead}, map[int]bool{}
	if !w.Delayer {
		topics = append(topics, schemas.Delay("2s"))
	}
	for _, topic := range topics {
		for _, p := range w.read(topic) {
			at[p.version] = true
		}
	}
	return len(at) == w.sent
}
