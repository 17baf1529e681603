package config

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"strings"

	"github.com/millrace/millrace/cmd/precondition"
)

// A Secret is a reference to a secret value. It prints as *** with every verb and encoder. The zero
// Secret is no secret.
//
// The forms are env:NAME (an environment variable), file:PATH (the content of a file) and
// exec:COMMAND (the standard output of a command; arguments are split at spaces, there is no
// shell). Line breaks at the end are removed.
type Secret struct{ reference string }

const hidden = "***"

var errSecret = errors.New("a reference to the secret, never the secret itself: env:NAME, file:PATH or exec:COMMAND")

// FileSecret returns a reference to the content of a file.
func FileSecret(path string) Secret { return Secret{"file:" + path} }

// ParseSecret returns the secret of a reference.
func ParseSecret(text string) (Secret, error) {
	kind, of, _ := strings.Cut(text, ":")
	switch {
	case text == "":
		return Secret{}, nil
	case kind == "env" && of != "" && !strings.ContainsAny(of, "= \x00"),
		kind == "file" && of != "",
		kind == "exec" && strings.TrimSpace(of) != "":
		return Secret{text}, nil
	}
	return Secret{}, errSecret
}

// IsZero reports whether s refers to no secret.
func (s Secret) IsZero() bool { return s.reference == "" }

// Resolve returns the secret value; "" for the zero Secret. Its errors contain the reference, never
// the value. They wrap precondition.Err if the secret is not there: a variable that is not set, a
// file that does not exist, or an empty value. A command that fails may succeed later.
func (s Secret) Resolve(ctx context.Context) (string, error) {
	kind, of, _ := strings.Cut(s.reference, ":")
	var value string
	switch kind {
	case "":
		return "", nil
	case "env":
		value = os.Getenv(of)
	case "file":
		b, err := os.ReadFile(of)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return "", precondition.Of(fmt.Errorf("read the secret: %w", err))
		case err != nil:
			return "", fmt.Errorf("read the secret: %w", err)
		}
		value = string(b)
	case "exec":
		words := strings.Fields(of)
		c := exec.CommandContext(ctx, words[0], words[1:]...)
		c.Stderr = os.Stderr
		out, err := c.Output()
		if err != nil {
			return "", fmt.Errorf("run %s for the secret: %w", words[0], err)
		}
		value = string(out)
	}
	if value = strings.TrimRight(value, "\r\n"); value == "" {
		return "", precondition.Of(fmt.Errorf("the secret that %s refers to is empty or not set", s.name()))
	}
	return value, nil
}

// isCommand reports whether the value is the output of a command.
func (s Secret) isCommand() bool { return strings.HasPrefix(s.reference, "exec:") }

// name returns the reference without the arguments of a command, which may be secret.
func (s Secret) name() string {
	if command, ok := strings.CutPrefix(s.reference, "exec:"); ok {
		return "exec:" + strings.Fields(command)[0]
	}
	return s.reference
}

// String hides the secret.
func (s Secret) String() string {
	if s.IsZero() {
		return ""
	}
	return hidden
}

// GoString hides the secret.
func (s Secret) GoString() string { return s.String() }

// Format hides the secret from every verb.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(s.String())) }

// MarshalText hides the secret.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// LogValue hides the secret.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }
