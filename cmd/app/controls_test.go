package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
	"github.com/millrace/millrace/streams/sweep"
)

func testControls(t *testing.T, b *kafkatest.Broker) *Controls {
	t.Helper()
	p, err := kafka.NewProducer(b.Config(), "test")
	must(t, err)
	t.Cleanup(p.Close)
	return &Controls{kafka: b.Config(), producer: p, cfg: &config.Config{Accounts: []config.Account{
		{ID: "acme", Stores: []config.Store{{ID: "disk"}, {ID: "tape"}}}, {ID: "umbrella"},
	}}}
}

func by(who string) Actor { return Actor{Who: who, Reason: who + "'s reason", From: "cli"} }

// inWords returns entries as text.
func inWords(in []*pb.Control) (s []string) {
	for _, c := range in {
		s = append(s, fmt.Sprintf("%s: %s, by %s: %s", ScopeOf(c), describeControl(c), c.GetBy(), c.GetReason()))
	}
	return s
}

// The pause and the workers of a role are in one message: neither change reverts the other or its
// author. Every change is recorded with the state before it.
func TestControls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{})
		c := testControls(t, b)
		role, store := Scope{Role: "copier"}, Scope{Account: "acme", Store: "tape"}
		until := time.Now().Add(time.Hour)
		var was []bool
		for _, do := range []func() error{
			func() error { return c.SetWorkers(t.Context(), "copier", 3, by("ann")) },
			func() error { return c.Pause(t.Context(), role, until, by("bob")) },
			func() error { return c.SetWorkers(t.Context(), "copier", 4, by("cem")) },
			func() error { return c.Pause(t.Context(), store, time.Time{}, by("dan")) },
		} {
			must(t, do())
		}
		check := func(want ...string) {
			t.Helper()
			in, err := c.Active(t.Context())
			if got := inWords(in); err != nil || !slices.Equal(got, want) {
				t.Errorf("in force, %v:\ngot  %q\nwant %q", err, got, want)
			}
		}
		tape := "store acme/tape: paused, by dan: dan's reason"
		check(tape, "role copier: paused until 2000-01-01T01:00:00Z, 4 workers, by bob: bob's reason")
		time.Sleep(time.Hour)
		check(tape, "role copier: running, 4 workers, by bob: bob's reason")
		for _, p := range []Scope{role, store} {
			w, err := c.Resume(t.Context(), p, by("eve"))
			must(t, err)
			was = append(was, w)
		}
		if !slices.Equal(was, []bool{false, true}) {
			t.Errorf("was paused: %v", was)
		}
		check("role copier: running, 4 workers, by bob: bob's reason")

		var got []string
		for _, body := range b.Bodies(schemas.Admin) {
			a := body.(*pb.AdminAction)
			got = append(got, strings.Join([]string{a.GetWho(), a.GetAction(), a.GetTarget(), a.GetAccount(), a.GetStore(),
				a.GetReason(), a.GetFrom(), a.GetBefore(), a.GetAfter()}, "|"))
		}
		slices.Sort(got) // they are spread over partitions
		want := []string{
			"ann|workers|role copier|||ann's reason|cli|running|running, 3 workers",
			"bob|pause|role copier|||bob's reason|cli|running, 3 workers|paused until 2000-01-01T01:00:00Z, 3 workers",
			"cem|workers|role copier|||cem's reason|cli|paused until 2000-01-01T01:00:00Z, " +
				"3 workers|paused until 2000-01-01T01:00:00Z, 4 workers",
			"dan|pause|store acme/tape|acme|tape|dan's reason|cli|running|paused",
			"eve|resume|store acme/tape|acme|tape|eve's reason|cli|paused|running",
		}
		if !slices.Equal(got, want) {
			t.Errorf("actions\ngot  %q\nwant %q", got, want)
		}
	})
}

