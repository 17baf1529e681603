package kafka

import (
	"errors"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// Tests which partitions a member claims when it joins, whether it accepts its assignment, and whether it may
// commit then.
func TestMembership(t *testing.T) {
	assignment := (&kmsg.ConsumerMemberAssignment{
		Topics: []kmsg.ConsumerMemberAssignmentTopic{{Topic: "changes", Partitions: []int32{0}}},
	}).AppendTo(nil)
	owned := map[string][]int32{"changes": {0}}
	type join struct {
		id    string // member id when it joins; it gets another if the group has removed it
		got   string // member id after the join
		owned map[string][]int32

		claims bool
		taken  error
		commit error // result of a commit under got
	}
	for name, joins := range map[string][]join{
		"the first time":          {{"", "a", nil, false, nil, nil}},
		"again, with what it has": {{"", "a", nil, false, nil, nil}, {"a", "a", owned, true, nil, nil}},
		"forgotten, and it did not know": {{"", "a", nil, false, nil, nil},
			{"a", "b", owned, true, errMembershipLost, errMembershipLost}, {"b", "b", nil, false, nil, nil}},
		"removed by the group, and notified": {{"", "a", nil, false, nil, nil},
			{"", "b", owned, false, errMembershipLost, errMembershipLost}, {"b", "b", nil, false, nil, nil}},
		"forgotten, and all was let go": {{"", "a", nil, false, nil, nil}, {"a", "b", nil, false, nil, nil}},
		"forgotten twice": {{"", "a", nil, false, nil, nil},
			{"", "b", owned, false, errMembershipLost, errMembershipLost}, {"", "c", nil, false, nil, nil}},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMembership()
			for i, j := range joins {
				m.id = func() string { return j.id }
				var meta kmsg.ConsumerMemberMetadata
				must(t, meta.ReadFrom(m.JoinGroupMetadata([]string{"changes"}, j.owned, 1)))
				if claims := len(meta.OwnedPartitions) > 0; claims != j.claims {
					t.Errorf("join %d: it claims what it had: %t, want %t", i, claims, j.claims)
				}
				m.id = func() string { return j.got }
				parts, err := m.ParseSyncAssignment(assignment)
				if !errors.Is(err, j.taken) || err == nil && len(parts["changes"]) != 1 {
					t.Errorf("join %d: it takes %v (%v), want %v", i, parts, err, j.taken)
				}
				if err := m.checkCommit(&kmsg.OffsetCommitRequest{MemberID: j.got}); !errors.Is(err, j.commit) {
					t.Errorf("join %d: it may commit: %v, want %v", i, err, j.commit)
				}
			}
			m.owner = ""
			if _, err := m.ParseSyncAssignment([]byte{1}); err == nil || errors.Is(err, errMembershipLost) {
				t.Errorf("an assignment that cannot be read: %v", err)
			}
		})
	}
}
