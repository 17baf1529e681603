package emit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// FileConfig is how a File is opened.
type FileConfig struct {
	// Dir is a directory of its own for the outbox; it is made where it is missing.
	Dir string
	// Limit bounds the bytes of what waits, reports included [1 GiB]; then mutations are refused. On
	// disk it is up to a quarter and two segments more. In memory each Change that waits takes some 550
	// bytes, on disk 300 and more: who has little memory wants a lower limit.
	Limit int64
	// Segment is how many bytes a file of the outbox has, about [a sixteenth of Limit, at most 32 MiB].
	Segment int64
	// Salvage opens an outbox that is damaged: what can be read is kept, and the damaged
	// files lie beside it as NAME.damaged. Mutations whose notes are lost are not told of.
	Salvage bool
}

// A File is an Outbox in a directory of its own. What it has noted is on disk: an intent
// before Intend returns, the rest when Safe does; callers at a time share one fsync. It outlives the process at
// every point, and the machine at every point that was on disk.
//
// One process at a time has it open. Reports are in undecided.jsonl and aside.jsonl, one JSON
// object a line, and may be moved away at any time; the objects' change is one that any way in
// takes.
type File struct {
	cfg  FileConfig
	disk disk
	dir  *directory // nil in tests of other disks

	reports sync.Mutex // held while a report is written

	syncing      sync.Mutex // held during an fsync, and while lost is read; mu is never waited for meanwhile
	firstSyncErr error      // of the first fsync that failed

	mu    sync.Mutex // guards what follows
	owner string
	// observe is told how long each fsync took.
	observer func(time.Duration)
	err      error // why nothing is noted any more
	closed   bool

	last           Ticket
	index          map[Ticket]*indexEntry
	unresolved     map[string][]*indexEntry // those of index without outcome, by key
	replayedOwners map[string]bool          // of what was held when it was opened
	liveBytes      int64                    // bytes of notes that count
	reservedBytes  int64                    // bytes that notes to come may take
	reported       int64                    // bytes of reports
	stats          Stats                    // Aside and Undecided only

	segments  []*segment // by number; the last one is written to
	end       int64      // of the last one
	start     int64      // position at which the last one begins; positions count bytes over all segments of this life
	synced    int64      // position up to which all is on disk
	syncRound chan struct{}
}

var _ Outbox = (*File)(nil)

// A segment is one file of an outbox.
type segment struct {
	number      uint64
	file        diskFile
	size        int64
	liveRecords int // notes that count
	damaged     bool
}

// A place is where a note is. The zero place is nowhere.
type location struct {
	seg    *segment
	offset int64
	size   int32
}

// held is what is in memory of one mutation.
type indexEntry struct {
	key        string
	began      int64 // ms
	time       int64 // ms; of the Change
	outcome    Ticket
	reserve    int64
	concurrent bool
	record     location // of the intent, or of the outcome once there is one
	content    location
}

const (
	defaultLimit = 1 << 30
	maxSegment   = 32 << 20
	minSegment   = 16 << 10
)

// OpenFile opens the outbox of a directory. The error wraps ErrLocked where another process has
// it open, ErrOutboxDamaged, or ErrOutboxFormat. The caller closes it, after its Store's last call.
func OpenFile(cfg FileConfig) (*File, error) {
	if cfg.Dir == "" {
		return nil, errors.New("outbox has no directory")
	}
	dir, err := openDirectory(cfg.Dir)
	if err != nil {
		return nil, err
	}
	f, err := openFile(cfg, dir)
	if err != nil {
		dir.close()
		return nil, fmt.Errorf("open outbox %s: %w", cfg.Dir, err)
	}
	f.dir = dir
	return f, nil
}

func newFile(cfg FileConfig, d disk) *File {
	return &File{cfg: cfg, disk: d, index: map[Ticket]*indexEntry{}, unresolved: map[string][]*indexEntry{}, replayedOwners: map[string]bool{}}
}

