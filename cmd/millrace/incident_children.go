package main

import (
	"fmt"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// incidentRows returns the rows of incidents. It leaves out the children of parents that are open and among them,
// unless they are wanted, and counts the open ones of each parent.
func incidentRows(incidents []*pb.Incident, children bool) []incidentRow {
	open := func(i *pb.Incident) bool { return i.GetState() != pb.IncidentState_INCIDENT_STATE_CLOSED }
	parents := map[string]bool{} // ids of those that are open
	for _, i := range incidents {
		if i.GetItem() == "" && open(i) {
			parents[i.GetId()] = true
		}
	}
	count, rows := map[string]int{}, make([]incidentRow, 0, len(incidents))
	for _, i := range incidents {
		child := parents[i.GetParent()]
		if child && open(i) {
			count[i.GetParent()]++
		}
		if !child || children {
			rows = append(rows, incidentOf(i))
		}
	}
	for n := range rows {
		if parents[rows[n].ID] && rows[n].Closed == nil {
			rows[n].Children = count[rows[n].ID]
		}
	}
	return rows
}

// childrenOf returns the number of the children of an incident in words; empty if there are none.
func childrenOf(r incidentRow) string {
	if r.Children == 0 {
		return ""
	}
	return fmt.Sprintf(" (%d incidents, see --children)", r.Children)
}
