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

// ChangeID returns the id of c: a hash of the copy, the op, the content, what the op sets, and the time in milliseconds
// by the clock of the store. ADD, UPDATE and COPY count as one op, so that a Change rebuilt from the state of the store
// has the id of the Change that was published for the write.
//
// The content is its version; without one, its digests; with neither, the ETag and the size of the content that is
// written. What an op sets are the media type and the properties of an item or a space, and the ACL of a space.
// Properties that come with a content do not count: a Change that is rebuilt from a listing does not have them.
//
// A Change that completes another one is a report of that one, and has its id.
func ChangeID(c *pb.Change) string {
	if id := completed(c); id != "" {
		return id
	}
	op := c.GetOp()
	if op == pb.Op_OP_UPDATE || op == pb.Op_OP_COPY {
		op = pb.Op_OP_ADD
	}
	parts := []string{"change", c.GetAccount(), c.GetStore(), c.GetSpace(), c.GetItem(), strconv.Itoa(int(op))}
	switch {
	case c.GetVersion() != "":
		parts = append(parts, "v", c.GetVersion())
	case len(c.GetDigests()) == 0 && op == pb.Op_OP_ADD:
		parts = append(parts, "e", c.GetEtag(), strconv.FormatInt(SizeOf(c), 10))
	default:
		parts = appendPairs(append(parts, "d"), c.GetDigests())
	}
	if op == pb.Op_OP_SET_PROPERTIES || op == pb.Op_OP_SET_SPACE_PROPERTIES || op == pb.Op_OP_CREATE_SPACE {
		parts = append(parts, "p", c.GetMediaType(), strconv.Itoa(len(c.GetProperties())))
		parts = appendPairs(parts, c.GetProperties())
	}
	if op == pb.Op_OP_SET_ACL || op == pb.Op_OP_CREATE_SPACE {
		parts = appendPairs(append(parts, "a", strconv.Itoa(len(c.GetAcl()))), c.GetAcl())
	}
	return ID(append(parts, strconv.FormatInt(c.GetTime().AsTime().UnixMilli(), 10))...)
}

// appendPairs appends the keys of m, sorted, each with its value.
func appendPairs(parts []string, m map[string]string) []string {
	for _, k := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, k, m[k])
	}
	return parts
}

// RestoreID returns the id of a restore order: a hash of its cause and of the copy that gets its content back. One list
// or action orders each copy once.
func RestoreID(c *pb.DuplicationCommand) string {
	return ID("restore", c.GetCause(), c.GetAccount(), c.GetDestinationStore(), c.GetSpace(), c.GetItem())
}

// Completes is a key in the evidence of a Change by a checker or a copier. It marks a completion: a Change that only
// adds computed digests to a content that was reported without any. The value is the id of the Change that reported the
// content, and the completion has that id, too.
const Completes = "completes"

// IsCompletion reports whether c, whose id is set, is a completion.
func IsCompletion(c *pb.Change) bool {
	return c.GetId() != "" && c.GetEvidence()[Completes] == c.GetId()
}

// completed returns the id of the Change that c completes; empty if it completes none. Claims complete nothing.
func completed(c *pb.Change) string {
	id := c.GetEvidence()[Completes]
	if len(id) != 32 || !isHex([]byte(id)) || c.GetProvenance() != pb.Provenance_PROVENANCE_VERIFIED {
		return ""
	}
	switch c.GetOp() {
	case pb.Op_OP_ADD, pb.Op_OP_UPDATE, pb.Op_OP_COPY:
		return id
	}
	return ""
}
