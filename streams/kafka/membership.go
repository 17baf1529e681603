package kafka

import (
	"errors"
	"fmt"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// errMembershipLost says that the group has removed this member, so its partitions may have had another owner since.
var errMembershipLost = errors.New("the group has removed this member: its partitions are lost")

// A membership makes a cooperative member give up its partitions when its group has removed it, as it does with a
// process that was frozen for longer than its session. If the member learns that from a heartbeat, the client
// reports all partitions as lost. If it learns it from a commit or during a rebalance, the client rejoins under a
// new member id and keeps its partitions, with positions that other members may have passed. Committing these
// would move offsets back. A membership compares the member ids, and makes the client start over. franz-go 1.22.2
// needs it: without it, TestRemovedMember finds commits that went back.
type membership struct {
	kgo.GroupBalancer
	id func() string // the client's member id; empty if it has none

	mu    sync.Mutex
	owner string // member id under which the partitions were assigned; empty if there are none
}

func newMembership() *membership { return &membership{GroupBalancer: kgo.CooperativeStickyBalancer()} }

// OnNewClient implements kgo.HookNewClient.
func (m *membership) OnNewClient(cl *kgo.Client) {
	m.owner = ""
	m.id = func() string {
		id, _ := cl.GroupMetadata()
		return id
	}
}

// JoinGroupMetadata claims the partitions that are still owned under the current member id.
func (m *membership) JoinGroupMetadata(topics []string, owned map[string][]int32, generation int32) []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(owned) == 0 {
		m.owner = ""
	} else if m.id() != m.owner {
		owned = nil
	}
	return m.GroupBalancer.JoinGroupMetadata(topics, owned, generation)
}

// ParseSyncAssignment returns the assigned partitions. On its error the client gives up all partitions and rejoins.
func (m *membership) ParseSyncAssignment(assignment []byte) (map[string][]int32, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	was, is := m.owner, m.id()
	m.owner = ""
	if was != "" && was != is {
		return nil, errMembershipLost
	}
	parts, err := m.GroupBalancer.ParseSyncAssignment(assignment)
	if err != nil {
		return nil, fmt.Errorf("parse assignment: %w", err)
	}
	m.owner = is
	return parts, nil
}

// membershipOf returns the membership of a client, or nil if it has none. Clients that give up all partitions
// before they rejoin need none. Neither do those with server-side assignment, in which a member keeps its id.
func membershipOf(cl *kgo.Client) *membership {
	balancers, _ := cl.OptValue(kgo.Balancers).([]kgo.GroupBalancer)
	for _, b := range balancers {
		if m, ok := b.(*membership); ok {
			return m
		}
	}
	return nil
}

// checkCommit refuses a commit under a member id other than that of the assignment. Such a commit is possible
// between the response with the new member id and the loss of the partitions.
func (m *membership) checkCommit(req *kmsg.OffsetCommitRequest) error {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if req.MemberID != m.owner {
		return errMembershipLost
	}
	return nil
}
