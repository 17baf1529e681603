package outbox

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
)

// The database has one bucket. Its keys are tickets in big endian; the key 0 has the summary. A value begins with a
// CRC-32C of the key and the rest of the value, in big endian. In the record of a mutation follow
//
//	 4  u8   1: other mutations of the item ran at the same time
//	 5  i64  start of the mutation in ms
//	13  u64  the ticket at which the outcome was recorded; 0: there is none
//	21       draft, state before, streamed content and outcome, each as a Change after its length plus 1 as a
//	         uvarint; 0: there is none
//
// and in the summary the greatest ticket, the number of records, and the sum of their checksums, each a u64.
const (
	recordHeaderBytes = 21
	summaryBytes      = 28
	maxRecordBytes    = 4 << 20 // a draft and the state before are less than 256 KiB each
	pageBytes         = 4096
	// spareBytes is the size of a database that is not worth making smaller.
	spareBytes = 256 << 10
)

var (
	bucketName = []byte("millrace outbox 2")
	checksum   = crc32.MakeTable(crc32.Castagnoli)
)

func recordKey(t Ticket) []byte { return binary.BigEndian.AppendUint64(nil, uint64(t)) }

// seal fills in the checksum of a value.
func seal(t Ticket, b []byte) []byte {
	binary.BigEndian.PutUint32(b, valueSum(t, b))
	return b
}

func valueSum(t Ticket, b []byte) uint32 {
	return crc32.Update(crc32.Checksum(recordKey(t), checksum), checksum, b[4:])
}

func isSealed(t Ticket, b []byte) bool {
	return len(b) >= 4 && binary.BigEndian.Uint32(b) == valueSum(t, b)
}

func encodeRecord(m Mutation) ([]byte, error) {
	var streamed *pb.Change
	if m.Streamed != nil {
		streamed = &pb.Change{Size: m.Streamed.Size, Digests: m.Streamed.Digests}
	}
	parts := []*pb.Change{m.Draft, m.Before, streamed, m.Change}
	size := recordHeaderBytes
	for _, c := range parts {
		size += binary.MaxVarintLen64 + c.SizeVT()
	}
	b := make([]byte, 4, size)
	flag := byte(0)
	if m.Concurrent {
		flag = 1
	}
	b = binary.BigEndian.AppendUint64(append(b, flag), uint64(m.Began.UnixMilli()))
	b = binary.BigEndian.AppendUint64(b, uint64(m.Outcome))
	for _, c := range parts {
		if c == nil {
			b = append(b, 0)
			continue
		}
		part, err := c.MarshalVT()
		if err != nil {
			return nil, err
		}
		b = append(binary.AppendUvarint(b, uint64(len(part))+1), part...)
	}
	return seal(m.Ticket, b), nil
}

// parseRecord returns a mutation that shares no bytes with b. The error wraps ErrDamaged.
func parseRecord(t Ticket, b []byte) (Mutation, error) {
	if len(b) < recordHeaderBytes || !isSealed(t, b) {
		return Mutation{}, fmt.Errorf("%w: checksum of the record of ticket %d", ErrDamaged, t)
	}
	m := Mutation{
		Ticket: t, Concurrent: b[4] == 1, Began: time.UnixMilli(int64(binary.BigEndian.Uint64(b[5:]))),
		Outcome: Ticket(binary.BigEndian.Uint64(b[13:])), bytes: int64(len(b)),
	}
	var streamed *pb.Change
	b = bytes.Clone(b[recordHeaderBytes:])
	for _, to := range []**pb.Change{&m.Draft, &m.Before, &streamed, &m.Change} {
		size, n := binary.Uvarint(b)
		if n <= 0 || size > uint64(len(b)-n)+1 {
			return Mutation{}, fmt.Errorf("%w: record of ticket %d: %w", ErrDamaged, t, io.ErrUnexpectedEOF)
		}
		if b = b[n:]; size == 0 {
			continue
		}
		*to = &pb.Change{}
		if err := (*to).UnmarshalVTUnsafe(b[:size-1]); err != nil {
			return Mutation{}, fmt.Errorf("%w: record of ticket %d: %w", ErrDamaged, t, err)
		}
		b = b[size-1:]
	}
	if streamed != nil {
		m.Streamed = &Content{digest.Set(streamed.GetDigests()), streamed.GetSize()}
	}
	if m.Change != nil {
		m.Key, m.Time = keyOf(m.Change), time.UnixMilli(m.Change.GetTime().AsTime().UnixMilli())
	} else {
		m.Key = keyOf(m.Draft)
	}
	return m, nil
}

