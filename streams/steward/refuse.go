package steward

import (
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// ActionRefuse refuses a list of deletes or of rewrites: the sources of what was on it are to be brought back. The
// subject of the incident is the list, and After is the time up to which the operator saw it, as RFC 3339.
const ActionRefuse = "refuse-list"

// refuseList hands the refusal of a list to the deleter of the destination, which orders the restores.
func (s *Steward) refuseList(a *pb.AdminAction) []schemas.Message {
	out := s.approveList(a)
	for _, m := range out {
		c := m.Body.(*pb.DeletionCommand)
		c.Id, c.Why = schemas.ID(ActionRefuse, a.GetId()), a.GetReason()
		c.RefuseList, c.ApproveList = c.GetApproveList(), ""
	}
	return out
}
