package mem

import (
	"bytes"
	"slices"
	"time"

	"github.com/millrace/millrace/streams/storage"
)

// Corrupt replaces the bytes of an item behind the driver's back: its version, time and
// digests stay. It reports whether the item is there.
func (s *Store) Corrupt(space, id string, to []byte) bool {
	return s.damage(space, id, func(sp *shelf, it *item) {
		it.bytes = bytes.Clone(to)
		it.object.Size = int64(len(to))
		sp.items[id] = it
	})
}

// Rewrite replaces the bytes of an item as a foreign writer would: version and time
// change, and the store has no digests of them.
func (s *Store) Rewrite(space, id string, to []byte) bool {
	return s.damage(space, id, func(sp *shelf, it *item) {
		it.bytes = bytes.Clone(to)
		it.object.Size = int64(len(to))
		it.object.Digests, it.object.Original = nil, storage.Original{}
		it.object.Version = s.version(to)
		it.object.Modified = s.tick(sp, id)
		sp.items[id] = it
	})
}

// Strip takes from an item all that the store keeps beside its bytes, as a tree that was restored without extended
// attributes lacks it: it has another version, no digests, and properties that are not known.
func (s *Store) Strip(space, id string) bool {
	return s.damage(space, id, func(sp *shelf, it *item) {
		o := it.object
		it.object = storage.Object{
			Item: o.Item, Size: o.Size, Modified: o.Modified, Version: s.version(it.bytes), PropertiesUnknown: true,
		}
		sp.items[id] = it
	})
}

// Lose removes an item behind the driver's back; nothing tells when.
func (s *Store) Lose(space, id string) bool {
	return s.damage(space, id, func(sp *shelf, _ *item) { sp.remove(id) })
}

// Date sets when an item was modified.
func (s *Store) Date(space, id string, modified time.Time) bool {
	return s.damage(space, id, func(sp *shelf, it *item) {
		it.object.Modified = modified
		sp.items[id], sp.last[id] = it, modified
	})
}

// damage calls f with a copy of the item, holding s.mu.
func (s *Store) damage(space, id string, f func(*shelf, *item)) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	sp, old, err := s.find(space, id)
	if err != nil {
		return false
	}
	it := *old
	f(sp, &it)
	return true
}

// Mark makes the marker that of the store called id; "" removes it.
func (s *Store) Mark(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.marker, s.marked = id, id != ""
}

// Kept returns what replacements and deletes kept, oldest first.
func (s *Store) Kept() []Kept {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.kept)
}
