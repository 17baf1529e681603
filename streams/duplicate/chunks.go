package duplicate

import (
	"fmt"
	"strings"

	"github.com/millrace/millrace/streams/chunks"
	"github.com/millrace/millrace/streams/digest"
)

// isAt reports whether a store that was asked for a chunk has it. Of a chunk whose MD5 the store does not report, only
// the size is compared.
func isAt(c chunks.Chunk, at Side) bool {
	return at.Presence == Present && at.Object.Size == c.Size &&
		c.Digests().Compare(at.Object.Digests) != digest.Disagree
}

// namedChunks is the number of missing chunks that a message names.
const namedChunks = 5

// describeChunks says which chunks are missing or differ, and how many are excluded by the policy.
func describeChunks(missing []string, more bool, excluded int) string {
	var parts []string
	if len(missing) > 0 {
		names := fmt.Sprintf("%q", missing[:min(len(missing), namedChunks)])
		if more || len(missing) > namedChunks {
			names += " and more"
		}
		parts = append(parts, "chunks that are absent or differ at the destination: "+names)
	}
	if excluded > 0 {
		parts = append(parts, fmt.Sprintf("%d chunks are excluded by the policy", excluded))
	}
	return strings.Join(parts, "; ")
}
