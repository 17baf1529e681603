package statedir

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// tmpPrefix is the prefix of temporary files that WriteFile renames.
const tmpPrefix = ".tmp-"

// WriteFile writes a file atomically and durably: after a crash it is complete or absent.
func WriteFile(name string, data []byte) error {
	return WriteFrom(name, func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	})
}

// WriteFrom is WriteFile of what write writes.
func WriteFrom(name string, write func(io.Writer) error) error {
	f, err := os.CreateTemp(filepath.Dir(name), tmpPrefix+"*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	err = write(f)
	err = errors.Join(err, f.Sync(), f.Close())
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	if err := os.Rename(f.Name(), name); err != nil {
		return err
	}
	d, err := os.Open(filepath.Dir(name))
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
