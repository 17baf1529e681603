package clickhouse

import (
	"encoding/binary"
	"errors"

	"github.com/ClickHouse/ch-go/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
)

// A version orders what is told of one copy: by time in milliseconds, then by rank
// (corrections lose ties), then by Kafka's order. As one integer of 128 bits, from the top:
// 45 of time (shifted, so that it is never negative), 1 of rank, 50 of offset, 32 of incarnation.
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

func versionOf(d *schemas.Delivery, t *timestamppb.Timestamp, rank uint64) (version, error) {
	ms, err := toMillis(t)
	if err != nil {
		return version{}, err
	}
	if d.Offset < 0 || d.Offset > maxOffset {
		return version{}, errors.New("its offset is out of range")
	}
	return version{ms, rank, uint64(d.Offset), d.Incarnation}, nil
}

func (v version) wide() proto.UInt128 {
	return proto.UInt128{
		High: uint64(v.millis+millisShift)<<19 | v.rank<<18 | v.offset>>32,
		Low:  v.offset<<32 | uint64(v.incarnation),
	}
}

// A digest's value in the state begins with its version, so that the greatest is the
// newest: 8 bytes of time, 1 that says whether it is verified, 8 of rank and offset; then
// 16 of the change that told it, then the digest.
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
