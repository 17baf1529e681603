// Package version orders the records of one copy. The table copy_state merges its rows by these versions.
package version

import (
	"encoding/binary"

	"github.com/ClickHouse/ch-go/proto"
)

// A Version orders the records of one copy: by time in milliseconds, then by rank (corrections have rank 0 and lose
// ties), then by the order in Kafka. It is stored as an integer of 128 bits, from the most significant bit: 45 bits
// of time (shifted, so that it is never negative), 1 of rank, 50 of offset, 32 of incarnation.
type Version struct {
	Millis      int64
	Rank        uint64 // 0 or 1
	Offset      uint64
	Incarnation uint32
}

const (
	// Shift is added to times in milliseconds, so that they are never negative.
	Shift = 1 << 44
	// MaxOffset is the highest offset that a Version can hold.
	MaxOffset = 1<<50 - 1
)

// Wide returns the integer of 128 bits.
func (v Version) Wide() proto.UInt128 {
	return proto.UInt128{
		High: uint64(v.Millis+Shift)<<19 | v.Rank<<18 | v.Offset>>32,
		Low:  v.Offset<<32 | uint64(v.Incarnation),
	}
}

// Indexes in the value of a digest in the state. It begins with a version, so that max selects the newest: 8 bytes of
// time, 1 byte that is 1 if the digest is verified, 8 bytes of the order of reports. The id of its change follows (16
// bytes), then the digest. Claimed digests have keys of their own: the name of the algorithm and ClaimMark.
const (
	VerifiedAt = 8
	ChangeAt   = 17
	DigestAt   = 33
)

// ClaimMark ends the keys of claimed digests. It is in the name of no algorithm.
const ClaimMark = "?"

// Digest appends the start of the value of a digest: all but the digest itself. Of one millisecond, reports are newer
// than completions, whose digests were computed later from the object. The last report is the newest, and the first
// completion.
func (v Version) Digest(b []byte, verified, completion bool, change [16]byte) []byte {
	b = binary.BigEndian.AppendUint64(b, uint64(v.Millis+Shift))
	if verified {
		b = append(b, 1)
	} else {
		b = append(b, 0)
	}
	order := (v.Rank+1)<<62 | v.Offset
	if completion {
		order = MaxOffset - v.Offset
	}
	b = binary.BigEndian.AppendUint64(b, order)
	return append(b, change[:]...)
}
