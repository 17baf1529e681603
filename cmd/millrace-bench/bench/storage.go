package bench

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/child"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/s3"
	"github.com/millrace/millrace/streams/storage/s3/s3bench"
	"github.com/millrace/millrace/streams/storage/s3/s3proc"
)

// Storage takes the figures of stores and of the outbox, in the order of their table: server and client are processes
// that share the machine.
func Storage(ctx context.Context, cfg Config) (rows []Row, err error) {
	r := newRunner(cfg)
	defer func() {
		if r.realServer != nil {
			err = errors.Join(err, r.realServer.close())
		}
	}()
	return r.measure(ctx, r.storageFigures())
}

const (
	itemBytes  = 10 << 10
	largeBytes = 32 << 20
	sideWork   = 16 // items at a time, of either side
	largeWork  = 4  // the same of large ones
	space      = "photos"
	rclone     = "rclone"          // the peer's program, as make peers calls it
	realServer = "versitygw"       // the server's, as make servers calls it
	fromStore  = "source"          // the store that is read
	fromBucket = "source-" + space // its bucket
)

func (r *runner) storageFigures() []figure {
	a := r.amounts
	atLeast := func(bound float64) target { return target{op: ">=", bound: bound, ratio: true} }
	atMost := func(bound float64) target { return target{op: "<=", bound: bound, ratio: true} }
	size, fewer := fmt.Sprintf("%s x 10 KiB", count(a.objects)), fmt.Sprintf("%s x 10 KiB", count(a.diskObjects))
	larges := max(1, a.largeItems/4) // of files, so that the page cache holds them
	const hashing, copying = "rclone hashsum md5 --download", "rclone copy"
	figures := []figure{
		{"s3 in memory: " + size + " read, md5 and sha256", "items/s", hashing, atLeast(3), r.compareRate(inMemory, "hash")},
		{"s3 in memory: " + size + " copied from store to store", "items/s", copying, atLeast(3), r.compareRate(inMemory, "copy")},
		{"s3 in memory: the same, both look at what they wrote", "items/s", copying + ", its default", target{}, r.compareStatted(inMemory)},
		{realServer + ": " + fewer + " read, md5 and sha256", "items/s", hashing, atLeast(1), r.compareRate(onDisk, "hash")},
		{realServer + ": processor time of the client for it", "s", hashing, atMost(1), r.compareCPU(onDisk, "hash")},
		{realServer + ": " + fewer + " copied from store to store", "items/s", copying, atLeast(1), r.compareRate(onDisk, "copy")},
		{realServer + ": processor time of the client for it", "s", copying, atMost(1), r.compareCPU(onDisk, "copy")},
		{realServer + ": the same copies, both look at what they wrote", "items/s", copying + ", its default", target{}, r.compareStatted(onDisk)},
		{fmt.Sprintf("s3 in memory: %d x %d MiB read, md5 and sha256", a.largeItems, a.largeSize>>20), "MiB/s", "rclone hashsum md5, then sha256",
			atLeast(1.2), r.largeItems},
		{fmt.Sprintf("files: %s x 10 KiB read, md5 and sha256", count(a.local)), "items/s", hashdeep, target{},
			r.localItems(a.local, itemBytes, sideWork, float64(a.local))},
		{fmt.Sprintf("files: %d x %d MiB read, md5 and sha256", larges, a.largeSize>>20), "MiB/s", hashdeep, target{},
			r.localItems(larges, a.largeSize, largeWork, float64(larges)*float64(a.largeSize)/(1<<20))},
		{fmt.Sprintf("files: %s x 10 KiB put with properties and digests, %d at once", count(a.written), sideWork), "s",
			"write, fsync, rename, fsync of the directory", atMost(1.8), r.filePuts},
		{"files: a look at an item with digests and properties, cached", "us", "lstat", atMost(3), r.fileStats},
		{fmt.Sprintf("emit: %s puts over a store that does nothing, 256 callers, fsync", count(a.emitted)), "mutations/s", "",
			target{op: ">=", bound: 20_000}, r.emitRate(0)},
		{"emit: the same, each change acknowledged after 3 ms", "mutations/s", "", target{}, r.emitRate(3 * time.Millisecond)},
		{fmt.Sprintf("s3 in memory: most memory of a process that lists %s keys", count(a.listed)), "MiB", "", target{op: "<=", bound: 64}, r.listMemory},
		{"s3 in memory: listing, through the driver", "keys/s", "", target{}, r.listRate},
	}
	return append(figures, r.copyFigures()...)
}

// A cost is what a side took, its start and end included.
type cost struct{ seconds, cpu float64 }

// A server is one that the sides are compared over.
type server struct {
	url, access, secret string
	items               int  // in its source
	statAfterPut        bool // the peer asks what it wrote
	dropBucket          func(ctx context.Context, bucket string) error
	close               func() error
}

// A comparison is what its rounds took.
type comparison struct {
	ours, peers []cost
	absent      string // what would make what is missing
}

