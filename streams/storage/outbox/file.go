package outbox

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
	"github.com/millrace/millrace/streams/storage/outbox/disk"
)

// Config configures a File. Dir is required.
type Config struct {
	// Dir is a directory for this outbox only; it is created if needed.
	Dir string
	// Limit bounds the bytes of pending mutations and reports [1 GiB]; at the limit, new mutations are refused.
	// Disk usage may exceed it by a quarter plus two segments. A pending Change takes about 550 bytes of
	// memory and at least 300 on disk: set a lower limit if memory is scarce.
	Limit int64
	// Segment is the approximate size of a segment file in bytes [Limit/16, at most 32 MiB].
	Segment int64
	// Salvage opens a damaged outbox: readable records are kept, and damaged segments are renamed to
	// NAME.damaged. Mutations without readable records are not published.
	Salvage bool
	// Disk replaces Dir in tests [the directory Dir, locked].
	Disk disk.Disk
}

// A File is an Outbox in a directory of its own. An intent is on disk before Intend returns, all other
// records when Safe returns; concurrent callers share one fsync. Records survive the death of the process
// as soon as they are written, and a crash of the machine as soon as they are synced.
//
// One process at a time can open it. Reports are in undecided.jsonl and rejected.jsonl, one JSON object per
// line. The files may be moved away at any time; the field change is in the format that the other producers
// of Changes accept.
type File struct {
	cfg  Config
	disk disk.Disk
	dir  *directory // nil: Config.Disk is set

	reports sync.Mutex // held while a report is written

	syncing      sync.Mutex // held during an fsync and to read firstSyncErr; its holder never waits for mu
	firstSyncErr error      // error of the first fsync that failed

	mu    sync.Mutex // guards the fields below
	owner string
	// observer is called with the duration of each fsync; may be nil.
	observer func(time.Duration)
	err      error // the failed fsync after which nothing is recorded any more
	closed   bool

	last           Ticket
	index          map[Ticket]*indexEntry
	withoutOutcome map[string][]*indexEntry // the entries of index without a recorded outcome, by key
	replayedOwners map[string]bool          // account/store of all replayed records
	liveBytes      int64                    // bytes of live records
	reservedBytes  int64                    // bytes that later records of held mutations may take
	reported       int64                    // bytes of reports
	stats          Stats                    // Rejected and Undecided only

	segments []*segment // by number; records are appended to the last one
	end      int64      // write offset in the last segment
	// start is the log offset at which the last segment begins: log offsets count bytes over all segments since Open.
	start     int64
	synced    int64         // log offset up to which everything is on disk
	syncRound chan struct{} // closed at the end of the fsync in progress; nil: there is none
}

var _ Outbox = (*File)(nil)

// A segment is one file of an outbox.
type segment struct {
	number      uint64
	file        disk.File
	size        int64
	liveRecords int // records that are still needed
	damaged     bool
}

// A location says where a record is on disk; the zero location means nowhere.
type location struct {
	seg    *segment
	offset int64
	size   int32
}

// An indexEntry is a held mutation in memory.
type indexEntry struct {
	key        string
	began      int64 // ms
	time       int64 // of the Change, in ms
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

// Open opens the outbox of a directory. The error wraps ErrLocked if the outbox is open already,
// ErrDamaged or ErrFormat. The caller closes the File after the last call of its Store.
func Open(cfg Config) (*File, error) {
	if cfg.Disk != nil {
		return openFile(cfg, cfg.Disk)
	}
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
		return nil, explain(cfg.Dir, fmt.Errorf("open outbox %s: %w", cfg.Dir, err))
	}
	f.dir = dir
	return f, nil
}

func newFile(cfg Config, d disk.Disk) *File {
	return &File{
		cfg: cfg, disk: d, index: map[Ticket]*indexEntry{}, withoutOutcome: map[string][]*indexEntry{},
		replayedOwners: map[string]bool{},
	}
}