func openFile(cfg FileConfig, d disk) (*File, error) {
	if cfg.Limit <= 0 {
		cfg.Limit = defaultLimit
	}
	if cfg.Segment <= 0 {
		cfg.Segment = min(max(cfg.Limit/16, minSegment), maxSegment)
	}
	f := newFile(cfg, d)
	err := f.replay()
	if err == nil {
		err = f.countReports()
	}
	if err != nil {
		err = errors.Join(err, f.release())
		return nil, err
	}
	return f, nil
}

// release closes the segments.
func (f *File) release() (err error) {
	for _, s := range f.segments {
		err = errors.Join(err, s.file.Close())
	}
	return err
}

// Close has on disk what was noted, and lets go of the outbox.
func (f *File) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for f.syncRound != nil { // one fsync
		round := f.syncRound
		f.mu.Unlock()
		<-round
		f.mu.Lock()
	}
	if f.closed {
		return nil
	}
	err := f.syncNow()
	f.closed = true
	err = errors.Join(err, f.release())
	if f.dir != nil {
		err = errors.Join(err, f.dir.close())
	}
	return err
}

// claim makes the outbox that of one store, named account/store.
func (f *File) claim(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.owner != "" {
		return fmt.Errorf("outbox %s serves store %s already", f.cfg.Dir, f.owner)
	}
	for owner := range f.replayedOwners {
		if owner != name {
			return fmt.Errorf("outbox %s holds changes of store %s, not of %s", f.cfg.Dir, owner, name)
		}
	}
	f.owner = name
	return nil
}

// observe has f told how long each fsync takes.
func (f *File) observe(g func(time.Duration)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.observer = g
}

// Durable implements Outbox.
func (f *File) Durable() bool { return true }

// Intend implements Outbox.
func (f *File) Intend(ctx context.Context, in Intent) (Ticket, error) {
	if err := ctx.Err(); err != nil {
		return 0, storage.Ended(ctx)
	}
	b, err := intentRecord(in)
	if err != nil {
		return 0, err
	}
	if len(b) > maxRecordBytes {
		return 0, retry.Permanent(fmt.Errorf("intent of %d bytes, at most %d", len(b), maxRecordBytes))
	}
	// What will be noted of it fits then: its Change, what came, and that it is done.
	h := &indexEntry{began: in.Began.UnixMilli(), concurrent: in.Concurrent, reserve: int64(in.Draft.SizeVT() + 4096)}
	h.key = Pending{Intent: in}.summary(0).Key
	f.mu.Lock()
	t, target, err := f.intend(h, b)
	f.mu.Unlock()
	if err != nil {
		return 0, err
	}
	if err := f.syncTo(ctx, target); err != nil {
		f.mu.Lock()
		defer f.mu.Unlock()
		_ = f.recordNothingDone(t) // else it is found that nothing was done
		return 0, err
	}
	return t, nil
}

// intend notes an intent; f.mu is held.
func (f *File) intend(h *indexEntry, b []byte) (Ticket, int64, error) {
	if err := f.checkLimit(int64(len(b)) + h.reserve); err != nil {
		return 0, 0, err
	}
	f.last++
	t := f.last
	at, err := f.append(b, t, uint64(h.began))
	if err != nil {
		return 0, 0, err
	}
	f.begin(t, h, at)
	return t, f.start + f.end, nil
}

// begin takes in an intent; f.mu is held.
func (f *File) begin(t Ticket, h *indexEntry, at location) {
	f.index[t] = h
	f.reservedBytes += h.reserve
	f.pin(&h.record, at)
	for _, other := range f.unresolved[h.key] {
		other.concurrent, h.concurrent = true, true
	}
	f.unresolved[h.key] = append(f.unresolved[h.key], h)
}

