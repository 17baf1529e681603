package outbox

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"slices"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// Config configures a File. Dir is required.
type Config struct {
	// Dir is a directory for this outbox only; it is created if needed.
	Dir string
	// Limit bounds the bytes of pending mutations and reports [1 GiB]; at the limit, new mutations are refused.
	// The file takes up to twice as much; it is made smaller when an empty outbox is opened. A pending Change takes
	// about 300 bytes of memory and at least 300 on disk.
	Limit int64
	// Commit carries out the transactions in tests: it calls commit or does not, and returns an error or not. No
	// transaction is synced then [each is committed and synced].
	Commit func(commit func() error) error
}

// A File is an Outbox in a directory of its own: a bbolt database, and the reports undecided.jsonl and
// rejected.jsonl, one JSON object per line. Concurrent callers share a transaction: one of those that wait for
// their records stores all records that wait.
//
// One process at a time can open it. The reports may be moved away at any time; the field change is in the format
// that the other producers of Changes accept.
type File struct {
	cfg Config
	dir *os.File // locked
	db  *bolt.DB

	reports sync.Mutex // held while a report is written

	mu    sync.Mutex // guards the fields below
	owner string
	// observer is called with the duration of each transaction; may be nil.
	observer func(time.Duration)
	err      error // the failure after which nothing is recorded any more
	refused  error // the failure of the last transaction for lack of space; nil: it succeeded
	closed   bool

	last           Ticket
	index          map[Ticket]*indexEntry
	withoutOutcome map[string][]*indexEntry // the entries of index without a recorded outcome, by key
	owners         map[string]bool          // account/store of the mutations of earlier processes
	liveBytes      int64                    // bytes of held mutations
	reservedBytes  int64                    // bytes that later records of held mutations may take
	reported       int64                    // bytes of reports
	stats          Stats                    // Rejected and Undecided only

	waiting *batch // for the next transaction
	storing *batch // in the transaction in progress; nil: there is none
}

var _ Outbox = (*File)(nil)

// An indexEntry is a held mutation in memory, as Held returns it.
type indexEntry struct {
	Mutation

	reserve int64 // bytes that its later records may take
}

// A batch has the records of one transaction.
type batch struct {
	records map[Ticket][]byte // nil: deleted
	done    chan struct{}     // closed when the transaction has ended
	ended   bool
	err     error
}

func newBatch() *batch { return &batch{records: map[Ticket][]byte{}, done: make(chan struct{})} }

const (
	defaultLimit = 1 << 30
	// maxWaiting bounds the records that wait for another caller's transaction.
	maxWaiting = 512
)

var errClosed = errors.New("outbox is closed")

// Open opens the outbox of a directory. The error wraps ErrLocked if the outbox is open already,
// ErrDamaged or ErrFormat. The caller closes the File after the last call of its Store.
func Open(cfg Config) (*File, error) {
	if cfg.Limit <= 0 {
		cfg.Limit = defaultLimit
	}
	if cfg.Dir == "" {
		return nil, errors.New("outbox has no directory")
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, explain(cfg.Dir, fmt.Errorf("make outbox: %w", err))
	}
	dir, err := lockDirectory(cfg.Dir, true)
	if err != nil {
		return nil, err
	}
	f := &File{
		cfg: cfg, dir: dir, index: map[Ticket]*indexEntry{}, withoutOutcome: map[string][]*indexEntry{},
		owners: map[string]bool{}, waiting: newBatch(),
	}
	err = f.load()
	if err == nil {
		f.stats, f.reported, err = countReports(cfg.Dir)
	}
	if err != nil {
		if f.db != nil {
			err = errors.Join(err, f.db.Close())
		}
		return nil, explain(cfg.Dir, fmt.Errorf("open outbox %s: %w", cfg.Dir, errors.Join(err, unlockDirectory(dir))))
	}
	return f, nil
}

