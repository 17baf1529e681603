package file

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/streams/storage"
)

var _ storage.Keeper = (*Store)(nil)

// A keptEntry is a directory in quarantine: of one file, with the time in its name. Its id is the path without the
// slash between the day and the name.
type keptEntry struct {
	day, name string
	at        time.Time
}

func (e keptEntry) id() string  { return e.day + "T" + e.name }
func (e keptEntry) dir() string { return quarantineDir + "/" + e.day + "/" + e.name }

// parseKeptEntry returns the entry with this name in the directory of a day. ok is false if the name is not one that
// makeQuarantineDir gives.
func parseKeptEntry(day, name string) (e keptEntry, ok bool) {
	text, process, ok := strings.Cut(name, "-")
	at, err := time.Parse(quarantineDay+quarantineTime, day+text)
	plain := !strings.ContainsFunc(process, func(c rune) bool {
		return (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z')
	})
	return keptEntry{day, name, at}, ok && err == nil && plain && process != ""
}

// Kept implements storage.Keeper. It reads the description of every file in quarantine, and holds those of the items in
// memory. A description that cannot be read may be of any of the items: the listing continues, and ends with an error.
func (s *Store) Kept(ctx context.Context, space string, items []string) iter.Seq2[storage.Kept, error] {
	return func(yield func(storage.Kept, error) bool) {
		all, err := s.findKept(ctx, space, items)
		for _, k := range all {
			if !yield(k, nil) {
				return
			}
		}
		if err != nil {
			yield(storage.Kept{}, fmt.Errorf("list the quarantine of space %q: %w", space, err))
		}
	}
}

// findKept returns what is kept of items, also with an error.
func (s *Store) findKept(ctx context.Context, space string, items []string) (all []storage.Kept, err error) {
	for _, item := range items {
		if _, err := newItemPath(space, item); err != nil {
			return nil, err
		}
	}
	space, err = spaceDir(space)
	if err != nil {
		return nil, err
	}
	sess, err := s.acquire()
	if err != nil {
		return nil, err
	}
	defer s.release(sess)
	var unreadable error // of the first one
	err = sess.eachKept(ctx, func(e keptEntry) error {
		doc, err := sess.readQuarantineDoc(e)
		if isAbsent(err) {
			return nil // removed meanwhile, or never completed
		}
		if err != nil {
			if unreadable == nil {
				unreadable = err
			}
			return nil
		}
		if _, is := slices.BinarySearch(items, doc.Item); !is || doc.SpaceDir != space {
			return nil
		}
		k, fd, err := sess.openKept(e, doc)
		if err == nil {
			unix.Close(fd)
			all = append(all, k)
		}
		if isAbsent(err) {
			return nil
		}
		return err
	})
	slices.SortStableFunc(all, func(a, b storage.Kept) int {
		return cmp.Or(strings.Compare(a.Object.Item, b.Object.Item), strings.Compare(a.ID, b.ID))
	})
	if err := errors.Join(err, unreadable); err != nil {
		return all, err
	}
	now, err := s.acquire()
	if err != nil {
		return all, err
	}
	defer s.release(now)
	if now != sess {
		err = s.unavailable(errors.New("the root was replaced by another directory"))
	}
	return all, err
}

// eachKept calls f for each entry of the quarantine, oldest first, until it fails. Other entries are not the store's.
func (s *session) eachKept(ctx context.Context, f func(keptEntry) error) error {
	if ctx.Err() != nil {
		return storage.ContextErr(ctx)
	}
	days, err := s.names(quarantineDir)
	if isAbsent(err) {
		return nil
	}
	if err != nil {
		return err
	}
	slices.Sort(days)
	for _, day := range days {
		if _, err := time.Parse(quarantineDay, day); err != nil {
			continue
		}
		names, err := s.names(quarantineDir + "/" + day)
		if isAbsent(err) {
			continue
		}
		if err != nil {
			return err
		}
		slices.Sort(names)
		for _, name := range names {
			if ctx.Err() != nil {
				return storage.ContextErr(ctx)
			}
			e, ok := parseKeptEntry(day, name)
			if !ok {
				continue
			}
			if err := f(e); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *session) readQuarantineDoc(e keptEntry) (doc quarantineDoc, err error) {
	path := e.dir() + "/" + quarantineAbout
	b, err := s.read(path)
	if err == nil {
		err = json.Unmarshal(b, &doc)
	}
	if err != nil {
		return doc, fmt.Errorf("read %s: %w", path, err)
	}
	return doc, nil
}

// openKept opens the file of an entry.
func (s *session) openKept(e keptEntry, doc quarantineDoc) (k storage.Kept, fd int, err error) {
	path := e.dir() + "/" + quarantineBytes
	fd, err = s.open(path, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return k, -1, err
	}
	var st unix.Stat_t
	err = pathError("stat", path, retryEINTR(func() error { return unix.Fstat(fd, &st) }))
	if err == nil && !isRegular(&st) {
		err = fmt.Errorf("%s is not a file", path)
	}
	if err != nil {
		unix.Close(fd)
		return k, -1, err
	}
	a, _ := selectMetadata(st.Mtim.Nano(), &doc.metadata, false, nil)
	k = storage.Kept{ID: e.id(), Object: object(doc.Item, &st, a), At: e.at, Expires: true}
	switch doc.Reason {
	case quarantineReplaced:
		k.Reason = storage.KeptReplaced
	case quarantineDeleted:
		k.Reason = storage.KeptDeleted
	}
	return k, fd, nil
}

// StatKept implements storage.Keeper.
func (s *Store) StatKept(ctx context.Context, ref storage.KeptRef) (storage.Kept, error) {
	k, fd, err := s.locateKept(ctx, ref)
	if err != nil {
		return storage.Kept{}, err
	}
	unix.Close(fd)
	return k, nil
}

// OpenKept implements storage.Keeper. Bytes that expire while they are read are still read to their end.
func (s *Store) OpenKept(ctx context.Context, ref storage.KeptRef) (io.ReadCloser, storage.Kept, error) {
	k, fd, err := s.locateKept(ctx, ref)
	if err != nil {
		return nil, storage.Kept{}, err
	}
	f := os.NewFile(uintptr(fd), ref.ID)
	return newReader(ctx, f, k.Object, func(st *unix.Stat_t) string { return versionOf(st.Mtim.Nano()) }), k, nil
}

// locateKept opens the file that ref names.
func (s *Store) locateKept(ctx context.Context, ref storage.KeptRef) (k storage.Kept, fd int, err error) {
	if ctx.Err() != nil {
		return k, -1, storage.ContextErr(ctx)
	}
	p, err := newItemPath(ref.Space, ref.Item)
	if err != nil {
		return k, -1, err
	}
	sess, err := s.acquire()
	if err != nil {
		return k, -1, err
	}
	defer s.release(sess)
	absent := fmt.Errorf("bytes %q of item %q in quarantine: %w", ref.ID, ref.Item, storage.ErrNotFound)
	day, name, _ := strings.Cut(ref.ID, "T")
	e, ok := parseKeptEntry(day, name)
	if !ok || e.id() != ref.ID {
		return k, -1, absent
	}
	doc, err := sess.readQuarantineDoc(e)
	if err == nil && (doc.Item != p.item || doc.SpaceDir != p.space) {
		return k, -1, absent
	}
	if err == nil {
		k, fd, err = sess.openKept(e, doc)
	}
	if isAbsent(err) {
		return k, -1, absent
	}
	if err != nil {
		return k, -1, fmt.Errorf("open bytes %q of item %q in quarantine: %w", ref.ID, ref.Item, err)
	}
	return k, fd, nil
}
