// Package digest computes digests of byte streams, many in one pass, and says how
// sets of digests agree.
//
// A digest is lower-case hex under its algorithm's name. The package uses the standard
// library only.
package digest

import "maps"

// The algorithms that millrace computes.
const (
	MD5    = "md5"
	SHA1   = "sha1"
	SHA256 = "sha256"
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
