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

// ID returns 128 bits, in hex, that are a function of the parts, each taken with its length.
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

// NewID returns a random id, for what is made once per execution.
func NewID() string {
	var b [16]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// ChangeID returns the id of c: a function of where, what, which content, and when in
// milliseconds by the store's clock. ADD, UPDATE and COPY count as one op, so that a
// Change rebuilt from what is there has the id of the one that was sent.
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

// Completes is a key of the evidence of a correction that adds digests to a content that is on record without any. Its
// value is the id of the Change that reported the content.
const Completes = "completes"
