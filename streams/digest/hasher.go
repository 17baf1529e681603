package digest

import (
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"slices"
	"sync"

	"github.com/minio/crc64nvme"
)

// errAlgorithm reports an algorithm that millrace does not compute.
var errAlgorithm = errors.New("unknown digest algorithm")

const (
	// cacheBlock is the number of bytes that all algorithms process before the next bytes are read. It fits into the L1
	// and L2 caches of a core.
	cacheBlock = 32 << 10
	// forkBytes is the smallest length of a Write for which a goroutine per algorithm pays off.
	forkBytes = 128 << 10
	// readBlock is the number of bytes that ReadFrom reads at a time from a long stream.
	readBlock = 512 << 10
)

// A Hasher computes several digests of one stream in one pass. It hashes long writes with all algorithms concurrently.
// No goroutine outlives the call that started it, so a Hasher needs no Close. It is not safe for concurrent use.
type Hasher struct {
	algs   []string
	hashes []hash.Hash
	size   int64
	block  []byte // buffer of ReadFrom; kept by reset
}

var (
	_ io.Writer     = (*Hasher)(nil)
	_ io.ReaderFrom = (*Hasher)(nil)
)

// New returns a Hasher for the given algorithms. Repeated names count once. It returns an error for an algorithm that
// is not Known.
func New(algs ...string) (*Hasher, error) {
	h := &Hasher{}
	for _, alg := range algs {
		if slices.Contains(h.algs, alg) {
			continue
		}
		var f hash.Hash
		switch alg {
		case MD5:
			f = md5.New()
		case SHA1:
			f = sha1.New()
		case SHA256:
			f = sha256.New()
		case SHA512:
			f = sha512.New()
		case CRC64NVME:
			f = crc64nvme.New()
		default:
			return nil, fmt.Errorf("%w %q", errAlgorithm, alg)
		}
		h.algs, h.hashes = append(h.algs, alg), append(h.hashes, f)
	}
	return h, nil
}

// Known reports whether millrace computes alg.
func Known(alg string) bool { return HexLen(alg) > 0 }

// Write adds p to the stream. It never fails.
func (h *Hasher) Write(p []byte) (int, error) {
	h.add(p)
	return len(p), nil
}

func (h *Hasher) add(p []byte) {
	h.size += int64(len(p))
	switch {
	case len(h.hashes) == 1:
		h.hashes[0].Write(p)
	case len(p) >= forkBytes:
		h.fork(p)
	default:
		for rest := p; len(rest) > 0; {
			block := rest[:min(len(rest), cacheBlock)]
			rest = rest[len(block):]
			for _, f := range h.hashes {
				f.Write(block)
			}
		}
	}
}

func (h *Hasher) fork(p []byte) {
	if len(h.hashes) == 0 {
		return
	}
	var wg sync.WaitGroup
	for _, f := range h.hashes[1:] {
		wg.Go(func() { f.Write(p) })
	}
	h.hashes[0].Write(p)
	wg.Wait()
}

// ReadFrom adds all of r to the stream.
func (h *Hasher) ReadFrom(r io.Reader) (int64, error) {
	var n int64
	if h.block == nil {
		h.block = make([]byte, cacheBlock)
	}
	for {
		m, err := fill(r, h.block)
		h.add(h.block[:m])
		n += int64(m)
		if err == io.EOF { //nolint:errorlint // an error that wraps EOF is a failure of the stream
			return n, nil
		}
		if err != nil {
			return n, err
		}
		if len(h.block) < readBlock {
			h.block = make([]byte, readBlock)
		}
	}
}

// fill reads until b is full or r ends. Unlike io.ReadFull, it returns the error of r unchanged.
func fill(r io.Reader, b []byte) (n int, err error) {
	for empty := 0; n < len(b) && err == nil; {
		var m int
		m, err = r.Read(b[n:])
		n += m
		if m > 0 {
			empty = 0
		} else if empty++; empty == 100 && err == nil {
			err = io.ErrNoProgress
		}
	}
	return n, err
}

// Sum returns the digests of all bytes so far. More bytes may follow.
func (h *Hasher) Sum() Set {
	var stack [sha256.Size]byte
	s := make(Set, len(h.algs))
	for i, f := range h.hashes {
		s[h.algs[i]] = hex.EncodeToString(f.Sum(stack[:0]))
	}
	return s
}

// Size returns the number of bytes so far.
func (h *Hasher) Size() int64 { return h.size }

// reset prepares the Hasher for another stream.
func (h *Hasher) reset() {
	h.size = 0
	for _, f := range h.hashes {
		f.Reset()
	}
}

// A Pool keeps Hashers of the same algorithms for reuse. It is safe for concurrent use.
type Pool struct {
	algs []string
	free sync.Pool
}

// NewPool returns a Pool of Hashers for the given algorithms.
func NewPool(algs ...string) (*Pool, error) {
	h, err := New(algs...)
	if err != nil {
		return nil, err
	}
	p := &Pool{algs: h.algs}
	p.free.Put(h)
	return p, nil
}

// Get returns a Hasher for a new stream, with the algorithms of the pool and those in more. It returns an error for an
// algorithm that is not Known.
func (p *Pool) Get(more ...string) (*Hasher, error) {
	for _, alg := range more {
		if !slices.Contains(p.algs, alg) {
			return New(append(slices.Clone(p.algs), more...)...)
		}
	}
	if h, ok := p.free.Get().(*Hasher); ok {
		return h, nil
	}
	return New(p.algs...)
}

// Put returns a Hasher from Get to the pool. The caller must not use it any more.
func (p *Pool) Put(h *Hasher) {
	if len(h.algs) == len(p.algs) {
		h.reset()
		p.free.Put(h)
	}
}