// A summary of all records makes it noticed if some are missing.
type summary struct {
	last  Ticket
	count uint64
	sum   uint64
}

func (s summary) encode() []byte {
	b := make([]byte, 4, summaryBytes)
	for _, n := range []uint64{uint64(s.last), s.count, s.sum} {
		b = binary.BigEndian.AppendUint64(b, n)
	}
	return seal(0, b)
}

func parseSummary(b []byte) (s summary, ok bool) {
	if len(b) != summaryBytes || !isSealed(0, b) {
		return s, false
	}
	at := func(i int) uint64 { return binary.BigEndian.Uint64(b[4+8*i:]) }
	return summary{Ticket(at(0)), at(1), at(2)}, true
}

func (s *summary) add(value []byte) {
	s.count++
	s.sum += uint64(binary.BigEndian.Uint32(value))
}

func (s *summary) remove(value []byte) {
	s.count--
	s.sum -= uint64(binary.BigEndian.Uint32(value))
}

// storeRecords stores records, or deletes them if they are nil, in one transaction. No ticket is greater than last.
func storeRecords(db *bolt.DB, records map[Ticket][]byte, last Ticket) error {
	return db.Update(func(tx *bolt.Tx) error { return applyRecords(tx, records, last) })
}

// applyRecords is storeRecords in a transaction.
func applyRecords(tx *bolt.Tx, records map[Ticket][]byte, last Ticket) error {
	b := tx.Bucket(bucketName)
	b.FillPercent = 0.9 // tickets ascend
	s, ok := parseSummary(b.Get(recordKey(0)))
	if !ok {
		return fmt.Errorf("%w: checksum of the summary", ErrDamaged)
	}
	for _, t := range slices.Sorted(maps.Keys(records)) {
		old, value := b.Get(recordKey(t)), records[t]
		if old != nil {
			s.remove(old)
		}
		var err error
		switch {
		case value != nil:
			s.add(value)
			err = b.Put(recordKey(t), value)
		case old != nil:
			err = b.Delete(recordKey(t))
		}
		if err != nil {
			return err
		}
	}
	s.last = max(s.last, last)
	return b.Put(recordKey(0), s.encode())
}

const (
	databaseFile    = "outbox.db"
	newDatabaseFile = "outbox.db.new" // until it is complete
)

func databaseName(dir string) string { return filepath.Join(dir, databaseFile) }

// openDatabase opens a database that was verified, or creates one.
func openDatabase(name string, sync bool) (*bolt.DB, error) {
	var db *bolt.DB
	err := guard(func() (err error) {
		db, err = bolt.Open(name, 0o600, &bolt.Options{
			Timeout: time.Second, PageSize: pageBytes, NoFreelistSync: true, FreelistType: bolt.FreelistMapType,
			NoStatistics: true, NoSync: !sync, NoGrowSync: !sync,
		})
		return err
	})
	return db, err
}

// createDatabase puts a new database in the place of the one in dir, if there is one. fill stores its records.
func createDatabase(dir *os.File, fill func(*bolt.DB) error) error {
	name := filepath.Join(dir.Name(), newDatabaseFile)
	if err := os.Remove(name); err != nil && !isNotExist(err) {
		return err
	}
	db, err := openDatabase(name, true)
	if err != nil {
		return err
	}
	err = db.Update(func(tx *bolt.Tx) error {
		b, err := tx.CreateBucket(bucketName)
		if err != nil {
			return err
		}
		return b.Put(recordKey(0), summary{}.encode())
	})
	if err == nil {
		err = fill(db)
	}
	if err := errors.Join(err, db.Close()); err != nil {
		return err
	}
	if err := os.Rename(name, databaseName(dir.Name())); err != nil {
		return err
	}
	return dir.Sync()
}

// rewriteMeta writes the two meta pages again. After a failed fsync, the kernel may treat a page as clean that is not
// on disk; the other pages of a transaction are synced before its meta page is written.
func rewriteMeta(dir string) error {
	f, err := os.OpenFile(databaseName(dir), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	b := make([]byte, 2*pageBytes)
	if _, err := f.ReadAt(b, 0); err != nil {
		return err
	}
	if _, err := f.WriteAt(b, 0); err != nil {
		return err
	}
	return f.Sync()
}
