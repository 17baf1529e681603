package file

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// ErrInUse means that an Upgrade was refused because another process uses the root.
var ErrInUse = errors.New("another process uses the store")

// UpgradeOptions configure an Upgrade.
type UpgradeOptions struct {
	DryRun bool // count sidecars and change nothing
	// Each, if set, is called after each sidecar with the counts so far and the number of sidecars at the start. Calls
	// do not overlap.
	Each func(done Upgraded, total int64)
}

// Upgraded counts the sidecars that an Upgrade has processed.
type Upgraded struct {
	Moved   int64 `json:"moved"`   // to the attribute of the item's file
	Kept    int64 `json:"kept"`    // the attribute is too small or cannot be changed; the sidecar stays
	Absent  int64 `json:"absent"`  // the item has no file; the sidecar stays, because the file may come back
	Damaged int64 `json:"damaged"` // the sidecar is damaged and stays; the properties of its item are unknown
}

// upgradeConcurrency is the number of items upgraded at a time. Most of the time is spent waiting for the disk.
const upgradeConcurrency = 16

// Upgrade switches a store to layout 2, unless it has it, and moves the metadata from sidecars to the attributes of the
// items' files. The switch returns ErrInUse while another process uses the root. Afterwards other processes may use the
// store, and the upgrade may be interrupted; the next call continues it.
func (s *Store) Upgrade(ctx context.Context, o UpgradeOptions) (Upgraded, error) {
	sess, err := s.acquireForWrite()
	if err != nil {
		return Upgraded{}, err
	}
	defer s.release(sess)
	if !sess.supportsAttrs || s.cfg.maxAttr < 0 {
		return Upgraded{}, retry.Permanent(fmt.Errorf("the file system of %s has no extended attributes: %w",
			s.cfg.Root, storage.ErrUnsupported))
	}
	if !o.DryRun {
		if err := s.switchLayout(sess); err != nil {
			return Upgraded{}, fmt.Errorf("switch store %q to layout %d: %w", s.cfg.ID, layoutAttrs, classify(err))
		}
	}
	u := &upgrade{s: s, sess: sess, o: o}
	err = u.spaces(ctx)
	return u.done, classify(err)
}

// switchLayout writes layout 2 to the marker.
func (s *Store) switchLayout(sess *session) (err error) {
	doc, err := s.marker(sess)
	if err != nil || doc.Format == layoutAttrs {
		return err
	}
	// While this lock is held no other process starts to write; a later one reads the new marker.
	if err := setLock(sess.lockFD, openByte, unix.F_WRLCK, unix.F_OFD_SETLKW); err != nil {
		return pathError("lock", lockFile, err)
	}
	defer func() { err = errors.Join(err, setLock(sess.lockFD, openByte, unix.F_UNLCK, unix.F_OFD_SETLK)) }()
	err = sess.eachOtherScratch(sess.scratch.Load().path, func(dir string, alive bool) error {
		if alive {
			return fmt.Errorf("%w: its directory is %s", ErrInUse, dir)
		}
		return sess.removeFlat(dir)
	})
	if err == nil {
		err = sess.blockOldVersions()
	}
	if err == nil {
		err = s.stepDone("barred")
	}
	if err == nil {
		err = s.writeMarkerFile(sess, layoutAttrs)
	}
	if err == nil {
		err = s.stepDone("switched")
	}
	if err == nil {
		sess.useAttrs.Store(true)
	}
	return err
}

// An upgrade is one call of Upgrade.
type upgrade struct {
	s    *Store
	sess *session
	o    UpgradeOptions
	// total is the number of sidecars at the start.
	total int64
	mu    sync.Mutex // guards done
	done  Upgraded
}

func (u *upgrade) count(n *int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	*n++
	if u.o.Each != nil {
		u.o.Each(u.done, u.total)
	}
}

// spaces upgrades the sidecars of all spaces.
func (u *upgrade) spaces(ctx context.Context) error {
	spaces, err := u.sess.names(metaDir)
	if err != nil {
		return err
	}
	each := func(do func(space, shard string) error) error {
		for _, space := range spaces {
			for i := range byte(shards) {
				if err := do(space, metaDir+"/"+space+"/"+shardName(i)); err != nil {
					return err
				}
			}
		}
		return nil
	}
	err = each(func(_, shard string) error {
		names, err := u.sess.names(shard)
		u.total += int64(len(names))
		return ignoreAbsent(err)
	})
	if err != nil {
		return err
	}
	return each(func(space, shard string) error {
		if err := u.shard(ctx, space, shard); err != nil || u.o.DryRun {
			return err
		}
		if err := u.sess.unlink(shard, unix.AT_REMOVEDIR); err != nil && !isAbsentOrNotEmpty(err) {
			return err
		}
		return nil
	})
}

func (u *upgrade) shard(ctx context.Context, space, dir string) error {
	names, err := u.sess.names(dir)
	if err != nil {
		return ignoreAbsent(err)
	}
	group, each := errgroup.WithContext(ctx)
	group.SetLimit(upgradeConcurrency)
	for _, name := range names {
		if strings.HasSuffix(name, ".json") && each.Err() == nil {
			group.Go(func() error { return u.sidecar(each, space, dir+"/"+name) })
		}
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return storage.ContextErr(ctx)
}

// sidecar moves the metadata of one sidecar.
func (u *upgrade) sidecar(ctx context.Context, space, path string) error {
	b, err := u.sess.read(path)
	if isAbsent(err) {
		return nil // a writer has removed it
	}
	if err != nil {
		return err
	}
	sc, err := decodeSidecar("", b)
	if err != nil {
		u.count(&u.done.Damaged)
		return nil
	}
	p := itemPathIn(space, sc.Item)
	if _, own := sidecarPath(p); own != path {
		u.count(&u.done.Damaged)
		return nil
	}
	unlock, err := u.s.lock(ctx, u.sess, p.space, p.item)
	if err != nil {
		return err
	}
	defer unlock()
	at, err := u.sess.find(p)
	if errors.Is(err, errFolded) { // the store does not write to this directory
		u.count(&u.done.Kept)
		return nil
	}
	if isAbsent(err) || err == nil && !at.present {
		u.count(&u.done.Absent)
		if err == nil {
			at.close()
		}
		return nil
	}
	if err != nil {
		return err
	}
	defer at.close()
	n, err := u.item(at, p)
	if isAbsent(err) { // another program removed the file meanwhile
		n, err = &u.done.Absent, nil
	}
	if err != nil {
		return fmt.Errorf("upgrade item %q: %w", sc.Item, err)
	}
	u.count(n)
	return nil
}

// item moves the metadata of a locked item and returns the counter to increment.
func (u *upgrade) item(at *location, p itemPath) (*int64, error) {
	if u.o.DryRun {
		return &u.done.Moved, nil
	}
	a, err := u.sess.metadataAt(at, p)
	switch {
	case err != nil:
		return nil, err
	case a.Unknown:
		return &u.done.Kept, nil
	}
	if a.Modified != at.st.Mtim.Nano() { // another program has changed the bytes
		a.Modified, a.Size = at.st.Mtim.Nano(), at.st.Size
	}
	switch inAttr, err := u.s.updateMetadata(u.sess, at, p, a); {
	case storage.IsNotApplied(err) && retry.IsPermanent(err), err == nil && !inAttr:
		return &u.done.Kept, nil
	case err != nil:
		return nil, err
	}
	return &u.done.Moved, nil
}
