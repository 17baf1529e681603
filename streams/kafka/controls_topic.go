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

// WorkOf returns the account and the stores of b. It can be used as Describe in a PoolConfig.
func WorkOf(b schemas.Body) (w Work) {
	if m, ok := b.(interface{ GetAccount() string }); ok {
		w.Account = m.GetAccount()
	}
	if m, ok := b.(interface{ GetStore() string }); ok {
		w.Stores[0] = m.GetStore()
	}
	if m, ok := b.(interface{ GetDestinationStore() string }); ok {
		w.Stores[0] = m.GetDestinationStore()
	}
	if m, ok := b.(interface{ GetSourceStore() string }); ok {
		w.Stores[1] = m.GetSourceStore()
	}
	return w
}
