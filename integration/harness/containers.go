package harness

import (
	"context"
	"testing"
)

func containers(_ context.Context, _ testing.TB, _ Options) (*Cluster, string, error) {
	return nil, "", absent("TODO")
}
