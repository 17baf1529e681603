package clickhouse

import (
	"context"
	"errors"
	"fmt"

	ch "github.com/ClickHouse/clickhouse-go/v2"

	"github.com/millrace/millrace/streams/retry"
)

// Reasons why a server cannot be used.
var (
	// ErrOlder means that the server is older than the oldest tested release.
	ErrOlder = errors.New("the server is too old")
	// ErrAccess means that the server refuses the login, or that the user lacks a right.
	ErrAccess = errors.New("access refused")
)

// Error codes of the server that this package branches on.
const (
	CodeUnknownTable    = 60
	CodeUnknownDatabase = 81
	CodeReadOnly        = 164
	codeUnknownUser     = 192
	codeWrongPassword   = 193
	codeNoPassword      = 194
	codeAddressRefused  = 195
	codeTableReadOnly   = 242
	CodeAccessDenied    = 497
	codeAuthentication  = 516
)

// Classify classifies an error of a call to ClickHouse as unavailable. A row cannot be the cause: rows are checked
// before they are sent. So every error is about the server, and the work waits until the server is available.
func Classify(err error) error {
	if err == nil || errors.Is(err, context.Canceled) {
		return err
	}
	return retry.Unavailable(err)
}

// HasCode reports whether the server returned the error with a code.
func HasCode(err error, code int32) bool {
	var e *ch.Exception
	return errors.As(err, &e) && e.Code == code
}

// Explain adds a plain explanation to errors with a code that means a refused access. Other errors are unavailable.
func (db *DB) Explain(as Login, err error) error {
	var e *ch.Exception
	if !errors.As(err, &e) {
		return Classify(err)
	}
	switch e.Code {
	case codeAuthentication, codeUnknownUser, codeWrongPassword, codeNoPassword:
		return fmt.Errorf("%w: wrong user or password for user %s: %w", ErrAccess, as.User, err)
	case CodeAccessDenied:
		return fmt.Errorf("%w: user %s lacks a grant: %w", ErrAccess, as.User, err)
	case CodeReadOnly:
		return fmt.Errorf("%w: user %s may only read on this server: %w", ErrAccess, as.User, err)
	case codeTableReadOnly:
		return fmt.Errorf("%w: the table is read-only now: its disk is read-only, or its replica has lost its Keeper: %w",
			ErrAccess, err)
	case codeAddressRefused:
		return fmt.Errorf("%w: user %s may not connect from here: %w", ErrAccess, as.User, err)
	}
	return Classify(err)
}
