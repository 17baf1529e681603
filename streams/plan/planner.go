package plan

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/retry"
)

// Config configures a Planner.
type Config struct {
	// Large is the size in bytes from which an item has the class large; 0: 5 GiB.
	Large int64
}

// Rules returns the rules in force for a space; false if the account has no policy.
type Rules interface {
	Rules(account, space string) (policy.Rules, bool)
}

// A Planner handles the topic changes.
type Planner struct {
	large int64
	rules Rules
}

// New returns a Planner.
func New(c Config, rules Rules) (*Planner, error) {
	if rules == nil {
		return nil, errors.New("plan: rules are missing")
	}
	if c.Large < 0 {
		return nil, fmt.Errorf("plan: large threshold of %d bytes is negative", c.Large)
	}
	if c.Large == 0 {
		c.Large = 5 << 30
	}
	return &Planner{c.Large, rules}, nil
}

// Handle returns the commands that follow from the Change in d.
func (p *Planner) Handle(_ context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
	c, ok := d.Body.(*pb.Change)
	if !ok {
		return nil, retry.Permanent(fmt.Errorf("plan: message is a %T, not a Change", d.Body))
	}
	rules, ok := p.rules.Rules(c.GetAccount(), c.GetSpace())
	if !ok {
		return nil, nil
	}
	var out []schemas.Message
	for _, command := range Plan(rules, c) {
		size := c.GetSize()
		if c.GetOp() == pb.Op_OP_DELETE {
			size = 0 // no bytes are read
		}
		var topic schemas.Topic
		of := rules
		of.Low = rules.Low || isSlow(c.GetOrigin())
		command.Priority, topic = of.Class(size, p.large)
		command.Time = timestamppb.New(d.Timestamp)
		if at := schemas.Earlier(c.GetTime(), d.Timestamp); at != c.GetTime() {
			command.Effective = at
		}
		out = append(out, schemas.Message{Topic: topic, Body: command})
	}
	return out, nil
}

// isSlow reports whether the changes of an origin come in large numbers: their commands must not delay those of
// clients.
func isSlow(o pb.Origin) bool { return o == pb.Origin_ORIGIN_SWEEP || o == pb.Origin_ORIGIN_IMPORT }
