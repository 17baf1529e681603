package ingest

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/ingest/hint"
)

// An accepted is the response with status 202 to a request with events.
type accepted struct {
	Accepted int        `json:"accepted"` // events that Kafka has acknowledged
	Events   []received `json:"events"`
}

// A received is the result of one event.
type received struct {
	Index int    `json:"index"`
	Given string `json:"given,omitempty"` // id that the sender has given
	// ID is the id of the Change, a function of its content; empty if the store will be looked at.
	ID string `json:"id,omitempty"`
	// Status is written; looked-at, if the event is about a copy that millrace writes; or repeated, if the event before it
	// of the same copy, in the same request, is equal.
	Status string `json:"status"`
}

// changes handles a request with events.
func (h *Handler) changes(r request) (any, *problem) {
	events, p := h.parse(r)
	if p != nil {
		h.metrics.events(wayHTTP, outcomeRefused, 1)
		return nil, p
	}
	var (
		faults []Fault // the first
		n      int     // number of all faults
		status = http.StatusUnprocessableEntity
		msgs   []schemas.Message
		out    = accepted{Events: []received{}}
		last   = map[schemas.Copy]*pb.Change{}
	)
	for i := range events {
		e := &events[i]
		if e.change != nil {
			if forbidden := h.complete(e, r.sender); forbidden {
				status = http.StatusForbidden
			}
		}
		faults = append(faults, e.faults[:min(len(e.faults), maxFaults-len(faults))]...)
		if n += e.count; n > 0 {
			continue
		}
		rec := received{Index: e.index, Given: e.id, ID: e.change.GetId(), Status: outcomeWritten}
		if e.claim {
			rec.ID, rec.Status = "", "looked-at"
		}
		if at := schemas.CopyOf(e.change); proto.Equal(last[at], e.change) {
			rec.Status = "repeated"
		} else {
			last[at], msgs = e.change, append(msgs, e.message(r.sender))
		}
		out.Events = append(out.Events, rec)
	}
	if n > 0 {
		h.metrics.events(wayHTTP, outcomeRefused, len(events))
		listed := ""
		if n > len(faults) {
			listed = fmt.Sprintf(", of which the first %d are listed", len(faults))
		}
		p := refusal(status, "event", "%d faults in %d events%s: nothing was written", n, len(events), listed)
		if p.Faults = faults; status == http.StatusForbidden {
			p.Type = "urn:millrace:problem:account"
		}
		return nil, p
	}
	if p := h.publish(r, wayHTTP, msgs); p != nil {
		return nil, p
	}
	out.Accepted = len(msgs)
	return out, nil
}

// complete validates the Change of an event and completes it for publishing. It adds faults to e. forbidden reports
// that the sender has no right to the account or to the store.
func (h *Handler) complete(e *event, s sender) (forbidden bool) {
	c := e.change
	if c.GetAccount() == "" {
		c.Account = s.account
	}
	switch {
	case s.account != "" && c.GetAccount() != s.account:
		forbidden = true
		e.fault("account", "is %q: the token is for %q", c.GetAccount(), s.account)
	case c.GetStore() != "" && !s.may(c.GetStore()):
		forbidden = true
		e.fault("store", "is %q: the token is for %q", c.GetStore(), s.stores)
	}
	reserved(e)
	contradictions(e)
	if c.GetOrigin() == 0 {
		c.Origin = pb.Origin_ORIGIN_CLIENT
	}
	c.Provenance = pb.Provenance_PROVENANCE_UNSPECIFIED
	if len(c.GetDigests()) > 0 {
		c.Provenance = pb.Provenance_PROVENANCE_CLAIMED
	}
	if c.GetUser() == "" {
		c.User = s.name
	}
	if a := c.GetAgent(); a != "" {
		if c.Evidence == nil {
			c.Evidence = map[string]string{}
		}
		c.Evidence["agent"] = a
	}
	if c.Agent = wayHTTP; s.name != "" {
		c.Agent += "/" + s.name
	}
	c.Id = schemas.ChangeID(c)
	if schemas.Validate(c) != nil {
		missing(e)
		outOfRange(e)
	}
	switch account, store := c.GetAccount(), c.GetStore(); {
	case forbidden || account == "" || store == "":
	case !h.stores.HasStore(account, store):
		e.fault("store", "account %q has no store %q", account, store)
	case c.GetOp() == pb.Op_OP_READ || !h.stores.IsDestination(account, c.GetSpace(), store):
	case schemas.IsSpaceOp(c.GetOp()):
		e.fault("store", "is %q, a destination of the space, whose copy only millrace changes", store)
	default:
		e.claim = true
	}
	if e.count == 0 {
		m := schemas.Message{Topic: schemas.Changes, Body: c, Source: e.source}
		if _, err := schemas.Encode(m); errors.Is(err, schemas.ErrTooLarge) {
			e.fault("", "%v", err)
		} else if err != nil {
			e.decodeFault(err)
		}
	}
	return forbidden
}

