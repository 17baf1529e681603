package emit

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
)

// A memDisk is a disk in memory that fails or stops at a given step, and knows what a power failure would
// leave of it.
type memDisk struct {
	mu          sync.Mutex // guards all
	files       map[string]*memFile
	syncedNames map[string]*memFile // files whose names are synced
	steps       int
	// failAt is the step that fails with err: only that step, or all from there on if stop is set.
	failAt  int
	err     error
	stop    bool
	applied bool // the failing step is carried out nevertheless
}

type memFile struct {
	d      *memDisk
	bytes  []byte
	synced []byte
}

var errStep = errors.New("scripted step")

func newMemDisk() *memDisk {
	return &memDisk{files: map[string]*memFile{}, syncedNames: map[string]*memFile{}, err: errStep}
}

// step counts a step; d.mu is held.
func (d *memDisk) step() (do bool, err error) {
	d.steps++
	if d.failAt == 0 || d.steps != d.failAt && !(d.stop && d.steps > d.failAt) {
		return true, nil
	}
	return d.applied && d.steps == d.failAt, d.err
}

func (d *memDisk) stopped() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.stop && d.failAt > 0 && d.steps >= d.failAt
}

// after returns the disk after the process was killed, or after a power failure.
func (d *memDisk) after(power bool, random *rand.Rand) *memDisk {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := newMemDisk()
	names := d.files
	if power {
		names = d.syncedNames
	}
	for name, f := range names {
		b := f.bytes
		if power {
			b = slices.Clone(f.synced)
			if unsynced := len(f.bytes) - len(b); unsynced > 0 { // some of it, and holes
				keep := f.bytes[len(b) : len(b)+random.IntN(unsynced+1)]
				keep = slices.Clone(keep)
				if len(keep) > 8 && random.IntN(2) == 0 {
					at := random.IntN(len(keep))
					clear(keep[at:min(len(keep), at+random.IntN(64))])
				}
				b = append(b, keep...)
			}
		}
		n.files[name] = &memFile{n, slices.Clone(b), slices.Clone(b)}
	}
	n.syncedNames = maps.Clone(n.files)
	return n
}

func (d *memDisk) names() ([]string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Collect(maps.Keys(d.files)), nil
}

func (d *memDisk) open(name string, create bool) (diskFile, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f := d.files[name]
	switch {
	case !create && f == nil:
		return nil, fmt.Errorf("open %s: %w", name, fs.ErrNotExist)
	case !create:
		return f, nil
	case f != nil:
		return nil, fmt.Errorf("open %s: %w", name, fs.ErrExist)
	}
	do, err := d.step()
	if do {
		f = &memFile{d: d}
		d.files[name] = f
	}
	if err != nil {
		return nil, err
	}
	return f, nil
}

func (d *memDisk) rename(from, to string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	do, err := d.step()
	if do {
		d.files[to] = d.files[from]
		delete(d.files, from)
	}
	return err
}

func (d *memDisk) remove(name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.files[name] == nil {
		return fs.ErrNotExist
	}
	do, err := d.step()
	if do {
		delete(d.files, name)
	}
	return err
}

func (d *memDisk) sync() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	do, err := d.step()
	if do {
		d.syncedNames = maps.Clone(d.files)
	}
	return err
}

func (f *memFile) ReadAt(b []byte, at int64) (int, error) {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if at >= int64(len(f.bytes)) {
		return 0, io.EOF
	}
	n := copy(b, f.bytes[at:])
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

func (f *memFile) WriteAt(b []byte, at int64) (int, error) {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	do, err := f.d.step()
	if !do { // a part of it
		b = b[:len(b)/2]
	}
	if need := int(at) + len(b); need > len(f.bytes) {
		f.bytes = append(f.bytes, make([]byte, need-len(f.bytes))...)
	}
	return copy(f.bytes[at:], b), err
}

func (f *memFile) Truncate(size int64) error {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	do, err := f.d.step()
	if do {
		f.bytes = f.bytes[:size]
		f.synced = f.synced[:min(len(f.synced), int(size))]
	}
	return err
}

func (f *memFile) Sync() error {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	do, err := f.d.step()
	if do {
		f.synced = slices.Clone(f.bytes)
	}
	return err
}

func (f *memFile) size() (int64, error) {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	return int64(len(f.bytes)), nil
}

func (f *memFile) Close() error { return nil }
