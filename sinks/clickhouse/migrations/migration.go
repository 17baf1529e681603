package migrations

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
)

// A Migration is one statement of the schema.
type Migration struct {
	Number    uint32
	Name      string // without the number
	Statement string
}

// String returns the name of the file, without its extension.
func (m Migration) String() string { return fmt.Sprintf("%04d_%s", m.Number, m.Name) }

// All returns the migrations, in the order of their numbers.
func All() ([]Migration, error) { return read(Files) }

// read returns the migrations in files.
func read(files fs.FS) ([]Migration, error) {
	names, err := fs.Glob(files, "*.sql") // sorted
	if err != nil {
		return nil, fmt.Errorf("list migrations: %w", err)
	}
	var all []Migration
	for i, name := range names {
		digits, rest, ok := strings.Cut(strings.TrimSuffix(path.Base(name), ".sql"), "_")
		n, err := strconv.ParseUint(digits, 10, 32)
		if !ok || err != nil || n == 0 {
			return nil, fmt.Errorf("migration %s has no number", name)
		}
		if i > 0 && n == uint64(all[i-1].Number) {
			return nil, fmt.Errorf("migration %s has the number of %s", name, all[i-1])
		}
		text, err := fs.ReadFile(files, name)
		if err != nil {
			return nil, fmt.Errorf("read migration %s: %w", name, err)
		}
		all = append(all, Migration{uint32(n), rest, string(text)})
	}
	return all, nil
}

// Checksum returns the SHA-256 of the file, comments included.
func (m Migration) Checksum() string {
	sum := sha256.Sum256([]byte(m.Statement))
	return hex.EncodeToString(sum[:])
}
