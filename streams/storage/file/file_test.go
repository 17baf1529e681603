package file

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/storagetest"
)

// open opens a store in a root, which may have no marker.
func open(t testing.TB, cfg Config) *Store {
	t.Helper()
	cfg.Unmarked = true
	if cfg.ID == "" {
		cfg.ID = "1"
	}
	if cfg.Root == "" {
		cfg.Root = t.TempDir()
	}
	s, err := Open(cfg)
	must(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

// inMemory returns a directory in memory, if possible, for tests that do not depend on fsync.
func inMemory(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "millrace") //nolint:usetesting // TempDir is on the disk
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	return dir
}

// kept reads the files in quarantine without the store.
func kept(t *testing.T, st storage.Store, space, item string) (all [][]byte) {
	t.Helper()
	s := st.(*Store)
	docs, err := filepath.Glob(filepath.Join(s.cfg.Root, quarantineDir, "*", "*", quarantineAbout))
	must(t, err)
	slices.Sort(docs)
	for _, path := range docs {
		var doc quarantineDoc
		b, err := os.ReadFile(path)
		if err == nil {
			err = json.Unmarshal(b, &doc)
		}
		must(t, err)
		if dir, _ := spaceDir(space); doc.SpaceDir != dir || doc.Item != item {
			continue
		}
		b, err = os.ReadFile(filepath.Join(filepath.Dir(path), quarantineBytes))
		must(t, err)
		all = append(all, b)
	}
	return all
}

func twin(t *testing.T, s storage.Store, id string) storage.Store {
	cfg := s.(*Store).cfg
	if id != "" {
		cfg.ID = id
	}
	return open(t, cfg)
}

func TestContract(t *testing.T) {
	t.Parallel()
	storagetest.Run(t, func(t *testing.T) storage.Store { return open(t, Config{}) },
		storagetest.WithKept(kept), storagetest.WithTwin(twin))
}

// The contract also holds without openat2.
func TestContractNameByName(t *testing.T) {
	t.Parallel()
	storagetest.Run(t, func(t *testing.T) storage.Store {
		s := open(t, Config{Root: inMemory(t)})
		s.sess.byName = true
		return s
	}, storagetest.WithKept(kept),
		storagetest.Only("List", "Put", "Keep", "Delete", "Spaces", "Nesting", "RaceNeighbours"))
}

func TestOpenRefuses(t *testing.T) {
	root := t.TempDir()
	must(t, os.WriteFile(filepath.Join(root, "file"), nil, 0o600))
	tests := map[string]Config{
		"no id":          {Root: root},
		"no root":        {ID: "1"},
		"missing root":   {ID: "1", Root: filepath.Join(root, "missing")},
		"root is a file": {ID: "1", Root: filepath.Join(root, "file")},
		"unknown digest": {ID: "1", Root: root, digests: []string{"crc"}},
	}
	for name, cfg := range tests {
		t.Run(name, func(t *testing.T) {
			if s, err := Open(cfg); err == nil {
				s.Close()
				t.Error("got no error")
			}
		})
	}
	s := open(t, Config{Root: filepath.Join(root, "made", "here"), Create: true})
	if err := s.WriteMarker(t.Context()); err != nil {
		t.Error(err)
	}
	s.Close()
	if err := s.Marker(t.Context()); !errors.Is(err, errClosed) {
		t.Errorf("Marker of a closed store: got %v", err)
	}
}
