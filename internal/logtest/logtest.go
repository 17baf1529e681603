// Package logtest collects log lines for tests.
package logtest

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
)

// Lines are logged lines. The zero value is ready to use. It is safe for concurrent use.
type Lines struct {
	mu  sync.Mutex
	buf bytes.Buffer // guarded by mu
}

// Write implements io.Writer.
func (l *Lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

// Log returns a logger that writes to l.
func (l *Lines) Log() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// Count returns how many times text was logged.
func (l *Lines) Count(text string) int { return strings.Count(l.String(), text) }

// String returns all lines.
func (l *Lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}
