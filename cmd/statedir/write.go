package statedir

import (
	"io"

	"github.com/millrace/millrace/internal/wholefile"
)

// WriteFile writes a file atomically and durably: after a crash it is complete or absent.
func WriteFile(name string, data []byte) error {
	return wholefile.Write(name, func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	})
}
