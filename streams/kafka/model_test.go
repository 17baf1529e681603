package kafka_test

import (
	"runtime/debug"
	"slices"
	"strconv"
	"strings"

	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"pgregory.net/rapid"

	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"

	"github.com/millrace/millrace/streams/kafka/kafkatest"
)

// How a job ends.
const (
	jobDone     = "done"
	jobOnce     = "once"     // it fails, and succeeds when retried in place
	jobStubborn = "stubborn" // it succeeds in its second delivery
	jobLater    = "later"    // it asks to wait
	jobInvalid  = "invalid"  // it becomes a dead letter
)

// A job is the behaviour of the handler for one message.
type job struct {
	Key           int
	Takes         time.Duration
	Parks         time.Duration // before that; 0: it does not
	End           string
	IgnoresCancel bool
}

// waits reports whether the message goes through a lane.
func (j job) waits() bool { return j.End == jobStubborn || j.End == jobLater }

// An event happens some time after the one before.
type event struct {
	After time.Duration
	What  string
	N     int // messages, failures, or seconds
	Which int // member or topic
	Fault kafkatest.Fault
}

// A scenario is everything that happens to a group of Pools.
type scenario struct {
	Partitions int32
	Workers    int
	Drain      time.Duration
	ServerSide bool // the brokers' group protocol
	Delayer    bool // a delayer returns the messages that wait
	Calm       bool // no process dies and no commit fails
	Jobs       []job
	Events     []event
}

func (p *scenario) count(what ...string) (n int) {
	for _, e := range p.Events {
		if slices.Contains(what, e.What) {
			n++
		}
	}
	return n
}

// mayKill reports whether a message may be taken for the cause of three deaths.
func (p *scenario) mayKill() bool {
	return !p.Calm && p.count("crash", "cut", "fence", "outputs", "commits") >= 3
}

func draw(t *rapid.T) *scenario {
	p := &scenario{
		Partitions: rapid.Int32Range(1, 3).Draw(t, "partitions"),
		Workers:    rapid.IntRange(1, 6).Draw(t, "workers"),
		Drain:      rapid.SampledFrom([]time.Duration{time.Second, 20 * time.Second}).Draw(t, "drain"),
		ServerSide: rapid.Bool().Draw(t, "server side"),
		Delayer:    rapid.Bool().Draw(t, "delayer"),
		Calm:       rapid.Bool().Draw(t, "calm"),
	}
	if !built("-tags", "synctests") {
		// Without the tag the client's locks are no channels: a member of a classic group that commits while it
		// waits for the others to join keeps fake time from advancing.
		p.ServerSide = true
	}
	keys := rapid.IntRange(1, 8).Draw(t, "keys")
	what := []string{"send", "send", "start", "stop", "outputs"}
	if !p.Calm {
		what = append(what, "crash", "crash", "cut", "commits", "refuse")
		if !p.ServerSide {
			what = append(what, "fence")
		}
	}
	passing := rapid.SampledFrom([]kafkatest.Fault{kafkatest.NotDone, kafkatest.DoneNotAcknowledged})
	p.Events = []event{{What: "start"}}
	for i := range rapid.IntRange(1, 8).Draw(t, "events") {
		e := event{What: "send", Which: rapid.IntRange(0, 5).Draw(t, "which"), N: rapid.IntRange(1, 3).Draw(t, "n")}
		e.After = rapid.SampledFrom([]time.Duration{0, 100 * time.Millisecond, time.Second, 4 * time.Second}).Draw(t, "after")
		if i > 0 {
			e.What = rapid.SampledFrom(what).Draw(t, "what")
		}
		switch e.What {
		case "send":
			e.N = rapid.SampledFrom([]int{1, 4, 8, 12, 70}).Draw(t, "messages") // with 48 in flight a partition is paused
			for range e.N {
				p.Jobs = append(p.Jobs, drawJob(t, keys))
			}
		case "outputs", "commits":
			e.Fault = passing.Draw(t, "fault")
		case "refuse":
			e.What, e.N, e.Fault = "outputs", 1, kafkatest.Refused
		case "cut":
			e.N = rapid.SampledFrom([]int{2, 15, 50}).Draw(t, "seconds")
		}
		p.Events = append(p.Events, e)
	}
	return p
}

