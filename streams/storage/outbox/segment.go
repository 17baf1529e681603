package outbox

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"strconv"
	"strings"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
)

// An outbox on disk is a sequence of segments, numbered without gaps; records are appended to the last one. A segment
// begins with a header, in little endian:
//
//	 0  8 bytes "millrace"
//	 8  u32     format: 1
//	12  u32     CRC-32C of bytes 16 to 32
//	16  u64     number of the segment
//	24  u64     greatest ticket before the segment
//
// Records follow:
//
//	 0  u32     length of the record, including these 4 bytes
//	 4  u32     CRC-32C of the bytes that follow
//	 8  u8      kind;  9 u8 flags;  10 2 bytes 0
//	12  u64     ticket of the mutation
//	20  u64     intent: start of the mutation in ms; outcome: the ticket at which it was recorded
//	28  u64     offset in this segment up to which it was synced when the record was written
//	36          body
//
// Bodies by kind:
//
//	intent    length of the draft as a uvarint, the draft, and the state before unless absent; both as a Change
//	content   size and digests, as a Change
//	outcome   the Change; empty if nothing was done
//	done      empty
const (
	segmentFormat     = 1
	headerBytes       = 32
	recordHeaderBytes = 36
	maxRecordBytes    = 4 << 20 // a draft and the state before are less than 256 KiB each
)

var (
	magic    = []byte("millrace")
	checksum = crc32.MakeTable(crc32.Castagnoli)
)

type kind uint8

const (
	kindIntent kind = iota + 1
	kindContent
	kindOutcome
	kindDone
	kinds
)

const flagConcurrent = 1

// A segmentRecord is one record of a segment.
type segmentRecord struct {
	kind   kind
	flags  uint8
	ticket Ticket
	number uint64
	synced int64
	body   []byte
}

// Errors of the content on disk.
var (
	// ErrDamaged: bytes that were on disk have changed or are missing.
	ErrDamaged = errors.New("outbox is damaged")
	// ErrFormat: another version wrote the outbox.
	ErrFormat = errors.New("outbox has an unknown format")
)

func segmentName(n uint64) string { return fmt.Sprintf("%016x.segment", n) }

func segmentNumber(name string) (uint64, bool) {
	hex, ok := strings.CutSuffix(name, ".segment")
	n, err := strconv.ParseUint(hex, 16, 64)
	return n, ok && err == nil && segmentName(n) == name
}

func segmentHeader(number uint64, last Ticket) []byte {
	b := make([]byte, headerBytes)
	copy(b, magic)
	binary.LittleEndian.PutUint32(b[8:], segmentFormat)
	binary.LittleEndian.PutUint64(b[16:], number)
	binary.LittleEndian.PutUint64(b[24:], uint64(last))
	binary.LittleEndian.PutUint32(b[12:], crc32.Checksum(b[16:], checksum))
	return b
}

// parseHeader parses the result of segmentHeader.
func parseHeader(b []byte) (number uint64, last Ticket, err error) {
	if len(b) < headerBytes || !bytes.Equal(b[:8], magic) {
		return 0, 0, fmt.Errorf("no header: %w", ErrDamaged)
	}
	if f := binary.LittleEndian.Uint32(b[8:]); f != segmentFormat {
		return 0, 0, fmt.Errorf("format %d, want %d: %w", f, segmentFormat, ErrFormat)
	}
	if crc32.Checksum(b[16:headerBytes], checksum) != binary.LittleEndian.Uint32(b[12:]) {
		return 0, 0, fmt.Errorf("checksum of the header: %w", ErrDamaged)
	}
	return binary.LittleEndian.Uint64(b[16:]), Ticket(binary.LittleEndian.Uint64(b[24:])), nil
}

// newRecord returns a record of a kind; finishRecord fills in the rest of its header.
func newRecord(k kind, size int) []byte {
	b := make([]byte, recordHeaderBytes, recordHeaderBytes+size)
	b[8] = byte(k)
	return b
}

// finishRecord fills in the header of a record.
func finishRecord(b []byte, t Ticket, number uint64, synced int64) {
	binary.LittleEndian.PutUint32(b, uint32(len(b)))
	binary.LittleEndian.PutUint64(b[12:], uint64(t))
	binary.LittleEndian.PutUint64(b[20:], number)
	binary.LittleEndian.PutUint64(b[28:], uint64(synced))
	binary.LittleEndian.PutUint32(b[4:], crc32.Checksum(b[8:], checksum))
}

