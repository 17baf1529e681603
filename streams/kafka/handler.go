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

// catchPanic is deferred around code of users: it sets *err to a permanent error if what has panicked.
func catchPanic(err *error, what string) {
	if v := recover(); v != nil {
		*err = retry.Permanent(fmt.Errorf("%s panicked: %v\n%s", what, v, debug.Stack()))
	}
}

// callHandler calls h. If it panics, nothing is published.
func callHandler(ctx context.Context, h Handler, d *schemas.Delivery) (out []schemas.Message, err error) {
	defer catchPanic(&err, "handler")
	return h(ctx, d)
}

// describeWork calls f, which is Describe or DescribeValue.
func describeWork[T any](f func(T) Work, b T) (w Work, err error) {
	defer catchPanic(&err, "description of the task")
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