func drawJob(t *rapid.T, keys int) job {
	j := job{
		Key: rapid.IntRange(0, keys-1).Draw(t, "key"),
		Takes: rapid.SampledFrom([]time.Duration{0, 10 * time.Millisecond, 300 * time.Millisecond, time.Second,
			3 * time.Second}).Draw(t, "takes"),
		End: rapid.SampledFrom([]string{jobDone, jobDone, jobDone, jobDone, jobDone, jobDone, jobOnce, jobStubborn,
			jobLater, jobInvalid}).Draw(t, "end"),
	}
	j.IgnoresCancel = rapid.IntRange(0, 4).Draw(t, "deaf") == 4
	j.Parks = rapid.SampledFrom([]time.Duration{0, 0, 0, 100 * time.Millisecond, 2 * time.Second}).Draw(t, "parks")
	return j
}

// Whatever messages do and whatever happens to the members of a group: no message is lost, nothing is
// committed before it is settled, and one message of a key runs at a time. While no process dies, messages of
// a key stay in order. None is repeated unless its partition moved while an earlier message was not done.
func TestPoolInvariants(t *testing.T) {
	need.Check(t, func(rt *rapid.T) {
		if built("-race", "true") && rapid.IntRange(0, 4).Draw(rt, "left out") < 4 {
			return // a scenario takes twenty times as long
		}
		p := draw(rt)
		var wrong []string
		synctest.Test(t, func(t *testing.T) {
			w := p.run(t)
			w.names()
			w.audit()
			wrong = w.wrong
		})
		if len(wrong) > 0 {
			for _, s := range wrong[:min(len(wrong), 10)] {
				rt.Log(s)
			}
			rt.Fatalf("%d promises are broken", len(wrong))
		}
	})
}

// A topicMessage is a message in a partition that Pools read, or its result in another topic.
type topicMessage struct {
	topic   schemas.Topic
	part    int32
	offset  int64
	at      time.Time
	version int // of jobs
}

// read returns all messages of a topic, by partition.
func (w *simulation) read(topic schemas.Topic) (all []topicMessage) {
	of := schemas.Changes // raw topics hold changes
	if topic == schemas.DuplicationHigh {
		of = topic
	}
	for _, r := range w.b.Read(topic) {
		body, err := schemas.Decode(of, r.Headers, r.Value)
		must(w.t, err)
		var v string
		switch body := body.(type) {
		case *pb.Change:
			v = body.GetVersion()
		case *pb.DuplicationCommand:
			v = body.GetChangeVersion()
		}
		n, err := strconv.Atoi(v)
		must(w.t, err)
		all = append(all, topicMessage{topic, r.Partition, r.Offset, r.Timestamp, n})
	}
	return all
}

// audit compares the topics and the history of commits with the promises.
func (w *simulation) audit() {
	inputs := w.read(schemas.Changes)
	outputs := w.read(schemas.DuplicationHigh)
	settled := map[int][]topicMessage{} // results of each message, in any order
	for _, places := range [][]topicMessage{outputs, w.read(schemas.Dead), w.read(schemas.Delay("2s")),
		w.read(schemas.Delay("8s"))} {
		for _, at := range places {
			settled[at.version] = append(settled[at.version], at)
		}
	}
	for v, j := range w.Jobs[:w.sent] {
		var o, d, l int
		for _, at := range settled[v] {
			switch at.topic {
			case schemas.DuplicationHigh:
				o++
			case schemas.Dead:
				d++
			default:
				l++
			}
		}
		switch {
		case o+d == 0 && (w.Delayer || l == 0):
			w.fault("message %d (%s) is neither output nor dead letter, nor does it wait", v, j.End)
		case j.End == jobInvalid && o > 0, j.End != jobInvalid && d > 0 && !w.mayKill(), !j.waits() && l > 0:
			w.fault("message %d (%s) became %d outputs, %d dead letters, and waited %d times", v, j.End, o, d, l)
		}
	}
	w.auditCommits(append(inputs, w.read(schemas.Again(schemas.RolePlanner))...), settled)
	if w.Calm {
		w.auditOrder(outputs)
		w.auditRepeats(inputs, settled)
	}
}

