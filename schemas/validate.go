package schemas

import (
	"fmt"
	"reflect"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// Validate checks that b has all required fields and that its values are in range. Encode and Decode make the same
// checks. Its error is a *DecodeError.
func Validate(b Body) error {
	m, ok := b.(vtMessage)
	if !ok {
		return &DecodeError{"", "", fmt.Sprintf("%T is not a message of millrace", b)}
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
		if f := c.validator.check(raw); f != nil {
			return f.in("")
		}
		break
	}
	return nil
}

// A required is a field that a message must have.
type required struct {
	field   string
	present bool
}

func text(field, value string) required { return required{field, value != ""} }

func timestamp(field string, t *timestamppb.Timestamp) required { return required{field, t != nil} }

func requireFields(id string, fields ...required) *fault {
	if id == "" {
		return &fault{"id", "is missing"}
	}
	for _, f := range fields {
		if !f.present {
			return &fault{f.field, "is missing"}
		}
	}
	return nil
}

// missing returns a fault for the first required field that b lacks; nil if b has them all.
func missing(b Body) *fault {
	switch b := b.(type) {
	case *pb.Change:
		return missingInChange(b)
	case *pb.DuplicationCommand:
		f := requireFields(b.GetId(), text("account", b.GetAccount()), text("space", b.GetSpace()),
			text("source_store", b.GetSourceStore()), text("destination_store", b.GetDestinationStore()),
			required{"reason", b.GetReason() != 0})
		if f == nil {
			f = missingInRestore(b)
		}
		return f
	case *pb.DeletionCommand:
		source := required{"source_store", b.GetSourceStore() != "" || b.GetApproveList() != "" ||
			b.GetRefuseList() != "" || b.GetIncident() != "" ||
			b.GetReason() == pb.DuplicationReason_DUPLICATION_REASON_MANUAL}
		return requireFields(b.GetId(), text("account", b.GetAccount()), text("space", b.GetSpace()), source,
			text("destination_store", b.GetDestinationStore()))
	case *pb.DuplicationResult:
		return requireFields(b.GetId(), text("command", b.GetCommand()), text("account", b.GetAccount()),
			required{"outcome", b.GetOutcome() != 0}, timestamp("finished", b.GetFinished()))
	case *pb.FixityTask:
		return requireFields(b.GetId(), text("account", b.GetAccount()), text("store", b.GetStore()),
			text("space", b.GetSpace()), text("item", b.GetItem()), required{"reason", b.GetReason() != 0})
	case *pb.FixityResult:
		return requireFields(b.GetId(), text("account", b.GetAccount()), text("store", b.GetStore()),
			text("space", b.GetSpace()), text("item", b.GetItem()), required{"verdict", b.GetVerdict() != 0},
			timestamp("started", b.GetStarted()), timestamp("finished", b.GetFinished()))
	case *pb.Incident:
		return requireFields(b.GetId(), text("kind", b.GetKind()), required{"state", b.GetState() != 0})
	case *pb.Report:
		return requireFields(b.GetId(), text("kind", b.GetKind()))
	case *pb.Job:
		return requireFields(b.GetId(), text("name", b.GetName()))
	case *pb.Policy:
		return requireFields(b.GetId(), text("account", b.GetAccount()),
			required{"document", b.GetRemoved() || b.GetDocument() != ""})
	case *pb.Account:
		return requireFields(b.GetId(), text("account", b.GetAccount()),
			required{"document", b.GetRemoved() || b.GetDocument() != ""})
	case *pb.Control:
		return requireFields(b.GetId())
	case *pb.Checkpoint:
		return requireFields(b.GetId(), text("sweep", b.GetSweep()))
	case *pb.AdminAction:
		return requireFields(b.GetId(), text("who", b.GetWho()), text("action", b.GetAction()),
			timestamp("time", b.GetTime()))
	}
	return &fault{reason: fmt.Sprintf("%T is not a message of millrace", b)}
}

// missingInRestore checks the restore order of a command: only commands of that reason have one.
func missingInRestore(c *pb.DuplicationCommand) *fault {
	order := c.GetRestore()
	switch ordered := c.GetReason() == pb.DuplicationReason_DUPLICATION_REASON_RESTORE; {
	case !ordered && order != nil:
		return &fault{"restore", "is set, but the reason is " + c.GetReason().String()}
	case !ordered:
		return nil
	case order == nil:
		return &fault{"restore", "is missing"}
	case c.GetItem() == "":
		return &fault{"item", "is missing"}
	case c.GetApproved() == "":
		return &fault{"approved", "is missing"}
	case len(order.GetDigests()) == 0:
		return &fault{"restore.digests", "is missing"}
	case len(order.GetSources()) == 0:
		return &fault{"restore.sources", "is missing"}
	}
	for _, s := range order.GetSources() {
		if s.GetStore() == "" {
			return &fault{"restore.sources.store", "is missing"}
		}
	}
	return nil
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
	switch ofSpace := IsSpaceOp(c.GetOp()); {
	case ofSpace && c.GetItem() != "":
		return &fault{"item", "is set, but " + c.GetOp().String() + " is about a space"}
	case !ofSpace && c.GetItem() == "":
		return &fault{"item", "is missing"}
	}
	return nil
}

// IsSpaceOp reports whether op applies to a space, not to an item.
func IsSpaceOp(op pb.Op) bool {
	switch op {
	case pb.Op_OP_CREATE_SPACE, pb.Op_OP_DELETE_SPACE, pb.Op_OP_SET_ACL, pb.Op_OP_SET_SPACE_PROPERTIES:
		return true
	}
	return false
}