// parseRecord parses the record at the beginning of b and shares its bytes. ok is false if there is none.
func parseRecord(b []byte) (n segmentRecord, size int, ok bool) {
	if len(b) < recordHeaderBytes {
		return segmentRecord{}, 0, false
	}
	size = int(binary.LittleEndian.Uint32(b))
	// The cheap checks come first: resync calls this for each byte of damaged data.
	if k := kind(b[8]); k == 0 || k >= kinds || b[10]|b[11] != 0 {
		return segmentRecord{}, 0, false
	}
	if size < recordHeaderBytes || size > maxRecordBytes || size > len(b) ||
		crc32.Checksum(b[8:size], checksum) != binary.LittleEndian.Uint32(b[4:]) {
		return segmentRecord{}, 0, false
	}
	n = segmentRecord{
		kind: kind(b[8]), flags: b[9], ticket: Ticket(binary.LittleEndian.Uint64(b[12:])),
		number: binary.LittleEndian.Uint64(b[20:]), synced: int64(binary.LittleEndian.Uint64(b[28:])),
		body: b[recordHeaderBytes:size],
	}
	return n, size, true
}

// A segmentVisitor is called with the records of a segment in order, and with each range of damaged bytes
// between them: it is skipped unless damaged returns an error.
type segmentVisitor interface {
	record(n segmentRecord, at int64, size int32) error
	damaged(at, size int64) error
}

// readSegment calls r for the whole segment, and returns where its last record ends. In the last segment,
// an incomplete record at the end that was never synced is left out.
func readSegment(b []byte, last bool, r segmentVisitor) (end int64, err error) {
	end = headerBytes
	for at := headerBytes; at < len(b); {
		n, size, ok := parseRecord(b[at:])
		if ok {
			if err := r.record(n, int64(at), int32(size)); err != nil {
				return end, fmt.Errorf("record at byte %d: %w", at, err)
			}
			at += size
			end = int64(at)
			continue
		}
		next := resync(b, at)
		if last && torn(b, at, next) {
			return end, nil
		}
		if err := r.damaged(int64(at), int64(next-at)); err != nil {
			return end, err
		}
		at = next
	}
	return end, nil
}

// resync returns the offset of the next record after at, or the length of b if there is none.
func resync(b []byte, at int) int {
	for at++; at < len(b); at++ {
		if _, _, ok := parseRecord(b[at:]); ok {
			return at
		}
	}
	return len(b)
}

// torn reports whether the invalid bytes at an offset were never known to be synced: no later record says
// that they were.
func torn(b []byte, at, next int) bool {
	for next < len(b) {
		n, size, ok := parseRecord(b[next:])
		if !ok {
			next = resync(b, next)
			continue
		}
		if n.synced > int64(at) {
			return false
		}
		next += size
	}
	return true
}

func intentRecord(in Mutation) ([]byte, error) {
	size := in.Draft.SizeVT()
	b := newRecord(kindIntent, 2*binary.MaxVarintLen64+size+in.Before.SizeVT())
	if in.Concurrent {
		b[9] |= flagConcurrent
	}
	b = binary.AppendUvarint(b, uint64(size))
	b, err := appendChange(b, in.Draft)
	if err != nil || in.Before == nil {
		return b, err
	}
	return appendChange(b, in.Before)
}

// appendChange appends c to b, which has the capacity for it.
func appendChange(b []byte, c *pb.Change) ([]byte, error) {
	n, size := len(b), c.SizeVT()
	b = b[:n+size]
	_, err := c.MarshalToSizedBufferVT(b[n:])
	return b, err
}

func parseIntent(body []byte) (draft, before *pb.Change, err error) {
	size, n := binary.Uvarint(body)
	if n <= 0 || size > uint64(len(body)-n) {
		return nil, nil, io.ErrUnexpectedEOF
	}
	if draft, err = parseChange(body[n : n+int(size)]); err != nil {
		return nil, nil, err
	}
	if rest := body[n+int(size):]; len(rest) > 0 {
		before, err = parseChange(rest)
	}
	return draft, before, err
}

func parseChange(b []byte) (*pb.Change, error) {
	c := &pb.Change{}
	if err := c.UnmarshalVTUnsafe(bytes.Clone(b)); err != nil {
		return nil, err
	}
	return c, nil
}

func contentRecord(c Content) ([]byte, error) {
	ch := &pb.Change{Size: c.Size, Digests: c.Digests}
	return appendChange(newRecord(kindContent, ch.SizeVT()), ch)
}

func parseContent(b []byte) (*Content, error) {
	c, err := parseChange(b)
	if err != nil {
		return nil, err
	}
	return &Content{digest.Set(c.GetDigests()), c.GetSize()}, nil
}

func outcomeRecord(c *pb.Change) ([]byte, error) {
	if c == nil {
		return newRecord(kindOutcome, 0), nil
	}
	return appendChange(newRecord(kindOutcome, c.SizeVT()), c)
}
