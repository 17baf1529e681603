package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"os"
	"path"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// writers is the number of concurrent writes. It is large, so that their Changes share a batch, and
// with it an fsync of the broker.
const writers = 128

// write writes every file to the first store, through the emit decorator. After a stop it first
// waits until the outbox is published, and then writes the files without a row in the manifest:
// those were not written.
func (d *demo) write(ctx context.Context) error {
	if err := d.emit.CreateSpace(ctx, storage.Space{Name: space}); err != nil && !errors.Is(err, storage.ErrExists) {
		return fmt.Errorf("create the space: %w", err)
	}
	if err := d.waitPublished(ctx); err != nil {
		return err
	}
	known, err := d.existing(ctx)
	if err != nil {
		return err
	}
	step := d.display.Step("write to store 1", int64(len(d.checkpoint.Files)))
	defer d.updateInBackground(ctx)()
	step.Set(int64(len(known)))
	var (
		mu   sync.Mutex // guards left
		left []skip
	)
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(writers)
	for _, f := range d.checkpoint.Files {
		if known[f.Item] {
			continue
		}
		g.Go(func() error {
			if gctx.Err() != nil {
				return context.Cause(gctx)
			}
			unreadable, err := d.put(gctx, f.Item)
			if err != nil {
				return fmt.Errorf("put %s: %w", f.Item, err)
			}
			if unreadable != nil {
				mu.Lock()
				left = append(left, skip{f.Item, reason(unreadable)})
				mu.Unlock()
			}
			step.Add(1)
			return nil
		})
	}
	err = g.Wait()
	step.End(err == nil)
	if err != nil {
		return err
	}
	d.dropUnreadable(left)
	if err := d.checkPicks(); err != nil {
		return err
	}
	return d.waitPublished(ctx)
}

// waitPublished waits until the outbox is empty: all Changes are in Kafka.
func (d *demo) waitPublished(ctx context.Context) error {
	return d.until(ctx, "changes published", func(context.Context) (app.Progress, error) {
		return app.Progress{Done: -int64(d.app.Unpublished())}, nil
	})
}

// dropUnreadable moves files that could not be read from the list of files to the skipped ones.
func (d *demo) dropUnreadable(left []skip) {
	unreadable := map[string]bool{}
	for _, s := range left {
		unreadable[s.Path] = true
	}
	var files []file
	for _, f := range d.checkpoint.Files {
		if !unreadable[f.Item] {
			files = append(files, f)
		}
	}
	d.checkpoint.Files, d.checkpoint.Skipped = files, append(d.checkpoint.Skipped, left...)
}

// checkPicks returns an error if one of the picked files has become unreadable.
func (d *demo) checkPicks() error {
	readable := map[string]bool{}
	for _, f := range d.checkpoint.Files {
		readable[f.Item] = true
	}
	p := d.checkpoint.Picks
	for _, item := range []string{p.Flip, p.Truncate, p.Remove, p.Replace, p.Delete} {
		if !readable[item] {
			return fmt.Errorf("%s has become unreadable: start again with another state directory", item)
		}
	}
	return nil
}

// existing returns the items of the first store in the manifest, after ClickHouse has caught up
// with Kafka.
func (d *demo) existing(ctx context.Context) (map[string]bool, error) {
	if err := d.app.CatchUp(ctx); err != nil {
		return nil, fmt.Errorf("wait for the manifest: %w", err)
	}
	known := map[string]bool{}
	copies := schemas.Copy{Account: account, Store: primary, Space: space}
	err := read.EachLive(ctx, d.app.DB(), copies, func(c schemas.KnownCopy) error {
		known[c.Item] = true
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the manifest: %w", err)
	}
	return known, nil
}

// put writes one file to the store. unreadable is the error of reading the file; then nothing was
// stored.
func (d *demo) put(ctx context.Context, item string) (unreadable, err error) {
	f, err := os.Open(filepath.Join(d.checkpoint.Dir, filepath.FromSlash(item)))
	if err != nil {
		return err, nil
	}
	defer f.Close()
	in := &sourceReader{f: f}
	_, err = d.emit.Put(ctx, space, item, in, storage.PutOptions{
		Size: storage.UnknownSize, Properties: storage.Properties{MediaType: mediaType(item)}})
	if in.err != nil {
		return in.err, nil
	}
	return nil, err
}

// sourceReader records errors of reading the file, to distinguish them from errors of the store.
type sourceReader struct {
	f   *os.File
	err error
}

// Read implements io.Reader.
func (s *sourceReader) Read(p []byte) (int, error) {
	n, err := s.f.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		s.err = err
	}
	return n, err
}

func mediaType(item string) string {
	if t := mime.TypeByExtension(path.Ext(item)); t != "" {
		return t
	}
	return "application/octet-stream"
}

// waitCopied waits until every item is in every store and checked. Copies are checked when they are
// made; a sweep checks the items of the first store.
func (d *demo) waitCopied(ctx context.Context) error {
	if err := d.app.CatchUp(ctx); err != nil {
		return fmt.Errorf("wait for the manifest: %w", err)
	}
	rounds, err := d.round(ctx, roundFirst, len(d.checkpoint.Files), true, primary)
	if err != nil {
		return err
	}
	d.showCopies()
	err = d.untilEnded(ctx, "items copied and checked", rounds, d.updateCopies)
	d.copies.End(err == nil)
	d.checks.End(err == nil)
	if err == nil && d.checkpoint.Spent == 0 {
		d.checkpoint.Spent = time.Since(d.checkpoint.Started).Seconds()
	}
	return err
}

// showCopies starts to show the numbers of copies and checks, once.
func (d *demo) showCopies() {
	if total := int64(len(d.checkpoint.Files)); d.copies == nil {
		d.copies, d.checks = d.display.Step("copy to stores 2, 3", 2*total), d.display.Step("check all copies", 3*total)
	}
}

// updateCopies updates the numbers of copies and checks.
func (d *demo) updateCopies(ctx context.Context) (app.Progress, error) {
	counts, err := read.CopyCounts(ctx, d.app.DB(), account)
	if err != nil {
		return app.Progress{}, err
	}
	var live, checked int64
	for _, c := range counts {
		if c.Store != primary {
			live += int64(c.Live)
		}
		checked += int64(c.Verified)
	}
	d.copies.Set(live)
	d.checks.Set(checked)
	return app.Progress{Done: live + checked, Total: 5 * int64(len(d.checkpoint.Files))}, nil
}

// updateInBackground calls updateCopies periodically until stop is called.
func (d *demo) updateInBackground(ctx context.Context) (stop func()) {
	d.showCopies()
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		for retry.Sleep(ctx, time.Second) == nil {
			_, _ = d.updateCopies(ctx) // an error is transient: the next call reads again
		}
	})
	return func() { cancel(); wg.Wait() }
}