func TestControlsRefuse(t *testing.T) {
	for name, tt := range map[string]struct {
		piece Scope
		want  string // empty: it is paused
	}{
		"everything":          {Scope{}, ""},
		"state, of the sink":  {Scope{Role: schemas.RoleState}, ""},
		"a pair":              {Scope{Role: "checker", Account: "acme", Store: "disk"}, ""},
		"an unknown role":     {Scope{Role: "copper"}, `there is no role "copper"`},
		"an unknown account":  {Scope{Account: "acne"}, `there is no account "acne"`},
		"another's store":     {Scope{Account: "umbrella", Store: "disk"}, `there is no store "umbrella/disk"`},
		"a pair without role": {Scope{Role: "copper", Account: "acme"}, `there is no role "copper"`},
		"an unknown sweep":    {Scope{Sweep: "audit"}, `there is no sweep or job "audit"`},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{})
				c := testControls(t, b)
				err := c.Pause(t.Context(), tt.piece, time.Time{}, by("ann"))
				refused := errors.As(err, new(*UnknownNameError))
				if tt.want == "" && err != nil || tt.want != "" && (!refused || err.Error() != tt.want) {
					t.Errorf("Pause = %v, want %q", err, tt.want)
				}
				n := 1
				if tt.want != "" {
					n = 0
				}
				if got := len(b.Read(schemas.Controls)); got != n {
					t.Errorf("%d messages, want %d", got, n)
				}
			})
		})
	}
}

// The error of a failed publish reports an unknown result; repeating the call is safe.
func TestControlsPublishFails(t *testing.T) {
	for name, tt := range map[string]struct {
		topic   schemas.Topic
		fault   kafkatest.Fault
		fails   bool
		inForce bool
		actions int // on record when it has been done
	}{
		"refused":                  {schemas.Controls, kafkatest.Refused, true, false, 2},
		"not done":                 {schemas.Controls, kafkatest.NotDone, false, true, 1},
		"done but lost":            {schemas.Controls, kafkatest.DoneNotAcknowledged, false, true, 1},
		"the action is refused":    {schemas.Admin, kafkatest.Refused, true, true, 1},
		"the action done but lost": {schemas.Admin, kafkatest.DoneNotAcknowledged, false, true, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{})
				c := testControls(t, b)
				b.FailProduce(tt.topic, tt.fault, 1)
				pause := func() error { return c.Pause(t.Context(), Scope{}, time.Time{}, by("ann")) }
				err := pause()
				if (err != nil) != tt.fails || err != nil &&
					!strings.Contains(err.Error(), "the result is unknown; repeating it is safe") {
					t.Errorf("Pause = %v", err)
				}
				in, err := c.Active(t.Context())
				if err != nil || (len(in) == 1) != tt.inForce {
					t.Errorf("in force %q, %v", inWords(in), err)
				}
				if tt.fails {
					must(t, pause())
				}
				in, err = c.Active(t.Context())
				if actions := len(b.Read(schemas.Admin)); err != nil || len(in) != 1 || actions != tt.actions {
					t.Errorf("in force %q, %v, and %d actions, want one and %d", inWords(in), err, actions, tt.actions)
				}
			})
		})
	}
}

// A round whose sweep, store or account is paused starts no further page, records no failure, and
// resumes later, in a process that follows the controls and in one that does not.
func TestRoundPaused(t *testing.T) {
	for name, p := range map[string]Scope{
		"its sweep":   {Sweep: "fixity"},
		"its role":    {Role: schemas.RoleSweeper},
		"everything":  {},
		"its account": {Account: "acme"},
		"its store":   {Account: "acme", Store: "disk"},
	} {
		for _, runs := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, in a process that runs: %v", name, runs), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { testRoundPaused(t, p, runs) })
			})
		}
	}
}

