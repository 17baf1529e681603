package kafka

import (
	"context"
	"fmt"
	"runtime/debug"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/retry"
)

// A Handler handles one delivery and returns the messages to publish. It cannot publish or commit itself.
// Package retry defines the classes of its errors.
type Handler func(ctx context.Context, d *schemas.Delivery) ([]schemas.Message, error)

// callHandler calls h. A panic becomes a permanent error with its stack.
func callHandler(ctx context.Context, h Handler, d *schemas.Delivery) (out []schemas.Message, err error) {
	defer func() {
		if v := recover(); v != nil {
			out, err = nil, retry.Permanent(fmt.Errorf("handler panicked: %v\n%s", v, debug.Stack()))
		}
	}()
	return h(ctx, d)
}

// describeWork calls f, which is Describe or DescribeValue. A panic becomes a permanent error.
func describeWork[T any](f func(T) Work, b T) (w Work, err error) {
	defer func() {
		if v := recover(); v != nil {
			w, err = Work{}, retry.Permanent(fmt.Errorf("describe task: panic: %v\n%s", v, debug.Stack()))
		}
	}()
	return f(b), nil
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
