package plan

import (
	"context"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/retry"
)

// Limits of the fields of a change.
const (
	maxItem   = 1024 // bytes
	maxFuture = 5 * time.Minute
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

// Handle returns the commands that follow from the Change in d. If a field of the Change is out of range, it returns a
// permanent error that names the field.
func (p *Planner) Handle(_ context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
	c, ok := d.Body.(*pb.Change)
	if !ok {
		return nil, retry.Permanent(fmt.Errorf("plan: message is a %T, not a Change", d.Body))
	}
	if err := check(c, time.Now()); err != nil {
		return nil, retry.Permanent(fmt.Errorf("plan change %q: %w", c.GetId(), err))
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
		out = append(out, schemas.Message{Topic: topic, Body: command})
	}
	return out, nil
}

// isSlow reports whether the changes of an origin come in large numbers: their commands must not delay those of
// clients.
func isSlow(o pb.Origin) bool { return o == pb.Origin_ORIGIN_SWEEP || o == pb.Origin_ORIGIN_IMPORT }

// check returns an error that names the first field of c that is out of range at the time now.
func check(c *pb.Change, now time.Time) error {
	switch {
	case !isID(c.GetId()):
		return errors.New("field id is not 32 lower-case hex digits")
	case c.GetOp() <= pb.Op_OP_UNSPECIFIED || c.GetOp() > pb.Op_OP_READ:
		return fmt.Errorf("field op is %d, which is none", c.GetOp())
	case c.GetAccount() == "":
		return errors.New("field account is empty")
	case c.GetStore() == "":
		return errors.New("field store is empty")
	case c.GetSpace() == "":
		return errors.New("field space is empty")
	case len(c.GetItem()) > maxItem:
		return fmt.Errorf("field item has %d bytes, more than %d", len(c.GetItem()), maxItem)
	case !utf8.ValidString(c.GetItem()):
		return errors.New("field item is not UTF-8")
	case ofItem(c.GetOp()) && c.GetItem() == "":
		return fmt.Errorf("field item is empty in a change of op %v", c.GetOp())
	case ofSpace(c.GetOp()) && c.GetItem() != "":
		return fmt.Errorf("field item is set in a change of op %v", c.GetOp())
	case c.GetSize() < 0:
		return fmt.Errorf("field size is %d, which is negative", c.GetSize())
	case c.GetTime() == nil:
		return errors.New("field time is missing")
	}
	if err := c.GetTime().CheckValid(); err != nil {
		return fmt.Errorf("field time: %w", err)
	}
	if at := c.GetTime().AsTime(); at.After(now.Add(maxFuture)) {
		return fmt.Errorf("field time is %s, more than %s in the future", at.Format(time.RFC3339Nano), maxFuture)
	}
	return nil
}

func isID(id string) bool {
	for _, r := range id {
		if (r < '0' || r > '9') && (r < 'a' || r > 'f') {
			return false
		}
	}
	return len(id) == 32
}

// ofItem reports ops that are always about an item, ofSpace those that never are. ACLs and reads may be of either.
func ofItem(op pb.Op) bool {
	switch op {
	case pb.Op_OP_ADD, pb.Op_OP_UPDATE, pb.Op_OP_COPY, pb.Op_OP_DELETE, pb.Op_OP_SET_PROPERTIES:
		return true
	}
	return false
}

func ofSpace(op pb.Op) bool {
	switch op {
	case pb.Op_OP_CREATE_SPACE, pb.Op_OP_DELETE_SPACE, pb.Op_OP_SET_SPACE_PROPERTIES:
		return true
	}
	return false
}