func testRoundPaused(t *testing.T, p Scope, runs bool) {
	b := kafkatest.New(t, kafkatest.Options{})
	c := testControls(t, b)
	k, err := kafka.NewControls(b.Config())
	must(t, err)
	a := &App{cfg: c.cfg, kafka: b.Config(), controls: k, producer: c.producer, log: slog.New(slog.DiscardHandler),
		stores: &Stores{}}
	a.stores.current.Store(&storeSet{byKey: map[string]store{schemas.Key("acme", "disk"): {}}})
	if runs {
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- k.Run(ctx) }()
		defer func() { stop(); <-done }()
		<-k.Ready()
	}
	var begun []string // the copies after which pages begin
	due := dueFunc(func(q schemas.DueQuery) []schemas.DueCopy {
		if begun = append(begun, q.After.Item); len(begun) == 2 {
			if err := c.Pause(t.Context(), p, time.Time{}, by("ann")); err != nil {
				t.Error(err)
			}
			time.Sleep(10 * time.Second) // longer than a fetch waits that began before
		}
		if len(begun) >= 4 {
			return nil
		}
		item := string(byte('a' + len(begun)))
		return []schemas.DueCopy{{KnownCopy: schemas.KnownCopy{
			Copy: schemas.Copy{Account: "acme", Store: "disk", Space: "photos", Item: item}}}}
	})
	start := time.Now()
	round := func() (result sweep.Result, err error) {
		rounds := sweep.FixityRounds{Due: due, Page: 1,
			Lag: noLag, LagHigh: noLag,
			Checked: func(context.Context, schemas.Copy) (bool, error) { return true, nil },
			Results: threeResults{}, Queue: threeResults{}, Now: time.Now}
		m, err := rounds.Split(sweep.Request{Account: "acme", Store: "disk", Space: "photos", Begun: start})
		if err != nil {
			return result, err
		}
		err = a.inCommand(t.Context(), false, func(ctx context.Context, w sweeping) error {
			m.Blocked = a.sweepBlocked(w.controls, sweep.FixitySweep, StoreName{"acme", "disk"})
			results, err := w.Rounds(ctx, []sweep.Split{m})
			if len(results) > 0 {
				result = results[0]
			}
			return err
		})
		return result, err
	}
	for range 2 { // the second one does not begin at all
		if _, err := round(); !errors.Is(err, sweep.ErrPaused) {
			t.Errorf("round = %v, want %v", err, sweep.ErrPaused)
		}
	}
	if got := len(b.Read(schemas.Jobs)); got != 0 {
		t.Errorf("%d jobs on record, want none", got)
	}
	if _, err := c.Resume(t.Context(), p, by("ann")); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second)
	s, err := round()
	if want := []string{"", "b", "c", "d"}; err != nil || !slices.Equal(begun, want) || s.Emitted != 3 {
		t.Errorf("round = %v, emitted %d; pages from %q, want 4 from %q", err, s.Emitted, begun, want)
	}
}

// threeResults is a sweep.Results, and the sweep.Queue, of three copies that have passed.
type threeResults struct{}

func (threeResults) Progress(context.Context, sweep.RoundQuery) (sweep.Progress, error) {
	return sweep.Progress{Final: 3}, nil
}

func (threeResults) Counts(context.Context, sweep.RoundQuery) (c sweep.RoundCounts, ok bool, err error) {
	c.Final, c.Counts = 3, map[string]int64{"pass": 3}
	return c, true, nil
}

func (threeResults) End(context.Context) (sweep.Offsets, error) {
	return sweep.Offsets{schemas.FixityLow: {0: 3}}, nil
}

func (threeResults) Handled(context.Context, sweep.Offsets) (bool, error) { return true, nil }

// A dueFunc is the due copies of a sweep.
type dueFunc func(schemas.DueQuery) []schemas.DueCopy

func (f dueFunc) Due(
	_ context.Context, q schemas.DueQuery,
) (copies []schemas.DueCopy, end schemas.DueCursor, err error) {
	if copies = f(q); len(copies) > 0 {
		end.Item = copies[len(copies)-1].Item
	}
	return copies, end, nil
}
