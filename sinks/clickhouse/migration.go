package clickhouse

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
)

type migration struct {
	number    uint32
	name      string // without the number
	statement string
}

func (m migration) String() string { return fmt.Sprintf("%04d_%s", m.number, m.name) }

// readMigrations returns the migrations in files, in the order of their numbers.
func readMigrations(files fs.FS) ([]migration, error) {
	names, err := fs.Glob(files, "*.sql") // sorted
	if err != nil {
		return nil, fmt.Errorf("list migrations: %w", err)
	}
	var all []migration
	for i, name := range names {
		digits, rest, ok := strings.Cut(strings.TrimSuffix(path.Base(name), ".sql"), "_")
		n, err := strconv.ParseUint(digits, 10, 32)
		if !ok || err != nil || n == 0 {
			return nil, fmt.Errorf("migration %s has no number", name)
		}
		if i > 0 && n == uint64(all[i-1].number) {
			return nil, fmt.Errorf("migration %s has the number of %s", name, all[i-1])
		}
		text, err := fs.ReadFile(files, name)
		if err != nil {
			return nil, fmt.Errorf("read migration %s: %w", name, err)
		}
		all = append(all, migration{uint32(n), rest, string(text)})
	}
	return all, nil
}

// checksum returns the SHA-256 of the file, comments included.
func checksum(m migration) string {
	sum := sha256.Sum256([]byte(m.statement))
	return hex.EncodeToString(sum[:])
}
