package schemas

import (
	"fmt"
	"reflect"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// Validate says what is wrong with a message: a field that must be there and is not,
// or one that is out of range. Encode and Decode do the same. Its error is a *DecodeError.
func Validate(b Body) error {
	m, ok := b.(vtMessage)
	if !ok {
		return &DecodeError{"", "", fmt.Sprintf("%T is no message of millrace", b)}
	}
	if f := missing(m); f != nil {
		return f.in("")
	}
	raw, err := m.MarshalVT()
	if err != nil {
		return &DecodeError{"", "", err.Error()}
	}
	for _, c := range codings {
		if c.body != reflect.TypeOf(b) {
			continue
		}
		if f := c.shape.check(raw); f != nil {
			return f.in("")
		}
		break
	}
	return nil
}

// A need is one field that must be there.
type need struct {
	field string
	there bool
}

func text(field, value string) need { return need{field, value != ""} }

func when(field string, t *timestamppb.Timestamp) need { return need{field, t != nil} }

func lacks(id string, needs ...need) *fault {
	if id == "" {
		return &fault{"id", "is missing"}
	}
	for _, n := range needs {
		if !n.there {
			return &fault{n.field, "is missing"}
		}
	}
	return nil
}

// missing finds the first field that a message must have and has not.
func missing(b Body) *fault {
	switch b := b.(type) {
	case *pb.Change:
		return missingInChange(b)
	case *pb.DuplicationCommand:
		return lacks(b.GetId(), text("account", b.GetAccount()), text("space", b.GetSpace()),
			text("source_store", b.GetSourceStore()), text("destination_store", b.GetDestinationStore()),
			need{"reason", b.GetReason() != 0})
	case *pb.DeletionCommand:
		return lacks(b.GetId(), text("account", b.GetAccount()), text("space", b.GetSpace()),
			text("source_store", b.GetSourceStore()), text("destination_store", b.GetDestinationStore()))
	case *pb.DuplicationResult:
		return lacks(b.GetId(), text("command", b.GetCommand()), text("account", b.GetAccount()),
			need{"outcome", b.GetOutcome() != 0}, when("finished", b.GetFinished()))
	case *pb.FixityTask:
		return lacks(b.GetId(), text("account", b.GetAccount()), text("store", b.GetStore()), text("space", b.GetSpace()),
			text("item", b.GetItem()), need{"reason", b.GetReason() != 0})
	case *pb.FixityResult:
		return lacks(b.GetId(), text("account", b.GetAccount()), text("store", b.GetStore()), text("space", b.GetSpace()),
			text("item", b.GetItem()), need{"verdict", b.GetVerdict() != 0},
			when("started", b.GetStarted()), when("finished", b.GetFinished()))
	case *pb.Incident:
		return lacks(b.GetId(), text("kind", b.GetKind()), need{"state", b.GetState() != 0})
	case *pb.Report:
		return lacks(b.GetId(), text("kind", b.GetKind()))
	case *pb.Job:
		return lacks(b.GetId(), text("name", b.GetName()))
	case *pb.Policy:
		return lacks(b.GetId(), text("account", b.GetAccount()), need{"document", b.GetRemoved() || b.GetDocument() != ""})
	case *pb.Control:
		return lacks(b.GetId())
	case *pb.Checkpoint:
		return lacks(b.GetId(), text("sweep", b.GetSweep()))
	case *pb.AdminAction:
		return lacks(b.GetId(), text("who", b.GetWho()), text("action", b.GetAction()), when("time", b.GetTime()))
	}
	return &fault{reason: fmt.Sprintf("%T is no message of millrace", b)}
}

func missingInChange(c *pb.Change) *fault {
	switch {
	case c.GetId() == "":
		return &fault{"id", "is missing"}
	case c.GetAccount() == "":
		return &fault{"account", "is missing"}
	case c.GetStore() == "":
		return &fault{"store", "is missing"}
	case c.GetSpace() == "":
		return &fault{"space", "is missing"}
	case c.GetOp() == 0:
		return &fault{"op", "is missing"}
	case c.GetTime() == nil:
		return &fault{"time", "is missing"}
	}
	switch ofSpace := OfSpace(c.GetOp()); {
	case ofSpace && c.GetItem() != "":
		return &fault{"item", "is set, but " + c.GetOp().String() + " is about a space"}
	case !ofSpace && c.GetItem() == "":
		return &fault{"item", "is missing"}
	}
	return nil
}

// OfSpace reports whether op happens to a space and not to an item.
func OfSpace(op pb.Op) bool {
	switch op {
	case pb.Op_OP_CREATE_SPACE, pb.Op_OP_DELETE_SPACE, pb.Op_OP_SET_ACL, pb.Op_OP_SET_SPACE_PROPERTIES:
		return true
	}
	return false
}
