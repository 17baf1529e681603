package app

import (
	"context"
	"log/slog"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/streams/kafka/deadletter"
)

// OpenDeadLetters returns access to the dead letters. It needs only Kafka. The caller closes it.
func OpenDeadLetters(ctx context.Context, cfg *config.Config, log *slog.Logger) (*deadletter.Letters, error) {
	k, err := kafkaConfig(ctx, cfg, log)
	if err != nil {
		return nil, err
	}
	return deadletter.New(k)
}
