package main

import (
	"testing"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// Waiting for a repair ends when the incident is closed, and when the steward has accepted the
// approval and no repair is running.
func TestRepairEnded(t *testing.T) {
	const (
		waiting   = pb.IncidentState_INCIDENT_STATE_AWAITING_APPROVAL
		repairing = pb.IncidentState_INCIDENT_STATE_REPAIRING
		open      = pb.IncidentState_INCIDENT_STATE_OPEN
	)
	step := func(action, ref, detail string) *pb.IncidentStep {
		return &pb.IncidentStep{Action: action, Ref: ref, Detail: detail}
	}
	incident := func(id string, state pb.IncidentState, steps ...*pb.IncidentStep) *pb.Incident {
		return &pb.Incident{Id: id, State: state, Steps: append([]*pb.IncidentStep{step("opened", "c1", "")}, steps...)}
	}
	approved, ordered := step("approved", "a", "go on"), step("repair-ordered", "a", "2")
	for name, tt := range map[string]struct {
		before, now *pb.Incident
		over        bool
		open        string
	}{
		"closed":        {incident("i", waiting), nil, true, ""},
		"another one":   {incident("i", waiting), incident("j", waiting), true, ""},
		"not taken yet": {incident("i", waiting), incident("i", waiting), false, ""},
		"seen again":    {incident("i", open), incident("i", open, step("seen-again", "c2", "")), false, ""},
		"under way":     {incident("i", waiting), incident("i", repairing, approved, ordered), false, ""},
		"no good copy": {incident("i", waiting), incident("i", open, approved, step("no-good-copy", "a", "")), true,
			"no-good-copy"},
		"no digests": {incident("i", open), incident("i", open, approved, step("no-verified-digests", "a", "")),
			true, "no-verified-digests"},
		"failed": {incident("i", waiting),
			incident("i", open, approved, ordered,
				step("repair-failed", "r", "no space left")), true, "repair-failed: no space left"},
		"did not help": {incident("i", waiting),
			incident("i", waiting, approved, ordered, step("repaired", "r", ""),
				step("approval-asked", "c2", "")), true, "approval-asked"},
		"accepting": {incident("i", open), incident("i", repairing, step("accept-ordered", "a", "")), false, ""},
		"recorded": {incident("i", open), incident("i", repairing, step("accept-ordered", "a", ""),
			step("corrected", "c2", "change")), false, ""},
		"not accepted": {incident("i", open), incident("i", open, step("accept-ordered", "a", ""),
			step("seen-again", "c2", ""), step("accept-refused", "c2", "unread")), true, "accept-refused: unread"},
		"is ignored": {incident("i", repairing), incident("i", repairing), false, ""},
		"was ignored": {incident("i", repairing), incident("i", open, step("repair-failed", "r", "")), true,
			"repair-failed"},
		"repaired, unproved": {incident("i", waiting),
			incident("i", repairing, approved, ordered, step("repaired", "r", "")), false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			over, open := repairEnded(tt.now, tt.before, "a")
			if over != tt.over || open != tt.open {
				t.Errorf("got %t, %q, want %t, %q", over, open, tt.over, tt.open)
			}
		})
	}
}
