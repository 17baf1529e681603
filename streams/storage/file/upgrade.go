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

// ErrInUse is of an Upgrade that was refused because another process uses the root.
var ErrInUse = errors.New("another process uses the store")

// UpgradeOptions are how a store is upgraded.
type UpgradeOptions struct {
	DryRun bool // only count sidecars; nothing is changed
	// Each is called after every sidecar with the counts so far, and with how many sidecars there were at the start, one
	// call at a time.
	Each func(done Upgraded, total int64)
}

// Upgraded counts the sidecars that an Upgrade has looked at.
type Upgraded struct {
	Moved  int64 `json:"moved"`  // to the attribute of the item's file
	Kept   int64 `json:"kept"`   // the attribute has no room, or may not be changed: the sidecar stays
	Absent int64 `json:"absent"` // the item has no file now: the sidecar stays, for the file may come back
	Spoilt int64 `json:"spoilt"` // the sidecar says nothing and stays; the properties of its item are unknown
}

// upgradeAtOnce is how many items are upgraded at a time: most of the time is waiting for the disk.
const upgradeConcurrency = 16

// Upgrade switches a store to layout 2, unless it has that, and moves what sidecars say to the attributes of the items'
// files. The switch is refused with ErrInUse while another process uses the root; the rest can go on beside others, can
// be ended at any time, and does what is left when it is called again.
func (s *Store) Upgrade(ctx context.Context, o UpgradeOptions) (Upgraded, error) {
	sess, err := s.acquireForWrite()
	if err != nil {
		return Upgraded{}, err
	}
	defer s.release(sess)
	if !sess.supportsAttrs || s.cfg.maxAttr < 0 {
		return Upgraded{}, retry.Permanent(fmt.Errorf("the file system of %s has no extended attributes: %w", s.cfg.Root, storage.ErrUnsupported))
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

// switchLayout has the marker say layout 2.
func (s *Store) switchLayout(sess *session) (err error) {
	doc, err := s.marker(sess)
	if err != nil || doc.Format == layoutAttrs {
		return err
	}
	// No other process begins to write meanwhile; one that comes later reads the new marker.
	if err := setLock(sess.lockFD, openByte, unix.F_WRLCK, unix.F_OFD_SETLKW); err != nil {
		return pathError("lock", lockFile, err)
	}
	defer func() { err = errors.Join(err, setLock(sess.lockFD, openByte, unix.F_UNLCK, unix.F_OFD_SETLK)) }()
	err = sess.eachOtherScratch(sess.scratch.Load().path, func(dir string, alive bool) error {
		if alive {
			return fmt.Errorf("%w: it has %s", ErrInUse, dir)
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
	// total is how many sidecars there were at the start.
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

// spaces looks at the sidecars of all spaces.
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
	return storage.Ended(ctx)
}

// sidecar moves what one sidecar says.
func (u *upgrade) sidecar(ctx context.Context, space, path string) error {
	b, err := u.sess.read(path)
	if isAbsent(err) {
		return nil // a writer has moved it
	}
	if err != nil {
		return err
	}
	sc, err := decodeSidecar("", b)
	if err != nil {
		u.count(&u.done.Spoilt)
		return nil
	}
	p := itemPathIn(space, sc.Item)
	if _, own := sidecarPath(p); own != path {
		u.count(&u.done.Spoilt)
		return nil
	}
	unlock, err := u.s.lock(ctx, u.sess, p.space, p.item)
	if err != nil {
		return err
	}
	defer unlock()
	at, err := u.sess.find(p)
	if errors.Is(err, errFolded) { // nothing is written to its directory
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
	if isAbsent(err) { // another program has just removed the file
		n, err = &u.done.Absent, nil
	}
	if err != nil {
		return fmt.Errorf("upgrade item %q: %w", sc.Item, err)
	}
	u.count(n)
	return nil
}

// item moves what is known of an item, which is locked, and returns what it counts as.
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
	if a.Modified != at.st.Mtim.Nano() { // others have changed the bytes
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
