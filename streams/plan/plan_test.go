package plan

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/retry"
)

var when = timestamppb.New(time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC))

// change returns a valid Change of store 1, as f alters it.
func change(f func(*pb.Change)) *pb.Change {
	c := &pb.Change{
		Op: pb.Op_OP_ADD, Account: "acme", Store: "1", Space: "photos", Item: "a/b.jpg",
		Version: "v7", Size: 7, Digests: map[string]string{"md5": "00ff"}, Provenance: pb.Provenance_PROVENANCE_VERIFIED,
		Time: when, Origin: pb.Origin_ORIGIN_CLIENT,
	}
	if f != nil {
		f(c)
	}
	c.Id = schemas.ChangeID(c)
	return c
}

func pairs(p ...policy.Pair) policy.Rules { return policy.Rules{Revision: 4, Pairs: p} }

var (
	p12   = policy.Pair{Source: "1", Destination: "2"}
	p13   = policy.Pair{Source: "1", Destination: "3"}
	p23   = policy.Pair{Source: "2", Destination: "3"}
	both  = pairs(p12, p13)
	chain = pairs(p12, p23)
)

func TestPlan(t *testing.T) {
	op := func(o pb.Op) func(*pb.Change) { return func(c *pb.Change) { c.Op = o } }
	ofSpace := func(o pb.Op) func(*pb.Change) { return func(c *pb.Change) { c.Op, c.Item = o, "" } }
	origin := func(store string, o pb.Origin, approved string) func(*pb.Change) {
		return func(c *pb.Change) { c.Store, c.Origin, c.Approved = store, o, approved }
	}
	id := schemas.ID("completed")
	completes := func(id string) func(*pb.Change) {
		return func(c *pb.Change) {
			c.Origin, c.Evidence = pb.Origin_ORIGIN_FIXITY, map[string]string{"row": "9", schemas.Completes: id}
			c.Provenance = pb.Provenance_PROVENANCE_VERIFIED
		}
	}
	tests := map[string]struct {
		rules    policy.Rules
		change   *pb.Change
		to       []string
		ifAbsent bool
	}{
		"item added":            {both, change(nil), []string{"2", "3"}, false},
		"item updated":          {both, change(op(pb.Op_OP_UPDATE)), []string{"2", "3"}, false},
		"item copied":           {both, change(op(pb.Op_OP_COPY)), []string{"2", "3"}, false},
		"properties set":        {both, change(op(pb.Op_OP_SET_PROPERTIES)), []string{"2", "3"}, false},
		"item deleted":          {both, change(op(pb.Op_OP_DELETE)), []string{"2", "3"}, false},
		"space created":         {both, change(ofSpace(pb.Op_OP_CREATE_SPACE)), []string{"2", "3"}, false},
		"space deleted":         {both, change(ofSpace(pb.Op_OP_DELETE_SPACE)), []string{"2", "3"}, false},
		"ACL set":               {both, change(ofSpace(pb.Op_OP_SET_ACL)), []string{"2", "3"}, false},
		"space properties set":  {both, change(ofSpace(pb.Op_OP_SET_SPACE_PROPERTIES)), []string{"2", "3"}, false},
		"read":                  {both, change(op(pb.Op_OP_READ)), nil, false},
		"no rules":              {policy.Rules{}, change(nil), nil, false},
		"store without a pair":  {both, change(origin("3", pb.Origin_ORIGIN_CLIENT, "")), nil, false},
		"client at a secondary": {chain, change(origin("2", pb.Origin_ORIGIN_CLIENT, "")), []string{"3"}, false},
		"duplication, no chain": {both, change(origin("2", pb.Origin_ORIGIN_DUPLICATION, "")), nil, false},
		"duplication, chain":    {chain, change(origin("2", pb.Origin_ORIGIN_DUPLICATION, "")), []string{"3"}, false},
		"chain's end":           {chain, change(origin("3", pb.Origin_ORIGIN_DUPLICATION, "")), nil, false},
		"repair, chain":         {chain, change(origin("2", pb.Origin_ORIGIN_REPAIR, "")), []string{"3"}, false},
		"repair of the primary": {chain, change(origin("1", pb.Origin_ORIGIN_REPAIR, "")), nil, false},
		"import":                {both, change(origin("1", pb.Origin_ORIGIN_IMPORT, "")), []string{"2", "3"}, false},
		"notification":          {both, change(origin("1", pb.Origin_ORIGIN_NOTIFICATION, "")), []string{"2", "3"}, false},
		"sweep":                 {both, change(origin("1", pb.Origin_ORIGIN_SWEEP, "")), []string{"2", "3"}, true},
		"sweep, approved":       {both, change(origin("1", pb.Origin_ORIGIN_SWEEP, "me")), []string{"2", "3"}, false},
		"sweep, destination":    {both, change(origin("2", pb.Origin_ORIGIN_SWEEP, "")), nil, false},
		"sweep, chain":          {chain, change(origin("2", pb.Origin_ORIGIN_SWEEP, "")), nil, false},
		"sweep, chain's start":  {chain, change(origin("1", pb.Origin_ORIGIN_SWEEP, "")), []string{"2"}, true},
		"sweep, chain's end":    {chain, change(origin("3", pb.Origin_ORIGIN_SWEEP, "")), nil, false},
		"sweep, chain, approved": {chain, change(origin("2", pb.Origin_ORIGIN_SWEEP, "me")), []string{"3"},
			false},
		"fixity": {both, change(origin("1", pb.Origin_ORIGIN_FIXITY, "")),
			[]string{"2", "3"}, true},
		"fixity, completes":                {both, change(completes(id)), nil, false},
		"fixity, completes, chain's start": {chain, change(completes(id)), nil, false},
		"fixity, completes no id":          {both, change(completes("c1")), []string{"2", "3"}, true},
		"fixity, approved": {both, change(origin("1", pb.Origin_ORIGIN_FIXITY, "me")),
			[]string{"2", "3"}, false},
		"fixity, approved by force": {both, change(func(c *pb.Change) {
			origin("1", pb.Origin_ORIGIN_FIXITY, "me")(c)
			c.Evidence = map[string]string{"forced": "true"}
		}), []string{"2", "3"}, true},
		"size unknown": {both, change(func(c *pb.Change) {
			c.Size, c.SizeUnknown = 0, true
		}), []string{"2", "3"}, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c := tt.change
			got := Plan(tt.rules, c)
			if len(got) != len(tt.to) {
				t.Fatalf("got %d commands %v, want %v", len(got), got, tt.to)
			}
			for i, to := range tt.to {
				want := &pb.DuplicationCommand{
					Id: schemas.ID("command", c.GetId(), to), Account: "acme", Space: "photos", Item: c.GetItem(),
					SourceStore: c.GetStore(), DestinationStore: to,
					Reason: pb.DuplicationReason_DUPLICATION_REASON_CHANGE,
					Cause:  c.GetId(), CauseOp: c.GetOp(), ChangeTime: when, ChangeVersion: "v7",
					Size: c.GetSize(), SizeUnknown: c.GetSizeUnknown(),
					Digests: map[string]string{"md5": "00ff"}, Provenance: pb.Provenance_PROVENANCE_VERIFIED,
					IfAbsent: tt.ifAbsent, PolicyRevision: 4, Approved: c.GetApproved(),
				}
				if !proto.Equal(got[i], want) {
					t.Errorf("got  %v\nwant %v", got[i], want)
				}
			}
		})
	}
}

