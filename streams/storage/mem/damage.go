package mem

import (
	"bytes"
	"slices"
	"time"

	"github.com/millrace/millrace/streams/storage"
)

// Corrupt replaces the bytes of an item and nothing else: version, time and digests stay. It reports
// whether the item exists.
func (s *Store) Corrupt(space, id string, to []byte) bool {
	return s.damage(space, id, func(sp *spaceItems, it *item) {
		it.bytes = bytes.Clone(to)
		it.object.Size = int64(len(to))
		sp.items[id] = it
	})
}

// Rewrite replaces the bytes of an item as another program would: version and time change, and the store
// has no digests.
func (s *Store) Rewrite(space, id string, to []byte) bool {
	return s.damage(space, id, func(sp *spaceItems, it *item) {
		it.bytes = bytes.Clone(to)
		it.object.Size = int64(len(to))
		it.object.Digests, it.object.Original = nil, storage.Original{}
		it.object.Version = s.version(to)
		it.object.Modified = s.nextTime(sp, id)
		sp.items[id] = it
	})
}

// Strip removes everything that the store keeps beside an item's bytes, like a restore without extended
// attributes: the item has another version, no digests and unknown properties.
func (s *Store) Strip(space, id string) bool {
	return s.damage(space, id, func(sp *spaceItems, it *item) {
		o := it.object
		it.object = storage.Object{
			Item: o.Item, Size: o.Size, Modified: o.Modified, Version: s.version(it.bytes), PropertiesUnknown: true,
		}
		sp.items[id] = it
	})
}

// Lose removes an item without a record of the time.
func (s *Store) Lose(space, id string) bool {
	return s.damage(space, id, func(sp *spaceItems, _ *item) { sp.remove(id) })
}

// Date sets the modification time of an item.
func (s *Store) Date(space, id string, modified time.Time) bool {
	return s.damage(space, id, func(sp *spaceItems, it *item) {
		it.object.Modified = modified
		sp.items[id], sp.lastTimes[id] = it, modified
	})
}

// damage calls f with a copy of the item, holding s.mu.
func (s *Store) damage(space, id string, f func(*spaceItems, *item)) bool {
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

// Mark sets the id in the marker; "" removes the marker.
func (s *Store) Mark(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.marker, s.marked = id, id != ""
}

// Kept returns the items that replacements and deletions kept, oldest first.
func (s *Store) Kept() []Kept {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.kept)
}
