// Command decorator stores files without losing an event: each file becomes an item of a file store, and a
// Change on the topic changes. While Kafka is unavailable, the Changes stay in the outbox, and the next run
// publishes them.
//
// The store is identified by its marker, which the first run writes with -init. Without the marker nothing
// is stored: the directory may be an unmounted mount point.
//
//	decorator -init -root /srv/photos -outbox /var/lib/photos/outbox </dev/null
//	decorator -brokers 127.0.0.1:9092 -account acme -store 1 -space photos \
//	    -root /srv/photos -outbox /var/lib/photos/outbox a.jpg b.jpg
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
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/emit"
	"github.com/millrace/millrace/streams/storage/file"
	"github.com/millrace/millrace/streams/storage/outbox"
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

// run returns 0 if all files are stored, 1 if some are not, and 2 for bad arguments.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	var o options
	flags := flag.NewFlagSet("decorator", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&o.brokers, "brokers", "127.0.0.1:9092", "comma-separated addresses of brokers")
	flags.StringVar(&o.prefix, "prefix", "millrace.", "prefix of topic names")
	flags.StringVar(&o.account, "account", "acme", "the account")
	flags.StringVar(&o.store, "store", "1", "the store's id")
	flags.StringVar(&o.space, "space", "files", "the space to store in")
	flags.StringVar(&o.root, "root", "", "the store's directory")
	flags.StringVar(&o.outbox, "outbox", "", "the directory of the outbox, for this program only")
	flags.StringVar(&o.user, "user", os.Getenv("USER"), "the user to record in the changes")
	flags.BoolVar(&o.init, "init", false, "create the directory and write the store's marker")
	flags.DurationVar(&o.wait, "wait", 10*time.Second, "how long to wait at the end for acknowledgements")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if o.root == "" || o.outbox == "" {
		fmt.Fprintln(stderr, "decorator: -root and -outbox are required")
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

// do stores the files and publishes their Changes.
func (o options) do(ctx context.Context, paths iter.Seq[string], stdout io.Writer, log *slog.Logger) (err error) {
	files, err := file.Open(file.Config{ID: o.account + "/" + o.store, Root: o.root, Create: o.init})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, files.Close()) }()
	if o.init {
		err = files.WriteMarker(ctx)
	} else if err = files.Marker(ctx); err != nil { // emit checks it too, before the first write
		err = fmt.Errorf("%w; mount %s, or write the marker once with -init", err, o.root)
	}
	if err != nil {
		return err
	}
	box, err := outbox.Open(outbox.Config{Dir: o.outbox})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, box.Close()) }()
	producer, err := kafka.NewProducer(client.Config{
		Brokers: strings.Split(o.brokers, ","), ClientID: "decorator", Prefix: o.prefix,
	}, "decorator")
	if err != nil {
		return err
	}
	defer producer.Close() // a second Close does nothing
	s, err := emit.New(files, emit.Config{
		Account: o.account, Store: o.store, Agent: "decorator", Outbox: box, Log: log,
	}, producer)
	if err != nil {
		return err
	}
	running, stop := context.WithCancel(ctx)
	defer stop()
	var g errgroup.Group
	g.Go(func() error { return s.Run(running) })
	stored, err := o.putAll(emit.WithUser(ctx, o.user), s, paths, stdout)
	o.awaitAcks(ctx, box)
	stop()
	producer.Close() // gives up unacknowledged messages; the outbox holds them
	err = errors.Join(err, g.Wait())
	fmt.Fprintf(stdout, "%d stored, %d changes pending in the outbox\n", stored, box.Stats().Pending)
	return err
}

// awaitAcks waits, at most o.wait, until the outbox is empty. The next run publishes the rest.
func (o options) awaitAcks(ctx context.Context, box *outbox.File) {
	ctx, cancel := context.WithTimeout(ctx, o.wait)
	defer cancel()
	for box.Stats().Pending > 0 && retry.Sleep(ctx, 20*time.Millisecond) == nil {
	}
}

// putAll stores the files, 16 at a time, and continues after a failure.
func (o options) putAll(
	ctx context.Context, s *emit.Store, paths iter.Seq[string], stdout io.Writer,
) (stored int, err error) {
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
		err = errors.Join(err, fmt.Errorf("%d files are not stored; the first: %w", len(failed), failed[0]))
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
		return fmt.Errorf("%s is not a regular file", path)
	}
	item := strings.TrimPrefix(filepath.ToSlash(filepath.Clean(path)), "/")
	_, err = s.Put(ctx, o.space, item, f, storage.PutOptions{
		Size: st.Size(), Properties: storage.Properties{MediaType: mime.TypeByExtension(filepath.Ext(path))},
	})
	if errors.Is(err, emit.ErrNotPublished) {
		return fmt.Errorf("%s is stored, but its change is not published: %w", path, err)
	}
	if err != nil {
		return fmt.Errorf("store %s: %w", path, err)
	}
	return nil
}