type serverKind int

// Where the sides are compared.
const (
	inMemory serverKind = iota
	onDisk
)

func (r *runner) compareRate(where serverKind, do string) func(context.Context) (measurement, error) {
	return r.compareOf(where, do, func(u cost) float64 { return float64(r.items(where)) / u.seconds })
}

// items is how many each side is given.
func (r *runner) items(where serverKind) int {
	if where == onDisk {
		return r.amounts.diskObjects
	}
	return r.amounts.objects
}

func (r *runner) compareCPU(where serverKind, do string) func(context.Context) (measurement, error) {
	return r.compareOf(where, do, func(u cost) float64 { return u.cpu })
}

// compareOf takes a comparison when the first of its figures is asked for.
func (r *runner) compareOf(where serverKind, do string, of func(cost) float64) func(context.Context) (measurement, error) {
	return r.measureOnce(fmt.Sprint(where, do), func(ctx context.Context) (comparison, error) { return r.compare(ctx, where, do) }, of)
}

// once takes the comparison of that name when the first of its figures is asked for.
func (r *runner) measureOnce(
	name string, take func(context.Context) (comparison, error), of func(cost) float64,
) func(context.Context) (measurement, error) {
	return func(ctx context.Context) (m measurement, err error) {
		d, ok := r.compared[name]
		if !ok {
			if d, err = take(ctx); err != nil {
				return m, err
			}
			if r.compared == nil {
				r.compared = map[string]comparison{}
			}
			r.compared[name] = d
		}
		m.absent = d.absent
		for _, u := range d.ours {
			m.ours = append(m.ours, of(u))
		}
		for _, u := range d.peers {
			m.peers = append(m.peers, of(u))
		}
		return m, nil
	}
}

// lookedAt holds our copies against those of a peer that, as ours does, asks the server what it wrote. Ours are those
// of the figure before.
func (r *runner) compareStatted(where serverKind) func(context.Context) (measurement, error) {
	return func(ctx context.Context) (m measurement, err error) {
		if m, err = r.compareRate(where, "copy")(ctx); err != nil || m.absent != "" {
			return m, err
		}
		m.peers = nil
		s, done, err := r.serve(ctx, where)
		if err != nil {
			return m, err
		}
		defer func() { err = errors.Join(err, done()) }()
		peer, err := r.peerProgram()
		if err != nil {
			return m, err
		}
		s.statAfterPut = true
		defer func() { s.statAfterPut = false }()
		for i := range r.amounts.fewRounds() {
			u, err := r.peerCopy(ctx, peer, s, fmt.Sprint("look", i), sideWork)
			if err != nil {
				return m, err
			}
			m.peers = append(m.peers, float64(s.items)/u.seconds)
		}
		return m, nil
	}
}

// compare has the sides take turns.
func (r *runner) compare(ctx context.Context, where serverKind, do string) (d comparison, err error) {
	s, done, err := r.serve(ctx, where)
	if errors.Is(err, s3proc.ErrAbsent) {
		return comparison{absent: "make servers"}, nil
	}
	if err != nil {
		return d, err
	}
	defer func() { err = errors.Join(err, done()) }()
	peer, err := r.peerProgram()
	if err != nil {
		return d, err
	}
	if peer == "" {
		d.absent = "make peers"
	}
	for i := range r.amounts.fewRounds() {
		u, err := r.side(ctx, s, do, fmt.Sprint("ours", i), sideWork)
		if err != nil {
			return d, err
		}
		d.ours = append(d.ours, u)
		if peer == "" {
			continue
		}
		if do == "hash" {
			u, err = r.peerHash(ctx, peer, s, "md5", sideWork)
		} else {
			u, err = r.peerCopy(ctx, peer, s, fmt.Sprint("peer", i), sideWork)
		}
		if err != nil {
			return d, err
		}
		d.peers = append(d.peers, u)
	}
	return d, nil
}

// peer is the peer's program; empty: it is not there.
func (r *runner) peerProgram() (string, error) {
	program := filepath.Join(r.cfg.Peers, rclone)
	_, err := os.Stat(program)
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	return program, err
}

// serve starts a server whose source holds the items, and says what to do in the end. The real one is filled once.
func (r *runner) serve(ctx context.Context, where serverKind) (s *server, done func() error, err error) {
	if where == inMemory {
		s, err = r.serveMemory(ctx, s3bench.Load{Bucket: fromBucket, Objects: r.amounts.objects, Size: itemBytes})
		if err != nil {
			return nil, nil, err
		}
		return s, s.close, nil
	}
	if r.realServer == nil {
		if r.realServer, err = r.serveReal(ctx); err != nil {
			return nil, nil, err
		}
	}
	return r.realServer, func() error { return nil }, nil
}

