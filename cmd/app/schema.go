package app

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/streams/retry"
)

// Bounds of asking ClickHouse whether its tables are up to date.
const (
	schemaLimit = 10 * time.Second
	schemaWait  = 500 * time.Millisecond // at first, when it did not answer
	schemaMost  = 15 * time.Second
)

// A schema finds out whether ClickHouse has the tables that this program needs. That it lacks some
// ends the process; that it does not answer is noted, and it is asked again.
type schema struct {
	check, pingDB func(context.Context) error // of the database
	log           *slog.Logger

	mu  sync.Mutex // guards err
	err error      // of the newest check, or nil once it has the tables
}

func newSchema(db *clickhouse.DB, roles []schemas.Role, log *slog.Logger) *schema {
	check := func(ctx context.Context) error {
		err := db.Check(ctx)
		if err == nil && slices.Contains(roles, schemas.RoleSink) {
			err = db.CheckWrites(ctx)
		}
		return err
	}
	return &schema{check: check, pingDB: db.Ping, log: log}
}

// look asks once. Its error is one that a person must mend.
func (s *schema) checkOnce(run context.Context) error {
	ctx, cancel := context.WithTimeout(run, schemaLimit)
	defer cancel()
	err := s.check(ctx)
	if err = asPrecondition(err); errors.Is(err, ErrPrecondition) {
		return err
	}
	if run.Err() == nil {
		s.setErr(err)
	}
	return nil
}

// note keeps what a check said.
func (s *schema) setErr(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err != nil:
		s.log.Warn("ClickHouse does not answer: it is asked again, and what needs it waits", "err", err)
	case s.err != nil:
		s.log.Info("ClickHouse is there, and its tables are up to date")
	}
	s.err = err
}

// run asks again until ClickHouse has answered, and then waits for ctx.
func (s *schema) run(ctx context.Context) error {
	wait := retry.Policy{Wait: schemaWait, MaxWait: schemaMost}
	for n := 1; s.lastErr() != nil && ctx.Err() == nil; n++ {
		_ = retry.Sleep(ctx, wait.Backoff(n)) // only ctx ends it early
		if err := s.checkOnce(ctx); err != nil {
			return err
		}
	}
	<-ctx.Done()
	return nil
}

func (s *schema) lastErr() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// ping asks for a sign of life. What does not answer that about its tables is not there.
func (s *schema) ping(ctx context.Context) error {
	if err := s.lastErr(); err != nil {
		return err
	}
	return s.pingDB(ctx)
}
