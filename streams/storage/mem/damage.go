package mem

import (
	"bytes"
	"maps"
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

// Alter changes the properties of an item, and nothing else.
func (s *Store) Alter(space, id string, p storage.Properties) bool {
	return s.damage(space, id, func(sp *spaceItems, it *item) {
		it.object.Properties = properties(p)
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

// Snapshot records what the store holds but its marker. restore brings it back, as often as it is called. Versions that
// were given since are not given again.
func (s *Store) Snapshot() (restore func()) {
	copyOf := func(of map[string]*spaceItems) map[string]*spaceItems {
		all := maps.Clone(of)
		for name, sp := range all {
			all[name] = &spaceItems{cloneSpace(sp.info), maps.Clone(sp.items), slices.Clone(sp.order), maps.Clone(sp.lastTimes)}
		}
		return all
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	spaces, kept := copyOf(s.spaces), slices.Clone(s.kept)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.spaces, s.kept = copyOf(spaces), slices.Clone(kept)
	}
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

// AllKept returns the items that replacements and deletions kept, oldest first.
func (s *Store) AllKept() []Kept {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.kept)
}

// CorruptKept replaces the bytes that are kept under an id. It reports whether there are any.
func (s *Store) CorruptKept(id string, to []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.kept, func(k Kept) bool { return k.ID == id })
	if i >= 0 {
		s.kept[i].Bytes = bytes.Clone(to)
	}
	return i >= 0
}

// ForgetKept removes the bytes that are kept under an id, as an expiry does. It reports whether there were any.
func (s *Store) ForgetKept(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.kept)
	s.kept = slices.DeleteFunc(slices.Clone(s.kept), func(k Kept) bool { return k.ID == id })
	return len(s.kept) < n
}
