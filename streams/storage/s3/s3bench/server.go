// Package s3bench is an S3 server in memory for figures: a process of its own, as servers are, that costs the
// machine next to nothing, so that what is measured is its clients.
//
// It believes every signature and every checksum, speaks just enough of HTTP/1.1 and S3 for clients that read, list
// and put objects in one request, and refuses all else with 501. What it holds is gone with its process, which ends
// when whoever started it does, however that ends. For tests of what a service may answer see s3test.
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

// A Load is what a server's bucket holds at first.
type Load struct {
	Bucket string
	// Objects of Size bytes each, no two alike. Up to 16 MiB their ETags are MD5s.
	Objects int
	Size    int64
	// Keys that listings of the bucket tell of, instead of what it holds: made up meanwhile, and of no bytes.
	Keys int
}

// Key is that of the ith object. Keys sort as their numbers do.
func Key(i int) string { return fmt.Sprintf("2026/%05d/img-%08d.tif", i/1000, i) }

// serverGC lets garbage lie: what is put is bytes, and the processor is the clients'.
const gcPercent = 400

// Serve is the server's process: it writes to out the endpoint's URL and ends when in ends.
func Serve(ctx context.Context, load Load, in io.Reader, out io.Writer) error {
	debug.SetGCPercent(gcPercent)
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("serve objects in memory: %w", err)
	}
	s := newServer(load)
	if _, err := fmt.Fprintf(out, "http://%s\n", l.Addr()); err != nil {
		return errors.Join(fmt.Errorf("say where the server is: %w", err), l.Close())
	}
	var accepting sync.WaitGroup
	accepting.Go(func() { s.accept(l) })
	_, err = io.Copy(io.Discard, in)
	s.closeConns()
	err = errors.Join(err, l.Close())
	accepting.Wait()
	return err
}

// A server keeps objects in memory.
type server struct {
	mu      sync.RWMutex // guards the rest, and all buckets
	buckets map[string]*bucket
	conns   map[net.Conn]struct{} // nil: it has ended
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
	header   []byte // lines of a header that tell of it
	modified time.Time
}

func newServer(load Load) *server {
	s := &server{buckets: map[string]*bucket{}, conns: map[net.Conn]struct{}{}}
	if load.Bucket == "" {
		return s
	}
	const step = 8 // bytes from one object to the next: they lie over one another
	b := &bucket{objects: map[string]*object{}, generated: load.Keys}
	s.buckets[load.Bucket] = b
	all := make([]byte, load.Size+int64(step*load.Objects))
	_, _ = rand.NewChaCha8([32]byte{7}).Read(all) // the same each time; it never fails
	now := time.Now()
	for i := range load.Objects {
		o := &object{bytes: all[i*step:][:load.Size:load.Size], modified: now}
		if load.Size > 16<<20 { // as what was uploaded in parts
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

// tell makes the lines that tell of the object; kept are those it was put with.
func (o *object) formatHeader(kept []byte) {
	o.header = fmt.Appendf(nil, "ETag: \"%s\"\r\nLast-Modified: %s\r\nAccept-Ranges: bytes\r\n%s", o.etag, o.modified.UTC().Format(httpTime), kept)
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

// end closes all connections.
func (s *server) closeConns() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		_ = c.Close()
	}
	s.conns = nil
}

// page tells of up to limit keys after one, below a prefix, each with its object (nil: it is made up), and whether there are more.
// s.mu is held for writing.
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
