// Package digest computes digests of byte streams, several in one pass, and compares sets of digests.
//
// A digest is lower-case hex. In a set, it is stored under the name of its algorithm.
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
	CRC64NVME = "crc64nvme" // big-endian; the default of S3 for whole multipart objects
)

// A Set maps algorithms to the digests of one sequence of bytes, in lower-case hex.
type Set map[string]string

// An Agreement is the result of comparing two sets.
type Agreement int

// The results. Sets without a common algorithm are Incomparable, which is neither Agree nor Disagree.
const (
	Incomparable Agreement = iota
	Agree
	Disagree
)

// Compare returns Agree if the sets have at least one common algorithm and equal digests for all common algorithms,
// Disagree if any of these digests differ, and Incomparable otherwise.
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

// Union returns the digests of both sets. If both have a digest of the same algorithm, it takes that of s. The sets
// must not disagree.
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

// Only returns the digests of s with the given algorithms.
func (s Set) Only(algs ...string) Set {
	o := Set{}
	for _, alg := range algs {
		if d, ok := s[alg]; ok {
			o[alg] = d
		}
	}
	return o
}

// Validate returns an error if a digest of s is not lower-case hex or has the wrong length. It does not check the
// length for algorithms that millrace does not compute.
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

// HexLen returns the number of hex digits of a digest of alg; 0 for algorithms that millrace does not compute.
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
