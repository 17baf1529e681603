// Package s3bench is an in-memory S3 server for benchmarks of clients. It runs in a process of its own and uses as
// little CPU as possible.
//
// It does not verify signatures or checksums. It implements the part of HTTP/1.1 and S3 that clients need to list, to
// read, and to put objects in one request; it refuses other requests with 501. Its process exits when its parent does,
// and its data is lost then. For tests of responses see s3test.
package s3bench

import (
	"bufio"
	"context"
	"crypto/md5"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"runtime/debug"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"
)

// A Load is the initial content of a server's bucket.
type Load struct {
	Bucket string
	// Objects is the number of objects, of Size bytes each, with different content. ETags are MD5s up to 16 MiB.
	Objects int
	Size    int64
	// Keys, if above 0, is the number of generated keys, of empty objects, that listings return instead of the
	// bucket's objects.
	Keys int
}

// Key returns the key of object i. Keys sort like their numbers.
func Key(i int) string { return fmt.Sprintf("2026/%05d/img-%08d.tif", i/1000, i) }

// gcPercent is high to leave the CPU to the clients; the heap is mostly bytes of objects.
const gcPercent = 400

// Serve runs the server. It writes the URL of the endpoint to out and returns when in ends.
func Serve(ctx context.Context, load Load, in io.Reader, out io.Writer) error {
	debug.SetGCPercent(gcPercent)
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("serve objects in memory: %w", err)
	}
	s := newServer(load)
	if _, err := fmt.Fprintf(out, "http://%s\n", l.Addr()); err != nil {
		return errors.Join(fmt.Errorf("write the endpoint: %w", err), l.Close())
	}
	var accepting sync.WaitGroup
	accepting.Go(func() { s.accept(l) })
	_, err = io.Copy(io.Discard, in)
	s.closeConns()
	err = errors.Join(err, l.Close())
	accepting.Wait()
	return err
}

// A server stores objects in memory.
type server struct {
	mu      sync.RWMutex // guards the fields below and all buckets
	buckets map[string]*bucket
	conns   map[net.Conn]struct{} // nil after closeConns
}

type bucket struct {
	objects   map[string]*object
	keys      []string
	sorted    bool
	generated int // keys that are listed instead
}

type object struct {
	bytes    []byte
	etag     string
	header   []byte // header lines of responses with the object
	modified time.Time
}

func newServer(load Load) *server {
	s := &server{buckets: map[string]*bucket{}, conns: map[net.Conn]struct{}{}}
	if load.Bucket == "" {
		return s
	}
	const step = 8 // bytes between the starts of two objects, which overlap
	b := &bucket{objects: map[string]*object{}, generated: load.Keys}
	s.buckets[load.Bucket] = b
	all := make([]byte, load.Size+int64(step*load.Objects))
	_, _ = rand.NewChaCha8([32]byte{7}).Read(all) // deterministic; never fails
	now := time.Now()
	for i := range load.Objects {
		o := &object{bytes: all[i*step:][:load.Size:load.Size], modified: now}
		if load.Size > 16<<20 { // as of a multipart upload
			o.etag = etag([]byte(Key(i))) + "-2"
		} else {
			o.etag = etag(o.bytes)
		}
		o.formatHeader([]byte("Content-Type: image/tiff\r\n"))
		b.put(Key(i), o)
	}
	return s
}

func etag(b []byte) string {
	sum := md5.Sum(b)
	return hex.EncodeToString(sum[:])
}

// formatHeader sets the header lines of responses with the object. stored are the lines it was put with.
func (o *object) formatHeader(stored []byte) {
	modified := o.modified.UTC().Format(httpTime)
	o.header = fmt.Appendf(nil, "ETag: \"%s\"\r\nLast-Modified: %s\r\nAccept-Ranges: bytes\r\n%s",
		o.etag, modified, stored)
}

// put makes o the object of a key.
func (b *bucket) put(key string, o *object) {
	if b.objects[key] == nil {
		b.sorted = len(b.keys) == 0 || b.sorted && b.keys[len(b.keys)-1] < key
		b.keys = append(b.keys, key)
	}
	b.objects[key] = o
}

func (b *bucket) remove(key string) {
	delete(b.objects, key)
	b.keys = slices.DeleteFunc(b.keys, func(k string) bool { return k == key })
}

// accept serves connections until the listener is closed.
func (s *server) accept(l net.Listener) {
	var all sync.WaitGroup
	defer all.Wait()
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		s.mu.Lock()
		if s.conns == nil {
			_ = c.Close()
		} else {
			s.conns[c] = struct{}{}
		}
		s.mu.Unlock()
		all.Go(func() {
			defer s.remove(c)
			(&conn{s: s, net: c, in: bufio.NewReaderSize(c, 64<<10)}).serve()
		})
	}
}

func (s *server) remove(c net.Conn) {
	_ = c.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
}

// closeConns closes all connections.
func (s *server) closeConns() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		_ = c.Close()
	}
	s.conns = nil
}

// page calls each for up to limit keys with a prefix after the key after, with their objects (nil for generated keys),
// and reports whether there are more. The caller holds server.mu for writing.
func (b *bucket) page(prefix, after string, limit int, each func(key string, o *object)) (more bool) {
	if b.generated > 0 {
		return b.generatedPage(after, limit, each)
	}
	if !b.sorted {
		slices.Sort(b.keys)
		b.sorted = true
	}
	i, _ := slices.BinarySearch(b.keys, max(after, prefix))
	for ; i < len(b.keys) && strings.HasPrefix(b.keys[i], prefix); i++ {
		if b.keys[i] <= after && after != "" {
			continue
		}
		if limit == 0 {
			return true
		}
		limit--
		each(b.keys[i], b.objects[b.keys[i]])
	}
	return false
}

func (b *bucket) generatedPage(after string, limit int, each func(key string, o *object)) (more bool) {
	lo := sort.Search(b.generated, func(i int) bool { return Key(i) > after })
	end := min(b.generated, lo+limit)
	for ; lo < end; lo++ {
		each(Key(lo), nil)
	}
	return end < b.generated
}