// auditCommits: messages were settled before a member committed them.
func (w *simulation) auditCommits(inputs []topicMessage, settled map[int][]topicMessage) {
	if len(w.commits) == 0 {
		w.fault("no commit was seen")
	}
	for _, c := range w.commits {
		for _, in := range inputs {
			if in.topic != c.topic || in.part != c.part || in.offset >= c.offset {
				continue
			}
			if !slices.ContainsFunc(settled[in.version],
				func(s topicMessage) bool { return !s.at.Before(in.at) && !s.at.After(c.at) }) {
				w.fault("%s/%d was committed up to %d when message %d, at %d, was not settled", c.topic, c.part, c.offset,
					in.version, in.offset)
			}
		}
	}
}

// auditOrder: the messages of a key became outputs in order, except those that had to wait.
func (w *simulation) auditOrder(outputs []topicMessage) {
	last, seen := map[int]int{}, map[int]bool{}
	for _, out := range outputs {
		v, j := out.version, w.Jobs[out.version]
		if j.waits() || seen[v] {
			continue
		}
		if v < last[j.Key] {
			w.fault("key %d: the output of message %d is behind that of %d", j.Key, v, last[j.Key])
		}
		seen[v], last[j.Key] = true, v
	}
}

// auditRepeats: a done message is not repeated, unless it could not be committed when its partition moved
// because an earlier one was not done. If outputs fail, an append may be unknown by then, and nothing is
// checked.
func (w *simulation) auditRepeats(inputs []topicMessage, settled map[int][]topicMessage) {
	stays := w.count("start", "stop") == 1
	if !stays && w.count("outputs") > 0 {
		return
	}
	first := func(v int) (at time.Time) {
		for _, s := range settled[v] {
			if at.IsZero() || s.at.Before(at) {
				at = s.at
			}
		}
		return at
	}
	for _, in := range inputs {
		j, n := w.Jobs[in.version], 0
		for _, s := range settled[in.version] {
			if lane := s.topic != schemas.DuplicationHigh && s.topic != schemas.Dead; !lane || !w.Delayer {
				n++
			}
		}
		if n == 1 {
			continue
		}
		held := slices.ContainsFunc(inputs, func(before topicMessage) bool {
			return before.part == in.part && before.offset < in.offset && first(before.version).After(first(in.version))
		})
		if stays || !j.waits() && !held {
			w.fault("message %d (%s) was settled %d times", in.version, j.End, n)
		}
	}
}

// names sets the topic names in the commits.
func (w *simulation) names() {
	cfg := w.b.Config()
	cl, err := kgo.NewClient(kgo.SeedBrokers(cfg.Brokers...), kgo.Dialer(cfg.Dialer), kgo.DisableClientMetrics())
	must(w.t, err)
	defer cl.Close()
	topics, err := kadm.NewClient(cl).ListTopics(w.t.Context())
	must(w.t, err)
	for name, detail := range topics {
		for i := range w.commits {
			if c := &w.commits[i]; c.topic == "" && c.id == detail.ID {
				c.topic = schemas.Topic(strings.TrimPrefix(name, cfg.Prefix))
			}
		}
	}
}

// built reports whether the test was built with a flag, such as -race=true or -tags=synctests.
func built(flag, value string) bool {
	info, _ := debug.ReadBuildInfo()
	return slices.ContainsFunc(info.Settings, func(s debug.BuildSetting) bool {
		return s.Key == flag && slices.Contains(strings.Split(s.Value, ","), value)
	})
}
