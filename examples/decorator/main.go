// Command decorator stores files such that nothing that it does is lost: each becomes an
// item of a file store, and a Change on the topic changes. While Kafka is away it goes on, the
// Changes wait in the outbox, and the next run tells of them.
//
// The store is known by its marker, which the first run writes with -init. Without the marker nothing is stored: the
// directory may be a mount point on which nothing is mounted.
//
//	decorator -init -root /srv/photos -outbox /var/lib/photos/outbox </dev/null
//	decorator -brokers 127.0.0.1:9092 -account acme -store 1 -space photos -root /srv/photos -outbox /var/lib/photos/outbox a.jpg b.jpg
//	find . -type f | decorator ...
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"mime"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/emit"
	"github.com/millrace/millrace/streams/storage/file"
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	cancel()
	os.Exit(code)
}

type options struct {
	brokers, prefix, account, store, space, root, outbox, user string
	wait                                                       time.Duration
	init                                                       bool
}

// run returns 0 where all files are stored, 1 where some are not, and 2 for bad arguments.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	var o options
	flags := flag.NewFlagSet("decorator", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&o.brokers, "brokers", "127.0.0.1:9092", "addresses of brokers, with commas between")
	flags.StringVar(&o.prefix, "prefix", "millrace.", "what names of topics begin with")
	flags.StringVar(&o.account, "account", "acme", "the account")
	flags.StringVar(&o.store, "store", "1", "the store's id")
	flags.StringVar(&o.space, "space", "files", "the space to store in")
	flags.StringVar(&o.root, "root", "", "the store's directory")
	flags.StringVar(&o.outbox, "outbox", "", "the directory of the outbox, of this program only")
	flags.StringVar(&o.user, "user", os.Getenv("USER"), "on whose behalf")
	flags.BoolVar(&o.init, "init", false, "make the directory, and write the marker that carries the store's id")
	flags.DurationVar(&o.wait, "wait", 10*time.Second, "how long to wait at the end for what Kafka has not acknowledged")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if o.root == "" || o.outbox == "" {
		fmt.Fprintln(stderr, "decorator wants -root and -outbox")
		return 2
	}
	paths := slices.Values(flags.Args())
	if flags.NArg() == 0 {
		paths = lines(stdin)
	}
	if err := o.do(ctx, paths, stdout, slog.New(slog.NewTextHandler(stderr, nil))); err != nil {
		fmt.Fprintln(stderr, "decorator:", err)
		return 1
	}
	return 0
}

func lines(r io.Reader) iter.Seq[string] {
	return func(yield func(string) bool) {
		for s := bufio.NewScanner(r); s.Scan(); {
			if !yield(s.Text()) {
				return
			}
		}
	}
}

// do stores the files, and tells of them.
func (o options) do(ctx context.Context, paths iter.Seq[string], stdout io.Writer, log *slog.Logger) (err error) {
	files, err := file.Open(file.Config{ID: o.store, Root: o.root, Create: o.init})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, files.Close()) }()
	if o.init {
		err = files.WriteMarker(ctx)
	} else if err = files.Marker(ctx); err != nil { // emit asks too, before it writes
		err = fmt.Errorf("%w; see that %s is mounted, or make it the store once with -init", err, o.root)
	}
	if err != nil {
		return err
	}
	outbox, err := emit.OpenFile(emit.FileConfig{Dir: o.outbox})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, outbox.Close()) }()
	producer, err := kafka.NewProducer(kafka.Config{Brokers: strings.Split(o.brokers, ","), ClientID: "decorator", Prefix: o.prefix}, "decorator")
	if err != nil {
		return err
	}
	defer producer.Close() // twice is once
	s, err := emit.New(files, emit.Config{Account: o.account, Store: o.store, Agent: "decorator", Outbox: outbox, Log: log}, producer)
	if err != nil {
		return err
	}
	running, stop := context.WithCancel(ctx)
	defer stop()
	var g errgroup.Group
	g.Go(func() error { return s.Run(running) })
	stored, err := o.putAll(emit.WithUser(ctx, o.user), s, paths, stdout)
	o.settle(ctx, outbox)
	stop()
	producer.Close() // gives up what nobody acknowledges; the outbox has it
	err = errors.Join(err, g.Wait())
	fmt.Fprintf(stdout, "%d stored, %d changes wait in the outbox\n", stored, outbox.Stats().Held)
	return err
}

// settle waits for what is not acknowledged yet; what then is not waits for the next run.
func (o options) settle(ctx context.Context, outbox *emit.File) {
	ctx, cancel := context.WithTimeout(ctx, o.wait)
	defer cancel()
	for outbox.Stats().Held > 0 && retry.Sleep(ctx, 20*time.Millisecond) == nil {
	}
}

// putAll stores the files, sixteen at once, and goes on after one that it cannot store.
func (o options) putAll(ctx context.Context, s *emit.Store, paths iter.Seq[string], stdout io.Writer) (stored int, err error) {
	if err := s.CreateSpace(ctx, storage.Space{Name: o.space}); err != nil && !errors.Is(err, storage.ErrExists) {
		return 0, err
	}
	var g errgroup.Group
	g.SetLimit(16)
	results := make(chan error)
	var reader errgroup.Group
	var failed []error
	reader.Go(func() error {
		for err := range results {
			if err == nil {
				stored++
				continue
			}
			failed = append(failed, err)
			fmt.Fprintln(stdout, err)
		}
		return nil
	})
	for path := range paths {
		if ctx.Err() != nil {
			break
		}
		g.Go(func() error {
			results <- o.put(ctx, s, path)
			return nil
		})
	}
	err = errors.Join(g.Wait(), ctx.Err())
	close(results)
	err = errors.Join(err, reader.Wait())
	if len(failed) > 0 {
		err = errors.Join(err, fmt.Errorf("%d files are not stored, the first for: %w", len(failed), failed[0]))
	}
	return stored, err
}

func (o options) put(ctx context.Context, s *emit.Store, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if !st.Mode().IsRegular() {
		return fmt.Errorf("%s is no file", path)
	}
	item := strings.TrimPrefix(filepath.ToSlash(filepath.Clean(path)), "/")
	_, err = s.Put(ctx, o.space, item, f, storage.PutOptions{
		Size: st.Size(), Properties: storage.Properties{MediaType: mime.TypeByExtension(filepath.Ext(path))},
	})
	if errors.Is(err, emit.ErrNotPublished) {
		return fmt.Errorf("%s is stored, and its change is refused: %w", path, err)
	}
	if err != nil {
		return fmt.Errorf("store %s: %w", path, err)
	}
	return nil
}
