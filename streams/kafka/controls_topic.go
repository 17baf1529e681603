package kafka

import (
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka/client"
)

// NewControls returns Controls that follow the topic control while Run runs.
func NewControls(cfg client.Config) (*client.Controls, error) {
	c := &client.Controls{}
	t, err := NewTable(cfg, schemas.Controls, func(key []byte, d *schemas.Delivery) error {
		ctl, _ := d.Body.(*pb.Control) // nil for a tombstone
		return c.Apply(key, ctl)
	})
	if err != nil {
		return nil, err
	}
	c.Follow(t)
	return c, nil
}
