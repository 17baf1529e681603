package config

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
)

// A Secret is a reference to something that only its user gets to see. It prints as ***,
// whichever way it is printed; the zero Secret is none.
//
// The forms are env:NAME (a variable of the environment), file:PATH (a file's content) and
// exec:COMMAND (what a command writes to its standard output; words are split at
// spaces, there is no shell). A line break at the end is not part of the secret.
type Secret struct{ reference string }

const hidden = "***"

var errSecret = errors.New("a reference to the secret, never the secret itself: env:NAME, file:PATH or exec:COMMAND")

// EnvSecret refers to a variable of the environment.
func EnvSecret(name string) Secret { return Secret{"env:" + name} }

// FileSecret refers to a file's content.
func FileSecret(path string) Secret { return Secret{"file:" + path} }

func parseSecret(text string) (Secret, error) {
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

// IsZero reports whether there is no secret.
func (s Secret) IsZero() bool { return s.reference == "" }

// Resolve gets the secret; the zero Secret is empty. Its errors name the reference, and nothing of the secret.
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
		if err != nil {
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
		return "", fmt.Errorf("the secret that %s refers to is empty or not set", s.name())
	}
	return value, nil
}

// name is the reference as far as it may be told: a command's arguments may be secret too.
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
