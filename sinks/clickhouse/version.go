package clickhouse

import (
	"encoding/binary"

	"github.com/ClickHouse/ch-go/proto"
)

// A version orders the records of one copy: by time in milliseconds, then by rank (corrections have rank 0 and lose
// ties), then by the order in Kafka. It is stored as an integer of 128 bits, from the most significant bit: 45 bits
// of time (shifted, so that it is never negative), 1 of rank, 50 of offset, 32 of incarnation.
type version struct {
	millis      int64
	rank        uint64 // 0 or 1
	offset      uint64
	incarnation uint32
}

const (
	millisShift = 1 << 44
	maxOffset   = 1<<50 - 1
)

func (v version) wide() proto.UInt128 {
	return proto.UInt128{
		High: uint64(v.millis+millisShift)<<19 | v.rank<<18 | v.offset>>32,
		Low:  v.offset<<32 | uint64(v.incarnation),
	}
}

// The value of a digest in the state begins with a version, so that max selects the newest: 8 bytes of time, 1 byte
// that is 1 if the digest is verified, 8 bytes of rank and offset. The id of its change follows (16 bytes), then the
// digest.
const (
	verifiedAt = 8
	changeAt   = 17
	digestAt   = 33
)

func (v version) digest(b []byte, verified bool, change [16]byte) []byte {
	b = binary.BigEndian.AppendUint64(b, uint64(v.millis+millisShift))
	if verified {
		b = append(b, 1)
	} else {
		b = append(b, 0)
	}
	b = binary.BigEndian.AppendUint64(b, v.rank<<62|v.offset)
	return append(b, change[:]...)
}
