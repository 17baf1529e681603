package schemas

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"maps"
	"slices"
	"strconv"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// ID returns a hash of the parts: 128 bits in hex. It hashes the length of each part too, so that different lists of
// parts have different ids.
func ID(parts ...string) string {
	var stack [512]byte
	b := stack[:0]
	for _, p := range parts {
		b = binary.AppendUvarint(b, uint64(len(p)))
		b = append(b, p...)
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:16])
}

// NewID returns a random id of 128 bits in hex, for messages that describe one execution.
func NewID() string {
	var b [16]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// ChangeID returns the id of c: a hash of the copy, the op, the version (or, without one, the digests) and the time in
// milliseconds by the clock of the store. ADD, UPDATE and COPY count as one op, so that a Change rebuilt from the state
// of the store has the id of the Change that was published for the write.
func ChangeID(c *pb.Change) string {
	op := c.GetOp()
	if op == pb.Op_OP_UPDATE || op == pb.Op_OP_COPY {
		op = pb.Op_OP_ADD
	}
	parts := []string{"change", c.GetAccount(), c.GetStore(), c.GetSpace(), c.GetItem(), strconv.Itoa(int(op))}
	if v := c.GetVersion(); v != "" {
		parts = append(parts, "v", v)
	} else {
		parts = append(parts, "d")
		for _, k := range slices.Sorted(maps.Keys(c.GetDigests())) {
			parts = append(parts, k, c.GetDigests()[k])
		}
	}
	return ID(append(parts, strconv.FormatInt(c.GetTime().AsTime().UnixMilli(), 10))...)
}

// RestoreID returns the id of a restore order: a hash of its cause and of the copy that gets its content back. One list
// or action orders each copy once.
func RestoreID(c *pb.DuplicationCommand) string {
	return ID("restore", c.GetCause(), c.GetAccount(), c.GetDestinationStore(), c.GetSpace(), c.GetItem())
}

// Completes is a key in the evidence of a correction. It marks a correction that only adds digests to a content on
// record without any. The value is the id of the Change that reported the content.
const Completes = "completes"