func (r *runner) serveMemory(ctx context.Context, load s3bench.Load) (*server, error) {
	p, err := s3bench.Start(ctx, r.cfg.Self, "objects", "--bucket", load.Bucket, "--objects", fmt.Sprint(load.Objects),
		"--size", fmt.Sprint(load.Size), "--keys", fmt.Sprint(load.Keys))
	if err != nil {
		return nil, err
	}
	s := &server{url: p.URL, items: load.Objects, access: "bench", secret: "bench", dropBucket: p.Drop, close: p.Close}
	if _, err := s.createStore(ctx, fromStore); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// open returns a store whose spaces are buckets with a prefix, which is its id.
func (s *server) open(prefix string) (*s3.Store, error) {
	return s3.New(s3.Config{
		ID: schemas.Key(mainAccount, prefix), Endpoint: s.url, BucketPrefix: prefix + "-", PathStyle: true,
		Credentials: s3.Credentials{AccessKey: s.access, SecretKey: s.secret},
	})
}

// make makes a store with the space, if they are not there.
func (s *server) createStore(ctx context.Context, prefix string) (storage.Store, error) {
	store, err := s.open(prefix)
	if err != nil {
		return nil, err
	}
	if err := store.WriteMarker(ctx); err != nil {
		return nil, err
	}
	if err := store.CreateSpace(ctx, storage.Space{Name: space}); err != nil && !errors.Is(err, storage.ErrExists) {
		return nil, err
	}
	return store, nil
}

func (r *runner) serveReal(ctx context.Context) (*server, error) {
	s, err := r.startReal(ctx, realServer)
	if err != nil {
		return nil, err
	}
	s.items = r.amounts.diskObjects
	store, err := s.createStore(ctx, fromStore)
	if err == nil {
		err = fill(ctx, store, slices.Repeat([]int64{itemBytes}, r.amounts.diskObjects))
	}
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// startReal starts a real server that holds nothing. Its drop is of servers that keep a bucket as a folder.
func (r *runner) startReal(ctx context.Context, program string) (*server, error) {
	dir, err := os.MkdirTemp("", "millrace-bench-")
	if err != nil {
		return nil, fmt.Errorf("make a directory for the S3 server: %w", err)
	}
	cfg := s3proc.Config{Program: filepath.Join(r.cfg.Peers, program), Dir: dir}
	if program == realServer {
		cfg.Args = []string{"--keep-alive"}
	}
	p, err := s3proc.Start(ctx, cfg)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return &server{
		url: p.URL, access: p.Access, secret: p.Secret,
		dropBucket: func(_ context.Context, bucket string) error { return os.RemoveAll(filepath.Join(dir, "data", bucket)) },
		close:      func() error { return errors.Join(p.Close(), os.RemoveAll(dir)) },
	}, nil
}

// fill puts items of these sizes, whose bytes differ, and are the same each time.
func fill(ctx context.Context, store storage.Store, sizes []int64) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(2 * runtime.NumCPU())
	for i, size := range sizes {
		group.Go(func() error {
			var seed [32]byte
			binary.LittleEndian.PutUint64(seed[:], uint64(i)) //nolint:gosec // an index
			_, err := store.Put(ctx, space, s3bench.Key(i), io.LimitReader(rand.NewChaCha8(seed), size), storage.PutOptions{Size: size})
			return err
		})
	}
	return group.Wait()
}

// side runs our side, in the end of a copy to a store of that name, which is not kept.
func (r *runner) side(ctx context.Context, s *server, do, to string, workers int) (u cost, err error) {
	args := []string{"storageside", "--endpoint", s.url, "--do", do, "--source", fromStore, "--space", space,
		"--workers", fmt.Sprint(workers)}
	if do == "copy" {
		if _, err := s.createStore(ctx, to); err != nil {
			return u, err
		}
		defer func() { err = errors.Join(err, s.dropBucket(ctx, to+"-"+space)) }()
		args = append(args, "--target", to)
	}
	u, _, err = runMeasured(ctx, s.env(), r.cfg.Self, args...)
	return u, err
}

// keys are the variables in which a side finds who it is.
func (s *server) env() []string {
	return []string{accessVariable + "=" + s.access, secretVariable + "=" + s.secret}
}

// spend runs a program to its end, and takes how long that took and how much of the processors.
func runMeasured(ctx context.Context, env []string, program string, args ...string) (u cost, out []byte, err error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = sideStop
	var said, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &complaint
	start := time.Now()
	if err := runChild(cmd); err != nil {
		return u, nil, fmt.Errorf("run %s: %w: %s", filepath.Base(program), err, strings.TrimSpace(complaint.String()))
	}
	took := time.Since(start)
	return cost{took.Seconds(), (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds()}, said.Bytes(), nil
}

// finish runs a side to its end. A terminal's Ctrl-C does not reach it: the end of its context interrupts it, once.
func runChild(cmd *exec.Cmd) error {
	exited, err := child.Start(cmd)
	if err != nil {
		return err
	}
	<-exited
	if !cmd.ProcessState.Success() {
		return &exec.ExitError{ProcessState: cmd.ProcessState}
	}
	return nil
}
