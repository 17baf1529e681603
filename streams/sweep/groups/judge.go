package groups

import (
	"fmt"
	"time"

	"github.com/millrace/millrace/streams/chunks"
	"github.com/millrace/millrace/streams/digest"
)

// A Verdict is what a round concludes about a group. It is a count of the round, too.
type Verdict string

// The verdicts.
const (
	Whole      Verdict = "whole"      // each chunk is on record as the document says, and has passed a check
	Unproven   Verdict = "unproven"   // nothing differs, but a chunk has no size, MD5 or passed check on record
	Incomplete Verdict = "incomplete" // a chunk is absent on record
	Different  Verdict = "different"  // sizes or MD5s differ, or the store has another document than the records
	Unreadable Verdict = "unreadable" // the document is not one of chunks
	Young      Verdict = "young"      // one of the former three, but a record is younger than the settle time
	Unknown    Verdict = "unknown"    // the document was not read, as it is archived, or the store must not be read
)

// Orphans counts the chunks that are older than the settle time and have no document. A document with another name may
// name them: that is not looked for.
const Orphans = "orphans"

// findings are the verdicts that are findings.
func findings() []Verdict { return []Verdict{Incomplete, Different, Unreadable} }

// A record is what the manifest has of a copy.
type record struct {
	live    bool
	version string     // of the content; empty: unknown
	size    int64      // negative: unknown
	digests digest.Set // of the content, unless they are only claimed
	passed  bool       // the last check of this content has passed
	time    time.Time  // of the content, or of the delete; zero: none is on record
}

// A source is what a store returns for a document.
type source int

const (
	notRead      source = iota // there is no answer
	notOnRecord                // it is absent
	otherVersion               // its bytes, of another version than that on record
	wasRead                    // its bytes
)

// A group is the complete input of a verdict.
type group struct {
	item     string // the document
	document record
	source   source
	version  string     // on record when it was read
	sum      digest.Set // of the bytes
	fault    error      // why they are not a document of chunks
	named    chunks.Document
	chunks   []record // of named.Chunks
}

// A judgement is a verdict and what it rests on.
type judgement struct {
	verdict  Verdict
	suspects []chunks.Chunk // the copies that a check must look at
	why      string         // of a finding
}

// judge judges a group. It is pure. settled is the time before which the records of a group that is judged have their
// times: an upload, a replacement or a delete that is under way looks like a group that is damaged.
func judge(g group, settled time.Time) judgement {
	j := compare(g)
	switch j.verdict {
	case Incomplete, Different, Unreadable:
		if g.document.version != g.version {
			return judgement{verdict: Young}
		}
		newest := g.document.time
		for _, r := range g.chunks {
			if r.time.After(newest) {
				newest = r.time
			}
		}
		if newest.After(settled) {
			return judgement{verdict: Young}
		}
	}
	return j
}

func compare(g group) judgement {
	itself := []chunks.Chunk{{ID: g.item, Size: g.document.size}}
	switch {
	case g.source == notRead:
		return judgement{verdict: Unknown}
	case g.source == notOnRecord:
		return judgement{Different, itself, "the store does not have the document on record"}
	case g.document.digests.Compare(g.sum) == digest.Disagree:
		return judgement{Different, itself, "the document does not have the digests on record"}
	case g.source == otherVersion && g.document.digests.Compare(g.sum) != digest.Agree:
		return judgement{verdict: Unknown}
	case g.fault != nil:
		return judgement{Unreadable, nil, g.fault.Error()}
	}
	var absent, different []chunks.Chunk
	proven, size := g.named.Size >= 0, int64(0)
	for i, c := range g.named.Chunks {
		r := g.chunks[i]
		size += c.Size
		switch {
		case !r.live:
			absent = append(absent, c)
		case r.size >= 0 && r.size != c.Size, c.Digests().Compare(r.digests) == digest.Disagree:
			different = append(different, c)
		case r.size < 0 || c.MD5 == "" || r.digests[digest.MD5] == "" || !r.passed:
			proven = false
		}
	}
	switch {
	case len(absent) > 0:
		return judgement{Incomplete, append(absent, different...), "absent: " + nameFirst(absent)}
	case len(different) > 0:
		return judgement{Different, different, "different: " + nameFirst(different)}
	case g.named.Size >= 0 && g.named.Size != size:
		return judgement{Different, nil, fmt.Sprintf("the chunks have %d bytes, the file has %d", size, g.named.Size)}
	case !proven:
		return judgement{verdict: Unproven}
	}
	return judgement{verdict: Whole}
}

// nameFirst names the first one of chunks, and counts the others.
func nameFirst(all []chunks.Chunk) string {
	if len(all) == 1 {
		return fmt.Sprintf("%q", all[0].ID)
	}
	return fmt.Sprintf("%q and %d more", all[0].ID, len(all)-1)
}
