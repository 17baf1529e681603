package outbox

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math"
	"os"
	"path/filepath"
)

// bbolt has no checksums of its pages, and follows damaged ones to a panic, an endless loop or other pages' bytes. So
// every page in use is verified, with the layout of version 2 of bbolt's files, before bbolt opens the file.
const (
	boltMagic   = 0xED0CDAED
	boltVersion = 2

	pageHeaderBytes = 16 // u64 number, u16 flags, u16 elements, u32 further pages that belong to this one
	elementBytes    = 16 // of a branch: u32 position, u32 bytes of the key, u64 page; of a leaf: four u32, see leaf
	metaBytes       = 64
	flagBranch      = 1
	flagLeaf        = 2
	flagMeta        = 4
	leafBucket      = 1 // flag of an element of a leaf: the value is a bucket
	bucketBytes     = 16
	noFreelist      = math.MaxUint64
	largestTicket   = Ticket(math.MaxUint64)
	metaPages       = 2
	mostFurther     = 5 * maxRecordBytes / pageBytes // bbolt does not split a page of four records
)

// A verification is the result of verify.
type verification struct {
	last   Ticket // the greatest of an intent or outcome
	bytes  int64  // of the database
	lost   uint64 // records that cannot be read, of those that the summary counts
	damage []Damage
}

// A verifier reads a database page by page, and writes nothing.
type verifier struct {
	verification

	file    io.ReaderAt
	high    uint64          // pages from this on are not in use
	seen    map[uint64]bool // pages in use
	record  func(value []byte, m Mutation) error
	summary *summary // nil: it was not read
	read    summary  // of the records that were read
}

// verify reads all records of the database in dir, and calls record for each that can be read. The error is that of
// record, or wraps ErrFormat or fs.ErrNotExist; damage is no error.
func verify(dir string, record func(value []byte, m Mutation) error) (verification, error) {
	if old, err := filepath.Glob(filepath.Join(dir, "*.segment")); err != nil || len(old) > 0 {
		return verification{}, errors.Join(err, fmt.Errorf("%w: %s", ErrFormat, old))
	}
	file, err := os.Open(databaseName(dir))
	if err != nil {
		return verification{}, err
	}
	defer file.Close()
	st, err := file.Stat()
	if err != nil {
		return verification{}, err
	}
	v := &verifier{file: file, seen: map[uint64]bool{}, record: record}
	v.bytes = st.Size()
	root, err := v.metas()
	if err == nil && root > 0 {
		err = v.root(root)
	}
	if err != nil {
		return verification{}, err
	}
	v.last = max(v.last, v.read.last)
	switch {
	case v.summary == nil:
		v.damaged(0, "the summary cannot be read")
	case v.summary.count != v.read.count || v.summary.sum != v.read.sum:
		v.last = max(v.last, v.summary.last)
		v.lost = max(v.summary.count, v.read.count) - v.read.count
		v.damaged(0, "%d of %d records can be read", v.read.count, v.summary.count)
	default:
		v.last = max(v.last, v.summary.last)
	}
	return v.verification, nil
}

func (v *verifier) damaged(page uint64, format string, args ...any) {
	v.damage = append(v.damage, Damage{page, fmt.Sprintf(format, args...)})
}

// metas reads the two meta pages, and returns the root page of the newer transaction; 0: neither can be read. An
// interrupted write of a meta page leaves it whole, as it lies within a sector, so both are valid in a sound file.
func (v *verifier) metas() (root uint64, err error) {
	b := make([]byte, metaPages*pageBytes)
	if _, err := v.file.ReadAt(b, 0); err != nil && !errors.Is(err, io.EOF) {
		return 0, err
	}
	var txids [metaPages]uint64
	var newest uint64
	for i := range uint64(metaPages) {
		p := b[i*pageBytes:][:pageBytes]
		m := p[pageHeaderBytes:][:metaBytes]
		sum := fnv.New64a()
		_, _ = sum.Write(m[:metaBytes-8]) // it never fails
		u32, u64 := binary.NativeEndian.Uint32, binary.NativeEndian.Uint64
		if u32(m) != boltMagic || sum.Sum64() != u64(m[56:]) ||
			u64(p) != i || binary.NativeEndian.Uint16(p[8:]) != flagMeta {
			v.damaged(i, "no meta page")
			continue
		}
		if u32(m[4:]) != boltVersion || u32(m[8:]) != pageBytes || u64(m[32:]) != noFreelist && u64(m[48:]) > 1 {
			return 0, fmt.Errorf("%w: version %d of bbolt, pages of %d bytes", ErrFormat, u32(m[4:]), u32(m[8:]))
		}
		if txids[i] = u64(m[48:]); txids[i] >= newest {
			newest, root, v.high = txids[i], u64(m[16:]), u64(m[40:])
		}
	}
	if len(v.damage) == 0 && max(txids[0], txids[1])-min(txids[0], txids[1]) != 1 {
		v.damaged(0, "the meta pages are of transactions %d and %d", txids[0], txids[1])
	}
	return root, nil
}

