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

	"github.com/millrace/millrace/bench/s3bench"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/child"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/s3"
	"github.com/millrace/millrace/streams/storage/s3/s3proc"
)

// Storage measures the stores and the outbox and returns the rows in table order. Server and client are processes on
// this machine.
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
	sideWork   = 16 // concurrent items of each side
	largeWork  = 4  // concurrent large items of each side
	space      = "photos"
	rclone     = "rclone"          // the peer's program, built by make peers
	realServer = "versitygw"       // an S3 server, built by make servers
	fromStore  = "source"          // id of the source store
	fromBucket = "source-" + space // its bucket
)

func (r *runner) storageFigures() []figure {
	a := r.amounts
	atLeast := func(bound float64) target { return target{op: ">=", bound: bound, ratio: true} }
	atMost := func(bound float64) target { return target{op: "<=", bound: bound, ratio: true} }
	size, fewer := fmt.Sprintf("%s x 10 KiB", count(a.objects)), fmt.Sprintf("%s x 10 KiB", count(a.diskObjects))
	larges := max(1, a.largeItems/4) // fewer for files, so that the page cache holds them
	const hashing, copying = "rclone hashsum md5 --download", "rclone copy"
	figures := []figure{
		{"s3 in memory: " + size + " read, md5 and sha256", "items/s", hashing, atLeast(3), r.compareRate(inMemory, "hash")},
		{"s3 in memory: " + size + " copied from store to store", "items/s", copying, atLeast(3),
			r.compareRate(inMemory, "copy")},
		{"s3 in memory: the same, both look at what they wrote", "items/s", copying + ", its default", target{},
			r.compareStatted(inMemory)},
		{realServer + ": " + fewer + " read, md5 and sha256", "items/s", hashing, atLeast(1),
			r.compareRate(onDisk, "hash")},
		{realServer + ": processor time of the client for it", "s", hashing, atMost(1), r.compareCPU(onDisk, "hash")},
		{realServer + ": " + fewer + " copied from store to store", "items/s", copying, atLeast(1),
			r.compareRate(onDisk, "copy")},
		{realServer + ": processor time of the client for it", "s", copying, atMost(1), r.compareCPU(onDisk, "copy")},
		{realServer + ": the same copies, both look at what they wrote", "items/s", copying + ", its default", target{},
			r.compareStatted(onDisk)},
		{fmt.Sprintf("s3 in memory: %d x %d MiB read, md5 and sha256", a.largeItems, a.largeSize>>20), "MiB/s",
			"rclone hashsum md5, then sha256",
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
		{"emit: the same, each change acknowledged after 3 ms", "mutations/s", "", target{},
			r.emitRate(3 * time.Millisecond)},
		{fmt.Sprintf("s3 in memory: most memory of a process that lists %s keys", count(a.listed)), "MiB", "",
			target{op: "<=", bound: 64}, r.listMemory},
		{"s3 in memory: listing, through the driver", "keys/s", "", target{}, r.listRate},
	}
	return append(figures, r.copyFigures()...)
}

// cost is the elapsed and the processor time of a side in seconds, process start and exit included.
type cost struct{ seconds, cpu float64 }

// server is an S3 server that both sides use.
type server struct {
	url, access, secret string
	items               int  // number of items in the source store
	statAfterPut        bool // the peer requests each object after writing it
	dropBucket          func(ctx context.Context, bucket string) error
	close               func() error
}

// comparison holds the costs of the rounds of both sides.
type comparison struct {
	ours, peers []cost
	absent      string // the make target that builds the missing program; empty: none is missing
}

// serverKind selects the S3 server of a comparison.
type serverKind int

// The server kinds.
const (
	inMemory serverKind = iota
	onDisk
)

func (r *runner) compareRate(where serverKind, do string) func(context.Context) (measurement, error) {
	return r.compareOf(where, do, func(u cost) float64 { return float64(r.items(where)) / u.seconds })
}

// items returns the number of items that each side processes.
func (r *runner) items(where serverKind) int {
	if where == onDisk {
		return r.amounts.diskObjects
	}
	return r.amounts.objects
}

func (r *runner) compareCPU(where serverKind, do string) func(context.Context) (measurement, error) {
	return r.compareOf(where, do, func(u cost) float64 { return u.cpu })
}

// compareOf returns a figure of a comparison. The first figure of the comparison runs it.
func (r *runner) compareOf(
	where serverKind, do string, of func(cost) float64,
) func(context.Context) (measurement, error) {
	return r.measureOnce(fmt.Sprint(where, do), func(ctx context.Context) (comparison, error) {
		return r.compare(ctx, where, do)
	}, of)
}

// measureOnce returns a figure of the named comparison. The first figure of that name runs the comparison with take.
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

// compareStatted compares our copies with those of a peer that, like ours, requests each object after writing it. Our
// values are those of the copy figure.
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

// compare runs both sides in turns.
func (r *runner) compare(ctx context.Context, where serverKind, do string) (d comparison, err error) {
	s, done, err := r.serve(ctx, where)
	if errors.Is(err, s3proc.ErrNotInstalled) {
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

// peerProgram returns the path of the peer's program, empty if it is not installed.
func (r *runner) peerProgram() (string, error) {
	program := filepath.Join(r.cfg.Peers, rclone)
	_, err := os.Stat(program)
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	return program, err
}

// serve returns a server with a filled source store, and a function to call after use. The server on disk is started
// and filled once.
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

// open returns a store with the prefix as its id and as the prefix of its buckets.
func (s *server) open(prefix string) (*s3.Store, error) {
	return s3.New(s3.Config{
		ID: schemas.Key(mainAccount, prefix), Endpoint: s.url, BucketPrefix: prefix + "-", PathStyle: true,
		Credentials: s3.Credentials{AccessKey: s.access, SecretKey: s.secret},
	})
}

// createStore creates a store with the space unless they exist.
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

// startReal starts an empty server on disk. Its dropBucket works for servers that store a bucket as a directory.
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

// fill puts items of the given sizes. Their bytes differ from item to item and are the same in each run.
func fill(ctx context.Context, store storage.Store, sizes []int64) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(2 * runtime.NumCPU())
	for i, size := range sizes {
		group.Go(func() error {
			var seed [32]byte
			binary.LittleEndian.PutUint64(seed[:], uint64(i)) //nolint:gosec // an index
			content := io.LimitReader(rand.NewChaCha8(seed), size)
			_, err := store.Put(ctx, space, s3bench.Key(i), content, storage.PutOptions{Size: size})
			return err
		})
	}
	return group.Wait()
}

// side runs our side. A copy goes to the store with the id to, which is removed afterwards.
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

// env returns the environment variables with the server's credentials for a child process.
func (s *server) env() []string {
	return []string{accessVariable + "=" + s.access, secretVariable + "=" + s.secret}
}

// runMeasured runs a program until it exits and returns its cost and its standard output, also if the program exits
// with an error.
func runMeasured(ctx context.Context, env []string, program string, args ...string) (u cost, out []byte, err error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = sideStop
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	start := time.Now()
	if err = runChild(cmd); err != nil {
		err = fmt.Errorf("run %s: %w: %s", filepath.Base(program), err, strings.TrimSpace(stderr.String()))
	}
	u.seconds = time.Since(start).Seconds()
	if p := cmd.ProcessState; p != nil {
		u.cpu = (p.UserTime() + p.SystemTime()).Seconds()
	}
	return u, stdout.Bytes(), err
}

// runChild runs a child process until it exits. A terminal's Ctrl-C does not reach the child; the end of its context
// interrupts it once.
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