// ended takes a mutation out of those without outcome; f.mu is held.
func (f *File) removeUnresolved(h *indexEntry) {
	if h.outcome != 0 {
		return
	}
	left := slices.DeleteFunc(f.unresolved[h.key], func(x *indexEntry) bool { return x == h })
	if f.unresolved[h.key] = left; len(left) == 0 {
		delete(f.unresolved, h.key)
	}
}

// room says whether so many bytes more may wait; f.mu is held.
func (f *File) checkLimit(n int64) error {
	if f.liveBytes+f.reservedBytes+f.reported+n > f.cfg.Limit {
		f.reported = f.reportBytes() // they may have been moved away
	}
	if f.liveBytes+f.reservedBytes+f.reported+n > f.cfg.Limit {
		return retry.Unavailable(fmt.Errorf("%d mutations wait in %d bytes, and there are %d bytes of reports; at most %d: %w",
			len(f.index), f.liveBytes, f.reported, f.cfg.Limit, ErrOutboxFull))
	}
	return nil
}

func (f *File) pin(at *location, to location) {
	*at = to
	to.seg.liveRecords++
	f.liveBytes += int64(to.size)
}

func (f *File) unpin(at *location) {
	if at.seg != nil {
		at.seg.liveRecords--
		f.liveBytes -= int64(at.size)
		*at = location{}
	}
}

// find returns what is held under a ticket; f.mu is held.
func (f *File) find(t Ticket) (*indexEntry, error) {
	if h := f.index[t]; h != nil {
		return h, nil
	}
	return nil, fmt.Errorf("ticket %d: %w", t, errNotHeld)
}

// Content implements Outbox.
func (f *File) Content(t Ticket, c Content) error {
	b, err := contentRecord(c)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	h, err := f.find(t)
	if err != nil {
		return err
	}
	at, err := f.append(b, t, 0)
	if err != nil {
		return err
	}
	f.unpin(&h.content)
	f.pin(&h.content, at)
	return nil
}

// Outcome implements Outbox.
func (f *File) Outcome(t Ticket, c *pb.Change) (Ticket, error) {
	b, err := outcomeRecord(c)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last++
	settled := f.last
	if err != nil {
		return settled, err
	}
	h, err := f.find(t)
	if err != nil {
		return settled, err
	}
	if c == nil {
		return settled, f.recordNothingDone(t)
	}
	if h.concurrent {
		b[9] |= flagConcurrent // its intent may be gone when this is read
	}
	at, err := f.append(b, t, uint64(settled))
	if err != nil {
		return settled, err
	}
	f.setOutcome(h, settled, c, at)
	return settled, nil
}

// settle takes in an outcome; f.mu is held.
func (f *File) setOutcome(h *indexEntry, settled Ticket, c *pb.Change, at location) {
	f.removeUnresolved(h)
	f.reservedBytes -= h.reserve
	h.reserve, h.outcome, h.time = 0, settled, c.GetTime().AsTime().UnixMilli()
	f.unpin(&h.record)
	f.unpin(&h.content)
	f.pin(&h.record, at)
}

// drop notes that nothing was done; f.mu is held.
func (f *File) recordNothingDone(t Ticket) error {
	if _, err := f.append(newRecord(kindOutcome, 0), t, uint64(f.last)); err != nil {
		return err
	}
	f.forget(t)
	return f.compact()
}

// Done implements Outbox.
func (f *File) Done(t Ticket) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.find(t); err != nil {
		return nil // it is forgotten already
	}
	if _, err := f.append(newRecord(kindDone, 0), t, 0); err != nil {
		return err
	}
	f.forget(t)
	return f.compact()
}

// forget lets go of a mutation; f.mu is held.
func (f *File) forget(t Ticket) {
	if h := f.index[t]; h != nil {
		f.removeUnresolved(h)
		f.unpin(&h.record)
		f.unpin(&h.content)
		f.reservedBytes -= h.reserve
		delete(f.index, t)
	}
}
