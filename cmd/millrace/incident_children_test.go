package main

import (
	"slices"
	"testing"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

func TestIncidentRows(t *testing.T) {
	const isOpen, isClosed = pb.IncidentState_INCIDENT_STATE_OPEN, pb.IncidentState_INCIDENT_STATE_CLOSED
	incident := func(id, item, parent string, state pb.IncidentState) *pb.Incident {
		i := &pb.Incident{Id: id, Account: "acme", Item: item, Parent: parent, State: state}
		if state == isClosed {
			i.Closed = timestamppb.Now()
		}
		return i
	}
	alone, mended := incident("alone", "x", "", isOpen), incident("mended", "c", "p", isClosed)
	a, b := incident("a", "a", "p", isOpen), incident("b", "b", "p", isOpen)
	for name, tt := range map[string]struct {
		incidents []*pb.Incident
		children  bool
		want      []string
		count     int // of the parent
	}{
		"an open parent stands for its children": {[]*pb.Incident{alone, a, incident("p", "", "", isOpen), b, mended}, false,
			[]string{"alone", "p"}, 2},
		"children too": {[]*pb.Incident{alone, a, incident("p", "", "", isOpen), b, mended}, true,
			[]string{"alone", "a", "p", "b", "mended"}, 2},
		"a closed parent stands for none": {[]*pb.Incident{a, incident("p", "", "", isClosed), b}, false,
			[]string{"a", "p", "b"}, 0},
		"the parent is not on record yet": {[]*pb.Incident{a, b}, false, []string{"a", "b"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, r := range incidentRows(tt.incidents, tt.children) {
				got = append(got, r.ID)
				if r.ID == "p" && r.Children != tt.count {
					t.Errorf("the parent has %d children, want %d", r.Children, tt.count)
				}
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}
