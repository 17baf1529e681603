package policy

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Limits of an exclusion list.
const (
	maxListLines = 1_000_000
	maxListLine  = 1024 // bytes, as the longest item id
)

// A List is the content of an ExcludeList. It keeps 16 bytes for each line: items are excluded by the first half of the
// SHA-256 of their line, which nobody can make equal for two lines.
type List struct {
	ref ExcludeList
	// lines are sorted.
	lines []lineSum
	// algorithms are those of the digests in the list, by the length of their hex form.
	algorithms []string
}

type lineSum [16]byte

func sumOf(line []byte) lineSum {
	sum := sha256.Sum256(line)
	return lineSum(sum[:])
}

// algorithmOf returns the algorithm of a digest in hex; empty if it is none that lists may have.
func algorithmOf(hexDigest string) string {
	switch len(hexDigest) {
	case 32:
		return "md5"
	case 2 * sha256.Size:
		return "sha256"
	}
	return ""
}

// ReadList reads the content of an exclusion list: one id or digest per line, without comments. Empty lines, the order
// of lines, and carriage returns at their ends do not matter. It returns an error unless the content has the SHA-256 of
// ref.
func ReadList(r io.Reader, ref ExcludeList) (*List, error) {
	sum := sha256.New()
	all := io.TeeReader(r, sum)
	l := &List{ref: ref}
	err := l.read(all)
	if err == nil || errors.Is(err, errLine) {
		// The digest of the rest says whether this is the list at all.
		if _, rest := io.Copy(io.Discard, all); rest != nil {
			return nil, rest
		}
		if got := hex.EncodeToString(sum.Sum(nil)); got != ref.SHA256 {
			return nil, fmt.Errorf("its SHA-256 is %s, and the policy names %s", got, ref.SHA256)
		}
	}
	if err != nil {
		return nil, err
	}
	slices.SortFunc(l.lines, func(a, b lineSum) int { return bytes.Compare(a[:], b[:]) })
	l.lines = slices.Clone(slices.Compact(l.lines)) // gives back what append has reserved
	return l, nil
}

// errLine is in errors about the content of a list.
var errLine = errors.New("malformed list")

func (l *List) read(r io.Reader) error {
	b := bufio.NewReaderSize(r, 64<<10)
	for n := 1; ; n++ {
		line, err := b.ReadSlice('\n')
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, bufio.ErrBufferFull) {
			return fmt.Errorf("read line %d: %w", n, err)
		}
		end := errors.Is(err, io.EOF)
		line = bytes.TrimSuffix(bytes.TrimSuffix(line, []byte("\n")), []byte("\r"))
		switch {
		case len(line) > maxListLine:
			return fmt.Errorf("%w: line %d has more than %d bytes", errLine, n, maxListLine)
		case len(line) > 0 && len(l.lines) == maxListLines:
			return fmt.Errorf("%w: it has more than %d lines", errLine, maxListLines)
		case len(line) > 0:
			if err := l.add(line, n); err != nil {
				return err
			}
		}
		if end {
			return nil
		}
	}
}

func (l *List) add(line []byte, n int) error {
	if l.ref.Of == OfDigests {
		line = bytes.ToLower(line)
		alg := algorithmOf(string(line))
		if _, err := hex.DecodeString(string(line)); err != nil || alg == "" {
			return fmt.Errorf("%w: line %d is no MD5 or SHA-256 in hex", errLine, n)
		}
		if !slices.Contains(l.algorithms, alg) {
			l.algorithms = append(l.algorithms, alg)
		}
	}
	l.lines = append(l.lines, sumOf(line))
	return nil
}

// Bytes returns the memory that the list takes.
func (l *List) Bytes() int64 { return int64(len(l.lines)) * int64(len(lineSum{})) }

// Len returns the number of different lines.
func (l *List) Len() int { return len(l.lines) }

func (l *List) has(line string) bool {
	sum := sumOf([]byte(line))
	_, found := slices.BinarySearchFunc(l.lines, sum, func(a, b lineSum) int { return bytes.Compare(a[:], b[:]) })
	return found
}

// excludes reports whether the list has an item. certain is false if that depends on digests that are not in c.
func (l *List) excludes(item string, c Content) (excluded, certain bool) {
	if l.ref.Of != OfDigests {
		return l.has(item), true
	}
	certain = true
	for _, alg := range l.algorithms {
		d := strings.ToLower(c.Digests[alg])
		if d != "" && l.has(d) {
			return true, true
		}
		certain = certain && d != ""
	}
	return false, certain
}
