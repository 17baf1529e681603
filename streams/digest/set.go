// Package digest computes digests of byte streams, many in one pass, and says how
// sets of digests agree.
//
// A digest is lower-case hex under its algorithm's name.
package digest

import (
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"fmt"
	"maps"
	"slices"

	"github.com/minio/crc64nvme"
)

// The algorithms that millrace computes.
const (
	MD5       = "md5"
	SHA1      = "sha1"
	SHA256    = "sha256"
	SHA512    = "sha512"
	CRC64NVME = "crc64nvme" // big-endian; S3's own for whole objects in parts
)

// A Set holds digests of one sequence of bytes: algorithm to lower-case hex.
type Set map[string]string

// An Agreement is how two sets compare.
type Agreement int

// The three ways: sets with no algorithm in common cannot be compared, which is
// neither yes nor no.
const (
	Incomparable Agreement = iota
	Agree
	Disagree
)

// Compare says Agree when the sets share at least one algorithm and agree on every
// one they share, Disagree when they differ on one, else Incomparable.
func (s Set) Compare(o Set) Agreement {
	result := Incomparable
	for alg, d := range s {
		if e, ok := o[alg]; ok {
			if d != e {
				return Disagree
			}
			result = Agree
		}
	}
	return result
}

// Union returns the digests of both; where both hold one, that of s. It is only
// meant for sets that do not disagree.
func (s Set) Union(o Set) Set {
	u := maps.Clone(o)
	if u == nil {
		u = Set{}
	}
	maps.Copy(u, s)
	return u
}

// Algorithms returns the names of the algorithms in s, sorted.
func (s Set) Algorithms() []string { return slices.Sorted(maps.Keys(s)) }

// Only returns the digests of s whose algorithms are named.
func (s Set) Only(algs ...string) Set {
	o := Set{}
	for _, alg := range algs {
		if d, ok := s[alg]; ok {
			o[alg] = d
		}
	}
	return o
}

// Validate says which digest of s cannot be one: not lower-case hex, or not as long as
// its algorithm's are. Of algorithms that millrace does not compute only the form is judged.
func (s Set) Validate() error {
	for _, alg := range s.Algorithms() {
		d := s[alg]
		if n := HexLen(alg); d == "" || len(d)%2 != 0 || n > 0 && len(d) != n {
			return fmt.Errorf("digest %s %q has a wrong length", alg, d)
		}
		for i := range len(d) {
			if c := d[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
				return fmt.Errorf("digest %s %q is not lower-case hex", alg, d)
			}
		}
	}
	return nil
}

// HexLen returns how long a digest of alg is in hex; 0 for algorithms that are not computed.
func HexLen(alg string) int {
	switch alg {
	case MD5:
		return 2 * md5.Size
	case SHA1:
		return 2 * sha1.Size
	case SHA256:
		return 2 * sha256.Size
	case SHA512:
		return 2 * sha512.Size
	case CRC64NVME:
		return 2 * crc64nvme.Size
	}
	return 0
}
