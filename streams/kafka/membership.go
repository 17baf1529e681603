package kafka

import (
	"errors"
	"fmt"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// errForgotten says that what a client owned was another's since.
var errMembershipLost = errors.New("the group had forgotten this member: what it owned is lost")

// A membership has a cooperative member lose its partitions when its group has forgotten it, which happens to a
// process that was frozen for longer than its session. Where such a member finds out by a heartbeat, the client
// says that all is lost. Where it finds out by a commit, or while the group shares out partitions anew, the client
// joins under a new id and keeps what it had, with positions that others have left behind: they would be
// committed. A membership sees the ids, and has the client start over. franz-go 1.22.2 still does so: without a
// membership TestForgottenMember finds commits that went back.
type membership struct {
	kgo.GroupBalancer
	id func() string // the client's, in its group; empty: it has none

	mu    sync.Mutex
	owner string // the id under which partitions are ours; empty: none are
}

func newMembership() *membership { return &membership{GroupBalancer: kgo.CooperativeStickyBalancer()} }

// OnNewClient is a hook of the client.
func (m *membership) OnNewClient(cl *kgo.Client) {
	m.owner = ""
	m.id = func() string {
		id, _ := cl.GroupMetadata()
		return id
	}
}

// JoinGroupMetadata claims what is ours.
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

// ParseSyncAssignment returns what is ours from now on. With the error the client lets go of all it had, and
// joins again.
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
		return nil, fmt.Errorf("read what the group assigned: %w", err)
	}
	m.owner = is
	return parts, nil
}

// membershipOf returns that of a client, or nil if it needs none: who lets go of everything before it joins again
// keeps nothing, and the brokers that share out partitions themselves know their members by one id.
func membershipOf(cl *kgo.Client) *membership {
	balancers, _ := cl.OptValue(kgo.Balancers).([]kgo.GroupBalancer)
	for _, b := range balancers {
		if m, ok := b.(*membership); ok {
			return m
		}
	}
	return nil
}

// check refuses a commit under another id than that under which partitions are ours: between the answer that
// gave the client a new one and the loss, it could be made.
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
