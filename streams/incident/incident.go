// Package incident opens and closes the incidents that are not about an item: a table that lacks rows, a missing space,
// an unreadable record.
//
// The role that observes such a problem publishes its incident. Key and id are functions of the subject, so that all
// processes that observe the same problem open the same incident, and any of them can close it. Opening an incident
// that is open publishes nothing new. The steward ignores these incidents; it manages those of copies.
package incident

import (
	"cmp"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// The kinds of incidents, and the fields of Subject that each one uses.
const (
	RecordsBehind = "records-behind" // Name: a table of ClickHouse
	SpaceMissing  = "space-missing"  // Account, Store, Space
	// StoreUnavailable: a store does not answer. Account, Store
	StoreUnavailable = "store-unavailable"
	// ListingIncomplete: a listing lacks too much of a space. Account, Store, Space
	ListingIncomplete = "listing-incomplete"
	RecordUnreadable  = "record-unreadable" // Name: topic/partition@offset
	BatchUnreadable   = "batch-unreadable"  // Name: reader, blank, topic/partition@offset
	PolicyRefused     = "policy-refused"    // Account
	PolicyDiverged    = "policy-diverged"   // Account
	DeletesHeld       = "deletes-held"      // Account, Store, Space of the copies that are not deleted; Name: a list
	RewritesHeld      = "rewrites-held"     // Account, Store, Space of the copies that are not replaced; Name: a list
	RepairsHeld       = "repairs-held"      // Account, Store, Space of the copies that are not repaired; Name: a list
	// SweepBehind: rounds of a sweep fail again and again, or take longer than their period. Name: the sweep
	SweepBehind = "sweep-behind"
	// GroupIncomplete: chunked items lack chunks, or differ from their documents. Account, Store, Space
	GroupIncomplete = "group-incomplete"
	// AllocationExceeded: an account holds more bytes than its allocation. Account
	AllocationExceeded = "allocation-exceeded"
)

// noAccount is the account on the wire of incidents without an account.
const noAccount = "-"

// A Subject identifies the problem of an incident without an item. Fields that do not apply are empty.
type Subject struct{ Account, Store, Space, Kind, Name string }

// Incident returns an incident about s without state, times and steps.
func (s Subject) Incident() *pb.Incident {
	i := &pb.Incident{
		Account: cmp.Or(s.Account, noAccount), Store: s.Store, Space: s.Space, Kind: s.Kind, Subject: s.Name,
	}
	i.Id = schemas.ID("incident", schemas.IncidentKey(i))
	return i
}

// Key returns the key of the incident about s.
func (s Subject) Key() string { return schemas.IncidentKey(s.Incident()) }
