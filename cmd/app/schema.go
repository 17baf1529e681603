package app

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/migrate"
	"github.com/millrace/millrace/streams/retry"
)

// Bounds of asking ClickHouse whether its tables are up to date.
const (
	schemaLimit = 10 * time.Second
	schemaWait  = 500 * time.Millisecond // at first, when it did not answer
	schemaMost  = 15 * time.Second
)

// A schema checks whether ClickHouse has the tables that this program needs. If tables are missing,
// the process ends. If ClickHouse does not answer, the check is repeated.
type schema struct {
	check, pingDB func(context.Context) error // of the database
	log           *slog.Logger

	mu  sync.Mutex // guards err
	err error      // of the latest check; nil once the tables are verified
}

func newSchema(db *clickhouse.DB, roles []schemas.Role, log *slog.Logger) *schema {
	check := func(ctx context.Context) error {
		err := migrate.Check(ctx, db)
		if err == nil && slices.Contains(roles, schemas.RoleSink) {
			err = migrate.CheckWrites(ctx, db)
		}
		return err
	}
	return &schema{check: check, pingDB: db.Ping, log: log}
}

// checkAtStart is checkOnce before the parts run.
func (s *schema) checkAtStart(run context.Context) error { return asPrecondition(s.checkOnce(run)) }

// checkOnce checks once. It returns only errors that an operator must resolve.
func (s *schema) checkOnce(run context.Context) error {
	ctx, cancel := context.WithTimeout(run, schemaLimit)
	defer cancel()
	err := s.check(ctx)
	if needsOperator(err) {
		return err
	}
	if run.Err() == nil {
		s.setErr(err)
	}
	return nil
}

// setErr records the result of a check.
func (s *schema) setErr(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err != nil:
		s.log.Warn("wait for ClickHouse", "err", err)
	case s.err != nil:
		s.log.Info("ClickHouse is available and its tables are up to date")
	}
	s.err = err
}

// run repeats the check until ClickHouse has answered, and then waits for ctx.
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

// ping checks that ClickHouse answers. Until its tables have been verified, it returns the error of
// that check.
func (s *schema) ping(ctx context.Context) error {
	if err := s.lastErr(); err != nil {
		return err
	}
	return s.pingDB(ctx)
}