// load verifies the database, fills the index, and opens the database.
func (f *File) load() error {
	found, err := verify(f.cfg.Dir, func(_ []byte, m Mutation) error { return f.loaded(m) })
	switch {
	case isNotExist(err):
		err = createDatabase(f.dir, func(*bolt.DB) error { return nil })
	case err != nil:
		return err
	case len(found.damage) > 0:
		return fmt.Errorf("%w: %s", ErrDamaged, found.damage[0])
	case len(f.index) == 0 && found.bytes > spareBytes:
		err = createDatabase(f.dir, func(db *bolt.DB) error { return storeRecords(db, nil, found.last) })
	default:
		if err = rewriteMeta(f.cfg.Dir); err == nil {
			err = f.dir.Sync()
		}
	}
	if err != nil {
		return err
	}
	f.last = found.last
	f.db, err = openDatabase(databaseName(f.cfg.Dir), f.cfg.Commit == nil)
	return err
}

// loaded adds a mutation of an earlier process to the index.
func (f *File) loaded(m Mutation) error {
	c := m.Change
	if c == nil {
		c = m.Draft
	}
	f.owners[c.GetAccount()+"/"+c.GetStore()] = true
	reserve := reserveOf(m)
	m.Draft, m.Before, m.Streamed, m.Change = nil, nil, nil, nil
	f.begin(&indexEntry{m, reserve})
	return nil
}

// Close stores the records that wait, and releases the outbox.
func (f *File) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil
	}
	err := f.await(nil, f.waiting)
	for f.storing != nil {
		err = errors.Join(err, f.await(nil, f.storing))
	}
	f.closed = true
	return errors.Join(err, f.db.Close(), unlockDirectory(f.dir))
}

// Claim reserves the outbox for one store, named account/store. It fails if the outbox is reserved already, or
// holds mutations of another store.
func (f *File) Claim(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.owner != "" {
		return fmt.Errorf("outbox %s already serves store %s", f.cfg.Dir, f.owner)
	}
	for owner := range f.owners {
		if owner != name {
			return fmt.Errorf("outbox %s holds changes of store %s, not of %s", f.cfg.Dir, owner, name)
		}
	}
	f.owner = name
	return nil
}

// ObserveSync sets a function that is called with the duration of each transaction.
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
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.usable(); err != nil {
		return 0, err
	}
	if f.refused != nil { // another try, before more records wait
		if err := f.await(ctx.Done(), f.waiting); err != nil {
			return 0, contextErr(ctx, err)
		}
	}
	h := &indexEntry{
		Mutation{Ticket: f.last + 1, Key: keyOf(in.Draft), Began: in.Began, Concurrent: in.Concurrent}, reserveOf(in),
	}
	for _, other := range f.withoutOutcome[h.Key] {
		h.Concurrent = true
		if err := f.setConcurrent(other); err != nil {
			return 0, err
		}
	}
	full := h.Mutation
	full.Draft, full.Before = in.Draft, in.Before
	b, err := encodeRecord(full)
	if err != nil {
		return 0, err
	}
	if len(b) > maxRecordBytes {
		return 0, retry.Permanent(fmt.Errorf("intent of %d bytes, at most %d", len(b), maxRecordBytes))
	}
	h.bytes = int64(len(b))
	if err := f.checkLimit(h.bytes + h.reserve); err != nil {
		return 0, err
	}
	f.last++
	f.begin(h)
	if err := f.record(ctx.Done(), h.Ticket, b); err != nil {
		f.forget(h)
		f.waiting.records[h.Ticket] = nil // if that fails, the look-up finds that nothing was done
		return 0, contextErr(ctx, err)
	}
	return h.Ticket, nil
}

// setConcurrent records that other mutations of the same item ran at the same time; f.mu is held.
func (f *File) setConcurrent(h *indexEntry) error {
	if h.Concurrent {
		return nil
	}
	m, err := f.read(h.Ticket)
	if err != nil {
		return err
	}
	m.Concurrent = true
	b, err := encodeRecord(m)
	if err != nil {
		return err
	}
	h.Concurrent = true
	f.waiting.records[h.Ticket] = b
	return nil
}

// begin adds a mutation to the index; f.mu is held.
func (f *File) begin(h *indexEntry) {
	f.index[h.Ticket] = h
	f.liveBytes += h.bytes
	f.reservedBytes += h.reserve
	if h.Outcome == 0 {
		f.withoutOutcome[h.Key] = append(f.withoutOutcome[h.Key], h)
	}
}