// page returns the bytes of a page, and of those that belong to it; nil if it is damaged.
func (v *verifier) page(id uint64) ([]byte, error) {
	if id < metaPages || id >= v.high || v.seen[id] {
		v.damaged(id, "is not in use, or twice")
		return nil, nil
	}
	b := make([]byte, pageBytes)
	if ok, err := v.readAt(b, id); !ok || err != nil {
		return nil, err
	}
	further := uint64(binary.NativeEndian.Uint32(b[12:]))
	if binary.NativeEndian.Uint64(b) != id || further >= v.high-id || further > mostFurther {
		v.damaged(id, "header")
		return nil, nil
	}
	for i := range further + 1 {
		if v.seen[id+i] {
			v.damaged(id+i, "is in use twice")
			return nil, nil
		}
		v.seen[id+i] = true
	}
	if further > 0 {
		b = make([]byte, (further+1)*pageBytes)
		if ok, err := v.readAt(b, id); !ok || err != nil {
			return nil, err
		}
	}
	return b, nil
}

func (v *verifier) readAt(b []byte, page uint64) (ok bool, err error) {
	_, err = v.file.ReadAt(b, int64(page)*pageBytes)
	if errors.Is(err, io.EOF) {
		v.damaged(page, "is behind the end of the file")
		return false, nil
	}
	return err == nil, err
}

// slice returns n bytes of a page; nil if they are not in it.
func slice(page []byte, at, n uint64) []byte {
	if at > uint64(len(page)) || n > uint64(len(page))-at {
		return nil
	}
	return page[at : at+n]
}

// An element is one of a page: of a leaf with a value, of a branch with the page that it refers to.
type element struct {
	flags uint32
	key   []byte // nil: damaged
	value []byte
	page  uint64
}

// elements returns the elements of a page of a kind; nil if it is another.
func elements(page []byte, kind uint16) []element {
	n := uint64(binary.NativeEndian.Uint16(page[10:]))
	if binary.NativeEndian.Uint16(page[8:]) != kind || slice(page, pageHeaderBytes, n*elementBytes) == nil {
		return nil
	}
	all := make([]element, n)
	for i := range all {
		at := pageHeaderBytes + uint64(i)*elementBytes
		u32 := func(i uint64) uint64 { return uint64(binary.NativeEndian.Uint32(page[at+i:])) }
		if kind == flagBranch {
			all[i] = element{key: slice(page, at+u32(0), u32(4)), page: binary.NativeEndian.Uint64(page[at+8:])}
			continue
		}
		all[i] = element{
			flags: uint32(u32(0)), key: slice(page, at+u32(4), u32(8)), value: slice(page, at+u32(4)+u32(8), u32(12)),
		}
	}
	return all
}

// root verifies the root page, which has only the bucket.
func (v *verifier) root(id uint64) error {
	p, err := v.page(id)
	if p == nil {
		return err
	}
	all := elements(p, flagLeaf)
	if len(all) != 1 || all[0].flags != leafBucket || len(all[0].value) < bucketBytes {
		v.damaged(id, "has no bucket")
		return nil
	}
	if !bytes.Equal(all[0].key, bucketName) {
		if bytes.HasPrefix(all[0].key, []byte("millrace outbox ")) {
			return fmt.Errorf("%w: %s", ErrFormat, all[0].key)
		}
		v.damaged(id, "has another bucket")
		return nil
	}
	bucket := all[0].value
	if child := binary.NativeEndian.Uint64(bucket); child > 0 {
		return v.tree(child, 0, largestTicket)
	}
	if bucket = bucket[bucketBytes:]; len(bucket) < pageHeaderBytes {
		v.damaged(id, "has half a bucket")
		return nil
	}
	return v.leaf(id, bucket, 0, largestTicket)
}

// tree verifies the pages from one on, whose keys are from least to largest.
func (v *verifier) tree(id uint64, least, largest Ticket) error {
	p, err := v.page(id)
	if p == nil {
		return err
	}
	all := elements(p, flagBranch)
	if all == nil {
		return v.leaf(id, p, least, largest)
	}
	for i, e := range all { // the key of a page is its first one
		from, to := ticketOf(e.key), largest
		if i+1 < len(all) {
			to = ticketOf(all[i+1].key) - 1
		}
		if len(e.key) != 8 || from < least || from > to || to > largest {
			v.damaged(id, "key %d", i)
			from, to = least, largest
		}
		least = from + 1
		if err := v.tree(e.page, from, to); err != nil {
			return err
		}
	}
	return nil
}

// ticketOf returns the ticket of a key, 0 if it is none.
func ticketOf(key []byte) Ticket {
	if len(key) != 8 {
		return 0
	}
	return Ticket(binary.BigEndian.Uint64(key))
}

// leaf verifies the records of a page, whose keys are from least to largest.
func (v *verifier) leaf(id uint64, page []byte, least, largest Ticket) error {
	all := elements(page, flagLeaf)
	if all == nil {
		v.damaged(id, "is no page of records")
	}
	for i, e := range all {
		if len(e.key) != 8 || e.flags != 0 {
			v.damaged(id, "key %d", i)
			continue
		}
		t := ticketOf(e.key)
		if t < least || t > largest {
			v.damaged(id, "ticket %d is between those of other pages", t)
			continue
		}
		least = t + 1
		if t == 0 {
			if s, ok := parseSummary(e.value); ok {
				v.summary = &s
			}
			continue
		}
		m, err := parseRecord(t, e.value)
		if err != nil {
			v.damaged(id, "%v", err)
			continue
		}
		v.read.last = max(v.read.last, t, m.Outcome)
		v.read.add(e.value)
		if err := v.record(e.value, m); err != nil {
			return err
		}
	}
	return nil
}