// reserved adds a fault for each field that only millrace may set.
func reserved(e *event) {
	c := e.change
	switch c.GetOrigin() {
	case pb.Origin_ORIGIN_UNSPECIFIED, pb.Origin_ORIGIN_CLIENT, pb.Origin_ORIGIN_IMPORT, pb.Origin_ORIGIN_NOTIFICATION:
	case pb.Origin_ORIGIN_DUPLICATION, pb.Origin_ORIGIN_REPAIR, pb.Origin_ORIGIN_FIXITY, pb.Origin_ORIGIN_SWEEP:
		e.fault("origin", "only millrace may set %s", c.GetOrigin())
	}
	for _, own := range []struct {
		field string
		set   bool
	}{{"approved", c.GetApproved() != ""}, {"source_time", c.GetSourceTime() != nil},
		{"source_version", c.GetSourceVersion() != ""}, {"evidence.completes", c.GetEvidence()[schemas.Completes] != ""}} {
		if own.set {
			e.fault(own.field, "only millrace may set it")
		}
	}
}

// contradictions adds a fault for each field that has a value and is reported as unknown.
func contradictions(e *event) {
	c := e.change
	if c.GetSizeUnknown() && c.GetSize() != 0 {
		e.fault("size", "is %d, and size_unknown is set", c.GetSize())
	}
	if !c.GetPropertiesUnknown() {
		return
	}
	if len(c.GetProperties()) > 0 {
		e.fault("properties", "are set, and properties_unknown too")
	}
	if c.GetMediaType() != "" {
		e.fault("media_type", "is set, and properties_unknown too")
	}
	if c.GetOp() == pb.Op_OP_SET_PROPERTIES {
		e.fault("properties_unknown", "is set, but %s reports properties", c.GetOp())
	}
}

// missing adds a fault for each required field that is missing.
func missing(e *event) {
	c := e.change
	lacks := func(field string, there bool) {
		if !there {
			e.fault(field, "is missing")
		}
	}
	lacks("account", c.GetAccount() != "")
	lacks("store", c.GetStore() != "")
	lacks("space", c.GetSpace() != "")
	lacks("op", c.GetOp() != 0)
	lacks("time", c.GetTime() != nil)
	switch ofSpace := schemas.IsSpaceOp(c.GetOp()); {
	case ofSpace && c.GetItem() != "":
		e.fault("item", "is set, but %s is about a space", c.GetOp())
	case !ofSpace && c.GetOp() != 0:
		lacks("item", c.GetItem() != "")
	}
}

// outOfRange adds a fault for each invalid field. Validate reports only the first fault of a message, so outOfRange
// validates each field in a message of its own.
func outOfRange(e *event) {
	e.change.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		one := &pb.Change{
			Id: e.change.GetId(), Op: pb.Op_OP_ADD, Account: "a", Store: "s", Space: "s", Item: "i",
			Time: &timestamppb.Timestamp{},
		}
		if f.Name() == "op" && schemas.IsSpaceOp(e.change.GetOp()) {
			one.Item = ""
		}
		one.ProtoReflect().Set(f, v)
		if err := schemas.Validate(one); err != nil {
			e.decodeFault(err)
		}
		return true
	})
}

// decodeFault adds a fault for an error of package schemas.
func (e *event) decodeFault(err error) {
	if d := (*schemas.DecodeError)(nil); errors.As(err, &d) {
		e.fault(d.Field, "%s", d.Reason)
		return
	}
	e.fault("", "%v", err)
}

// fault adds a fault. Faults over maxFaults are only counted.
func (e *event) fault(field, format string, args ...any) {
	if e.count++; len(e.faults) == maxFaults {
		return
	}
	reason := fmt.Sprintf(format, args...)
	if len(reason) > maxReason {
		reason = strings.ToValidUTF8(reason[:maxReason], "") + "..."
	}
	e.faults = append(e.faults, Fault{Index: e.index, ID: e.id, Field: field, Reason: reason})
}

// maxFaults is the largest number of faults in a response, and maxReason the largest length of a reason in bytes.
const (
	maxFaults = 100
	maxReason = 300
)

// message returns the message to publish.
func (e *event) message(s sender) schemas.Message {
	if e.claim {
		return hint.Claim(s.name, e.change)
	}
	return schemas.Message{Topic: schemas.Changes, Body: e.change, Source: e.source}
}
