package policy

import (
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// Class returns the class and the topic of commands to copy an item of size bytes. Items of at least large bytes are of
// class large; with large 0, none are.
func (r Rules) Class(size, large int64) (pb.Priority, schemas.Topic) {
	switch {
	case large > 0 && size >= large:
		return pb.Priority_PRIORITY_LARGE, schemas.DuplicationLarge
	case r.Low:
		return pb.Priority_PRIORITY_LOW, schemas.DuplicationLow
	}
	return pb.Priority_PRIORITY_HIGH, schemas.DuplicationHigh
}
