package outbox

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	bolt "go.etcd.io/bbolt"
)

// An Inspection describes an outbox on disk.
type Inspection struct {
	Dir   string `json:"dir"`
	Bytes int64  `json:"bytes"` // of the database
	// Pending is the number of mutations in the outbox: their Changes are not acknowledged.
	Pending int `json:"pending"`
	// Unknown lists those without an outcome: it is looked up in the store when a program opens the outbox.
	Unknown []UnknownOutcome `json:"unknown"`
	// Undecided and Rejected are the numbers of reports of undecided mutations and of rejected Changes.
	Undecided int `json:"undecided"`
	Rejected  int `json:"rejected"`
	// Lost is the number of mutations that cannot be read, as far as it is known.
	Lost uint64 `json:"lost"`
	// Damage lists what cannot be read; empty: the outbox is sound.
	Damage []Damage `json:"damage"`
}

// An UnknownOutcome is a mutation without a recorded outcome.
type UnknownOutcome struct {
	Ticket Ticket    `json:"ticket"`
	Op     string    `json:"op"`
	Space  string    `json:"space"`
	Item   string    `json:"item,omitempty"`
	Began  time.Time `json:"began"`
}

// Damage is a part of an outbox that was on disk and cannot be read.
type Damage struct {
	Page   uint64 `json:"page"` // of 4 KiB; 0 if it is that of no page
	Reason string `json:"reason"`
}

func (d Damage) String() string { return fmt.Sprintf("page %d: %s", d.Page, d.Reason) }

// Inspect reads the whole outbox in dir and writes nothing. The error wraps ErrLocked if a process has it
// open, and ErrFormat if another version wrote it.
func Inspect(ctx context.Context, dir string) (Inspection, error) {
	lock, err := lockDirectory(dir, false)
	if err != nil {
		return Inspection{}, err
	}
	in, err := inspect(ctx, dir)
	return in, errors.Join(explain(dir, err), unlockDirectory(lock))
}

func inspect(ctx context.Context, dir string) (Inspection, error) {
	in := Inspection{Dir: dir, Unknown: []UnknownOutcome{}}
	found, err := verify(dir, func(_ []byte, m Mutation) error {
		in.Pending++
		if m.Change == nil {
			d := m.Draft
			op := strings.TrimPrefix(d.GetOp().String(), "OP_")
			in.Unknown = append(in.Unknown, UnknownOutcome{m.Ticket, op, d.GetSpace(), d.GetItem(), m.Began.UTC()})
		}
		return context.Cause(ctx)
	})
	if isNotExist(err) {
		return in, fmt.Errorf("%s is no outbox: %w", dir, err)
	}
	reports, _, rerr := countReports(dir)
	if err := errors.Join(err, rerr); err != nil {
		return in, fmt.Errorf("read outbox %s: %w", dir, err)
	}
	in.Bytes, in.Lost, in.Damage = found.bytes, found.lost, append([]Damage{}, found.damage...)
	in.Undecided, in.Rejected = reports.Undecided, reports.Rejected
	return in, nil
}

// damagedFile is the name of a damaged database, with a number if there is one already.
const damagedFile = databaseFile + ".damaged"

// portionBytes is about how many bytes of records Salvage stores in a transaction.
const portionBytes = 8 << 20

// Salvage repairs the outbox in dir, and returns the Inspection from before. It moves the readable records to a new
// database, and keeps the damaged one under another name; after a kill, call it again. A sound outbox is left
// unchanged.
func Salvage(ctx context.Context, dir string) (Inspection, error) {
	in, err := Inspect(ctx, dir)
	if err != nil || len(in.Damage) == 0 {
		return in, err
	}
	lock, err := lockDirectory(dir, true)
	if err != nil {
		return in, err
	}
	return in, errors.Join(explain(dir, salvage(ctx, lock)), unlockDirectory(lock))
}

func salvage(ctx context.Context, lock *os.File) error {
	return createDatabase(lock, func(db *bolt.DB) error {
		records, size := map[Ticket][]byte{}, 0
		found, err := verify(lock.Name(), func(value []byte, m Mutation) error {
			records[m.Ticket] = value
			if size += len(value); size < portionBytes {
				return context.Cause(ctx)
			}
			defer clear(records)
			size = 0
			return storeRecords(db, records, m.Ticket)
		})
		if err == nil {
			err = storeRecords(db, records, found.last)
		}
		if err != nil {
			return err
		}
		return keepDamaged(lock.Name())
	})
}

// keepDamaged gives the database a second name.
func keepDamaged(dir string) error {
	name := filepath.Join(dir, damagedFile)
	for n := 2; ; n++ {
		err := os.Link(databaseName(dir), name)
		if !errors.Is(err, fs.ErrExist) {
			return err
		}
		name = filepath.Join(dir, damagedFile+"."+strconv.Itoa(n))
	}
}