// forget removes a mutation from the index; f.mu is held.
func (f *File) forget(h *indexEntry) {
	left := slices.DeleteFunc(f.withoutOutcome[h.Key], func(x *indexEntry) bool { return x == h })
	if f.withoutOutcome[h.Key] = left; len(left) == 0 {
		delete(f.withoutOutcome, h.Key)
	}
	f.liveBytes -= h.bytes
	f.reservedBytes -= h.reserve
	delete(f.index, h.Ticket)
}

// reserveOf returns how many bytes the later records of a mutation may take.
func reserveOf(m Mutation) int64 {
	if m.Change != nil {
		return 0
	}
	return int64(m.Draft.SizeVT() + 4096)
}

// checkLimit returns ErrFull unless n more bytes fit; f.mu is held.
func (f *File) checkLimit(n int64) error {
	if f.liveBytes+f.reservedBytes+f.reported+n > f.cfg.Limit {
		f.reported = reportBytes(f.cfg.Dir) // the files may have been moved away
	}
	if f.liveBytes+f.reservedBytes+f.reported+n > f.cfg.Limit {
		return retry.Unavailable(fmt.Errorf("%d mutations take %d bytes and reports %d bytes; at most %d: %w",
			len(f.index), f.liveBytes, f.reported, f.cfg.Limit, ErrFull))
	}
	return nil
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
	f.mu.Lock()
	defer f.mu.Unlock()
	h, err := f.find(t)
	if err != nil {
		return err
	}
	m, err := f.read(t)
	if err != nil {
		return err
	}
	m.Streamed = &c
	b, err := encodeRecord(m)
	if err != nil {
		return err
	}
	f.liveBytes += int64(len(b)) - h.bytes
	h.bytes = int64(len(b))
	return f.record(nil, t, b)
}

// Outcome implements Outbox.
func (f *File) Outcome(t Ticket, c *pb.Change) (Ticket, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last++
	outcome := f.last
	h, err := f.find(t)
	if err == nil {
		err = f.usable()
	}
	if err != nil {
		return outcome, err
	}
	if c == nil {
		return outcome, f.remove(h)
	}
	m := h.Mutation
	m.Outcome, m.Change = outcome, c
	b, err := encodeRecord(m)
	if err != nil {
		return outcome, err
	}
	f.forget(h)
	h.Outcome, h.Time, h.bytes, h.reserve = outcome, c.GetTime().AsTime(), int64(len(b)), 0
	f.begin(h)
	f.waiting.records[t] = b
	return outcome, nil
}

// Done implements Outbox.
func (f *File) Done(t Ticket) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	h := f.index[t]
	if h == nil {
		return nil // already deleted
	}
	if err := f.usable(); err != nil {
		return err
	}
	return f.remove(h)
}

// remove deletes a mutation; f.mu is held.
func (f *File) remove(h *indexEntry) error {
	f.forget(h)
	f.waiting.records[h.Ticket] = nil
	if len(f.waiting.records) >= maxWaiting && f.refused == nil {
		return f.await(nil, f.waiting)
	}
	return nil
}

// Safe implements Outbox.
func (f *File) Safe(ctx context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.waiting.records) == 0 && f.storing == nil && f.err == nil {
		return nil
	}
	return contextErr(ctx, f.await(ctx.Done(), f.waiting))
}

// contextErr returns the error of an await until the end of ctx.
func contextErr(ctx context.Context, err error) error {
	if errors.Is(err, errStopped) {
		return storage.ContextErr(ctx)
	}
	return err
}

// Held implements Outbox.
func (f *File) Held() iter.Seq[Mutation] {
	return func(yield func(Mutation) bool) {
		f.mu.Lock()
		all := make([]Mutation, 0, len(f.index))
		for _, h := range f.index {
			all = append(all, h.Mutation)
		}
		f.mu.Unlock()
		for _, h := range sortedByTicket(all) {
			if !yield(h) {
				return
			}
		}
	}
}

// Read implements Outbox.
func (f *File) Read(t Ticket) (Mutation, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.find(t); err != nil {
		return Mutation{}, err
	}
	return f.read(t)
}

// Stats implements Outbox.
func (f *File) Stats() Stats {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.stats
	s.Pending, s.Bytes, s.Err = len(f.index), f.liveBytes, f.err
	return s
}
