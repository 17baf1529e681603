package duplicate

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/streams/chunks"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/retry"
)

const (
	// waitChunks is the cause of the wait of a manifest document for its chunks.
	waitChunks = "chunks"
	// chunkStats is the number of chunks that are observed at once.
	chunkStats = 16
)

// awaitChunks returns an error of class wait while chunks of the manifest document that is to be copied are absent or
// differ at the destination. After the last interval the document is copied all the same, and the result names them: it
// is an item whose copies are promised, and it says what is missing. Repairs do not wait. A document that cannot be
// parsed is an ordinary item.
func (w *execution) awaitChunks(ctx context.Context, s Observation, d Decision) error {
	switch d.Row {
	case RowDestinationAbsent, RowContentDiffers, RowSourceUnrecorded, RowDestinationNotAsRecorded:
	default:
		return nil
	}
	if w.wrote() || !chunks.IsDocument(w.Command.GetItem()) {
		return nil
	}
	document, err := w.readManifestDocument(ctx, s, d)
	if err != nil {
		return err
	}
	if document == nil {
		return nil
	}
	group, fault := chunks.Parse(w.Command.GetItem(), document)
	if fault != nil {
		w.detail = "it is not a manifest document of chunks, and was copied as an ordinary item: " + fault.Error()
		return nil //nolint:nilerr // the result reports the fault
	}
	missing, more, excluded, err := w.missingChunks(ctx, group.Chunks, s.Source.Object.Modified)
	if err != nil {
		return err
	}
	w.detail = describeChunks(missing, more, excluded)
	n := w.delivery.WaitsFor(waitChunks)
	if len(missing) == 0 || n >= len(w.cfg.WaitIntervals) {
		return nil
	}
	err = fmt.Errorf("row %s of %s: %s", d.Row, w.Copy, w.detail)
	return retry.WaitFor(waitChunks, err, time.Now().Add(w.cfg.WaitIntervals[max(n, 0)]))
}

// readManifestDocument reads the source. It returns nil if the document is too large, or if two readings do not have
// the expected digests: the copy finds that too.
func (w *execution) readManifestDocument(ctx context.Context, s Observation, d Decision) ([]byte, error) {
	if s.Source.Object.Size > chunks.MaxDocument {
		w.detail = fmt.Sprintf("a manifest document of more than %d bytes is not read", chunks.MaxDocument)
		return nil, nil
	}
	expected := d.Expected.Union(s.Source.digests())
	for range 2 {
		document, sum, err := w.readSource(ctx, s.Source.Object.Version)
		if err != nil {
			return nil, err
		}
		if len(document) <= chunks.MaxDocument && expected.Compare(sum) != digest.Disagree {
			return document, nil
		}
	}
	return nil, nil
}

// readSource reads at most chunks.MaxDocument+1 bytes of one version of the source, and returns them and their digests.
func (w *execution) readSource(ctx context.Context, version string) ([]byte, digest.Set, error) {
	r, _, err := w.SourceStore.Open(ctx, w.SourceCopy.Space, w.SourceCopy.Item, version)
	if err != nil {
		return nil, nil, fmt.Errorf("open %s: %w", w.SourceCopy, err)
	}
	defer r.Close() // only read from
	document, sum, err := chunks.Read(r)
	if err != nil {
		return nil, nil, fmt.Errorf("read %s: %w", w.SourceCopy, err)
	}
	return document, sum, nil
}

// missingChunks returns the chunks that are absent or differ at the destination; after a few it says that there are
// more. Chunks that the policy excludes do not count. They are taken to be as old as the document, of the time
// modified.
func (w *execution) missingChunks(
	ctx context.Context, named []chunks.Chunk, modified time.Time,
) (missing []string, more bool, excluded int, err error) {
	at := make([]bool, len(named))
	var mu sync.Mutex
	absent := 0
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(chunkStats)
	for i, c := range named {
		if reason, _ := w.rules.Excluded(c.ID, policy.Content{Size: c.Size, Modified: modified,
			Digests: map[string]string{digest.MD5: c.MD5}}, w.lists); reason != "" {
			at[i] = true
			excluded++
			continue
		}
		mu.Lock()
		enough := absent > namedChunks
		mu.Unlock()
		if enough {
			at[i], more = true, true
			continue
		}
		g.Go(func() error {
			of := w.Copy
			of.Item = c.ID
			side := w.observer.observeSide(ctx, of, w.Store)
			if side.Presence != Present && side.Presence != Absent {
				return fmt.Errorf("look for chunk %q of %s: %w", c.ID, w.Copy, side.Err)
			}
			mu.Lock()
			defer mu.Unlock()
			if at[i] = isAt(c, side); !at[i] {
				absent++
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, false, 0, err
	}
	for i, c := range named {
		if !at[i] {
			missing = append(missing, c.ID)
		}
	}
	return missing, more, excluded, nil
}