func openFile(cfg Config, d disk.Disk) (*File, error) {
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

// Close syncs all records and releases the outbox.
func (f *File) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for f.syncRound != nil { // wait for the fsync in progress
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

// Claim reserves the outbox for one store, named account/store. It fails if the outbox is reserved already, or
// holds mutations of another store.
func (f *File) Claim(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.owner != "" {
		return fmt.Errorf("outbox %s already serves store %s", f.cfg.Dir, f.owner)
	}
	for owner := range f.replayedOwners {
		if owner != name {
			return fmt.Errorf("outbox %s holds changes of store %s, not of %s", f.cfg.Dir, owner, name)
		}
	}
	f.owner = name
	return nil
}

// ObserveSync sets a function that is called with the duration of each fsync.
func (f *File) ObserveSync(g func(time.Duration)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.observer = g
}

// Intend implements Outbox.
func (f *File) Intend(ctx context.Context, in Mutation) (Ticket, error) {
	if err := ctx.Err(); err != nil {
		return 0, storage.ContextErr(ctx)
	}
	b, err := intentRecord(in)
	if err != nil {
		return 0, err
	}
	if len(b) > maxRecordBytes {
		return 0, retry.Permanent(fmt.Errorf("intent of %d bytes, at most %d", len(b), maxRecordBytes))
	}
	// The reserve ensures that the later records fit: content, outcome and done.
	h := &indexEntry{
		key: keyOf(in.Draft), began: in.Began.UnixMilli(), concurrent: in.Concurrent,
		reserve: int64(in.Draft.SizeVT() + 4096),
	}
	f.mu.Lock()
	t, target, err := f.intend(h, b)
	f.mu.Unlock()
	if err != nil {
		return 0, err
	}
	if err := f.syncTo(ctx, target); err != nil {
		f.mu.Lock()
		defer f.mu.Unlock()
		_ = f.recordNothingDone(t) // if that fails, the look-up finds that nothing was done
		return 0, err
	}
	return t, nil
}

// intend records an intent; f.mu is held.
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

// begin adds an intent to the index; f.mu is held.
func (f *File) begin(t Ticket, h *indexEntry, at location) {
	f.index[t] = h
	f.reservedBytes += h.reserve
	f.pin(&h.record, at)
	for _, other := range f.withoutOutcome[h.key] {
		other.concurrent, h.concurrent = true, true
	}
	f.withoutOutcome[h.key] = append(f.withoutOutcome[h.key], h)
}

// removeWithoutOutcome removes a mutation from those without a recorded outcome; f.mu is held.
func (f *File) removeWithoutOutcome(h *indexEntry) {
	if h.outcome != 0 {
		return
	}
	left := slices.DeleteFunc(f.withoutOutcome[h.key], func(x *indexEntry) bool { return x == h })
	if f.withoutOutcome[h.key] = left; len(left) == 0 {
		delete(f.withoutOutcome, h.key)
	}
}

// checkLimit returns ErrFull unless n more bytes fit; f.mu is held.
func (f *File) checkLimit(n int64) error {
	if f.liveBytes+f.reservedBytes+f.reported+n > f.cfg.Limit {
		f.reported = f.reportBytes() // the files may have been moved away
	}
	if f.liveBytes+f.reservedBytes+f.reported+n > f.cfg.Limit {
		return retry.Unavailable(fmt.Errorf("%d mutations take %d bytes and reports %d bytes; at most %d: %w",
			len(f.index), f.liveBytes, f.reported, f.cfg.Limit, ErrFull))
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

// find returns the mutation with a ticket; f.mu is held.
func (f *File) find(t Ticket) (*indexEntry, error) {
	if h := f.index[t]; h != nil {
		return h, nil
	}
	return nil, fmt.Errorf("ticket %d: %w", t, ErrNotHeld)
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
	outcome := f.last
	if err != nil {
		return outcome, err
	}
	h, err := f.find(t)
	if err != nil {
		return outcome, err
	}
	if c == nil {
		return outcome, f.recordNothingDone(t)
	}
	if h.concurrent {
		b[9] |= flagConcurrent // the intent may be removed by the time this is read
	}
	at, err := f.append(b, t, uint64(outcome))
	if err != nil {
		return outcome, err
	}
	f.setOutcome(h, outcome, c, at)
	return outcome, nil
}

// setOutcome adds an outcome to the index; f.mu is held.
func (f *File) setOutcome(h *indexEntry, outcome Ticket, c *pb.Change, at location) {
	f.removeWithoutOutcome(h)
	f.reservedBytes -= h.reserve
	h.reserve, h.outcome, h.time = 0, outcome, c.GetTime().AsTime().UnixMilli()
	f.unpin(&h.record)
	f.unpin(&h.content)
	f.pin(&h.record, at)
}

// recordNothingDone records that a mutation was not made, and deletes it; f.mu is held.
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
		return nil // already deleted
	}
	if _, err := f.append(newRecord(kindDone, 0), t, 0); err != nil {
		return err
	}
	f.forget(t)
	return f.compact()
}

// forget removes a mutation from the index; f.mu is held.
func (f *File) forget(t Ticket) {
	if h := f.index[t]; h != nil {
		f.removeWithoutOutcome(h)
		f.unpin(&h.record)
		f.unpin(&h.content)
		f.reservedBytes -= h.reserve
		delete(f.index, t)
	}
}
