// Package outboxtest has a disk in memory for tests of outboxes. It fails at a given step, and knows what a power
// failure would leave of it.
package outboxtest

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/millrace/millrace/streams/storage/outbox/disk"
)

// ErrStep is the error of a step that fails, unless Failure.Err is set.
var ErrStep = errors.New("scripted step")

// A Disk is a disk in memory. Its steps are the calls that change it; Fail makes one of them fail.
type Disk struct {
	mu          sync.Mutex // guards all
	files       map[string]*memFile
	syncedNames map[string]*memFile // files with synced names
	steps       int
	failAt      int // the step that fails; 0: none
	failure     Failure
}

var _ disk.Disk = (*Disk)(nil)

// A Failure is how a step fails.
type Failure struct {
	Err     error // [ErrStep]
	Stop    bool  // all later steps fail too
	Applied bool  // the failing step is carried out nevertheless
}

type memFile struct {
	d      *Disk
	bytes  []byte
	synced []byte
}

var _ disk.File = (*memFile)(nil)

// New returns an empty disk.
func New() *Disk { return &Disk{files: map[string]*memFile{}, syncedNames: map[string]*memFile{}} }

// Write adds a file, or replaces it, with content that is synced. It is not a step.
func (d *Disk) Write(name string, b []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f := &memFile{d, slices.Clone(b), slices.Clone(b)}
	d.files[name], d.syncedNames[name] = f, f
}

// Read returns the content of a file, synced or not; nil if the file does not exist.
func (d *Disk) Read(name string) []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	if f := d.files[name]; f != nil {
		return slices.Clone(f.bytes)
	}
	return nil
}

// Bytes returns the size of all files.
func (d *Disk) Bytes() (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, f := range d.files {
		n += len(f.bytes)
	}
	return n
}

// Fail makes the nth step from now fail; 1 is the next.
func (d *Disk) Fail(n int, how Failure) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if how.Err == nil {
		how.Err = ErrStep
	}
	d.failAt, d.failure = d.steps+n, how
}

// Failed reports whether the step that fails was reached.
func (d *Disk) Failed() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.failAt > 0 && d.steps >= d.failAt
}

// Stopped reports whether all steps fail from now on.
func (d *Disk) Stopped() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.failure.Stop && d.failAt > 0 && d.steps >= d.failAt
}

// Steps returns the number of steps so far.
func (d *Disk) Steps() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.steps
}

// step counts a step; d.mu is held.
func (d *Disk) step() (do bool, err error) {
	d.steps++
	if d.failAt == 0 || d.steps != d.failAt && !(d.failure.Stop && d.steps > d.failAt) {
		return true, nil
	}
	return d.failure.Applied && d.steps == d.failAt, d.failure.Err
}

// After returns the disk after the process was killed, or after a power failure.
func (d *Disk) After(power bool, random *rand.Rand) *Disk {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := New()
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

// Names implements disk.Disk.
func (d *Disk) Names() ([]string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Collect(maps.Keys(d.files)), nil
}

// Open implements disk.Disk.
func (d *Disk) Open(name string, create bool) (disk.File, error) {
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

// Rename implements disk.Disk.
func (d *Disk) Rename(from, to string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	do, err := d.step()
	if do {
		d.files[to] = d.files[from]
		delete(d.files, from)
	}
	return err
}

// Remove implements disk.Disk.
func (d *Disk) Remove(name string) error {
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

// Sync implements disk.Disk.
func (d *Disk) Sync() error {
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

func (f *memFile) Size() (int64, error) {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	return int64(len(f.bytes)), nil
}

func (f *memFile) Close() error { return nil }