type rules map[string]policy.Rules

func (r rules) Rules(account, space string) (policy.Rules, bool) {
	got, ok := r[account+"/"+space]
	return got, ok
}

func planner(t *testing.T) *Planner {
	t.Helper()
	low := pairs(p12)
	low.Low = true
	p, err := New(Config{Large: 1000}, rules{"acme/photos": pairs(p12), "acme/slow": low})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestHandleClasses(t *testing.T) {
	tests := map[string]struct {
		change   *pb.Change
		topic    schemas.Topic
		priority pb.Priority
	}{
		"small": {change(func(c *pb.Change) { c.Size = 999 }), schemas.DuplicationHigh, pb.Priority_PRIORITY_HIGH},
		"large": {change(func(c *pb.Change) { c.Size = 1000 }), schemas.DuplicationLarge, pb.Priority_PRIORITY_LARGE},
		"size unknown": {change(func(c *pb.Change) {
			c.Size, c.SizeUnknown = 0, true
		}), schemas.DuplicationHigh, pb.Priority_PRIORITY_HIGH},
		"low": {change(func(c *pb.Change) { c.Space = "slow" }), schemas.DuplicationLow, pb.Priority_PRIORITY_LOW},
		"large of low": {change(func(c *pb.Change) {
			c.Space, c.Size = "slow", 1000
		}), schemas.DuplicationLarge, pb.Priority_PRIORITY_LARGE},
		"large delete": {change(func(c *pb.Change) {
			c.Op, c.Size = pb.Op_OP_DELETE, 1000
		}), schemas.DuplicationHigh, pb.Priority_PRIORITY_HIGH},
		"no policy": {change(func(c *pb.Change) { c.Account = "other" }), "", 0},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			d := &schemas.Delivery{Topic: schemas.Changes, Body: tt.change, Timestamp: when.AsTime().Add(time.Second)}
			out, err := planner(t).Handle(context.Background(), d)
			if err != nil {
				t.Fatal(err)
			}
			if tt.topic == "" {
				if len(out) != 0 {
					t.Errorf("got %v, want nothing", out)
				}
				return
			}
			if len(out) != 1 || out[0].Topic != tt.topic {
				t.Fatalf("got %v, want one command to %s", out, tt.topic)
			}
			c := out[0].Body.(*pb.DuplicationCommand)
			if c.GetPriority() != tt.priority || !c.GetTime().AsTime().Equal(d.Timestamp) {
				t.Errorf("got priority %v, time %v", c.GetPriority(), c.GetTime().AsTime())
			}
		})
	}
}

