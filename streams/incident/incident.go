// Package incident opens and closes the incidents that are about no item: a table that lacks rows, a space that is
// gone, a record that cannot be read.
//
// The role that observes such a problem publishes its incident. The key and the id are functions of what the incident
// is about, so all processes that observe one problem open one incident, and any of them closes it. An incident is
// published once while it is open. The steward leaves these incidents alone: its own are those of copies.
package incident

import (
	"cmp"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// The kinds, and what their subjects name.
const (
	RecordsBehind    = "records-behind"    // Name: a table of ClickHouse
	SpaceMissing     = "space-missing"     // Account, Store, Space
	RecordUnreadable = "record-unreadable" // Name: topic/partition@offset
	BatchUnreadable  = "batch-unreadable"  // Name: its reader, a blank, topic/partition@offset
	PolicyRefused    = "policy-refused"    // Account
	PolicyDiverged   = "policy-diverged"   // Account
	DeletesHeld      = "deletes-held"      // Account, Store, Space: of the copies that are not deleted
)

// noAccount stands in for the account of incidents that are of none.
const noAccount = "-"

// A Subject is what an incident without an item is about. Account is empty if it is of no account, and so is Name if
// account, store and space say enough.
type Subject struct{ Account, Store, Space, Kind, Name string }

// Incident returns an incident about s without a state, times and steps.
func (s Subject) Incident() *pb.Incident {
	i := &pb.Incident{
		Account: cmp.Or(s.Account, noAccount), Store: s.Store, Space: s.Space, Kind: s.Kind, Subject: s.Name,
	}
	i.Id = schemas.ID("incident", schemas.IncidentKey(i))
	return i
}

// Key is the key of the incident about s.
func (s Subject) Key() string { return schemas.IncidentKey(s.Incident()) }