func TestHandleTwiceIsOnce(t *testing.T) {
	d := &schemas.Delivery{Topic: schemas.Changes, Body: change(nil), Timestamp: when.AsTime()}
	p := planner(t)
	a, errA := p.Handle(context.Background(), d)
	b, errB := p.Handle(context.Background(), d)
	if errA != nil || errB != nil || len(a) != 1 || len(b) != 1 || !proto.Equal(a[0].Body, b[0].Body) {
		t.Errorf("got %v, %v\nand %v, %v", a, errA, b, errB)
	}
}

// A reader refuses no Change for its time: commands carry the time that orders it.
func TestHandleOrders(t *testing.T) {
	kafka := time.Date(2026, 5, 4, 3, 2, 1, 7e6, time.UTC)
	for name, tt := range map[string]struct{ reported, effective time.Time }{
		"now":     {reported: kafka.Add(-time.Second)},
		"of 1965": {reported: time.Date(1965, 1, 1, 0, 0, 0, 0, time.UTC)},
		"ahead":   {kafka.Add(time.Millisecond), kafka},
		"of 2200": {time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC), kafka},
	} {
		t.Run(name, func(t *testing.T) {
			c := change(func(c *pb.Change) { c.Time = timestamppb.New(tt.reported) })
			out, err := planner(t).Handle(t.Context(), &schemas.Delivery{Body: c, Timestamp: kafka})
			if err != nil || len(out) != 1 {
				t.Fatalf("got %v, %v", out, err)
			}
			got := out[0].Body.(*pb.DuplicationCommand)
			if !got.GetChangeTime().AsTime().Equal(tt.reported) || (got.GetEffective() == nil) != tt.effective.IsZero() ||
				got.GetEffective() != nil && !got.GetEffective().AsTime().Equal(tt.effective) {
				t.Errorf("reported %v, effective %v", got.GetChangeTime().AsTime(), got.GetEffective())
			}
		})
	}
}

func TestHandleRefuses(t *testing.T) {
	out, err := planner(t).Handle(t.Context(), &schemas.Delivery{Body: &pb.FixityTask{}})
	if out != nil || !retry.IsPermanent(err) || !strings.Contains(err.Error(), "not a Change") {
		t.Errorf("got %v, %v", out, err)
	}
}

func TestNewRefuses(t *testing.T) {
	if _, err := New(Config{Large: -1}, rules{}); err == nil {
		t.Error("a negative threshold is accepted")
	}
	if _, err := New(Config{}, nil); err == nil {
		t.Error("no rules are accepted")
	}
}
