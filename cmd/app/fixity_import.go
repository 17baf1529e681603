package app

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/fixity"
	"github.com/millrace/millrace/streams/inventory"
	"github.com/millrace/millrace/streams/retry"
)

const (
	// computedBatch is the number of rows of a report that are compared and published at once.
	computedBatch = 1000
	// maxComputedRows is the number of rows that a ComputedImport names.
	maxComputedRows = 100
)

// A ComputedImport counts what became of the rows of reports on computed checksums.
type ComputedImport struct {
	Rows   int64
	Failed int64 // tasks of the provider that failed
	// Compared has the number of the other rows by comparison.
	Compared map[fixity.Comparison]int64
	// Named are the first rows that neither agree nor are unknown.
	Named []ComputedOutcome
}

// A ComputedOutcome is what became of a row.
type ComputedOutcome struct {
	At   inventory.Position
	Key  string // of the object
	Copy schemas.Copy
	What string // failed, or the comparison
	Why  string // of a task that failed
}

// ImportComputed compares rows of reports with the records. It publishes the result of each digest that agrees, and for
// each that differs a check by reading. The digests were computed at since or later. It may be repeated: the ids are
// functions of rows and since. If it fails, what is counted is published.
func (a *App) ImportComputed(
	ctx context.Context, rows iter.Seq2[inventory.ComputedRow, error], since time.Time,
) (ComputedImport, error) {
	done := ComputedImport{Compared: map[fixity.Comparison]int64{}}
	var batch []inventory.ComputedRow
	flush := func() error {
		err := a.importComputed(ctx, &done, batch, since)
		batch = batch[:0]
		return err
	}
	for row, err := range rows {
		if err != nil {
			return done, err
		}
		if batch = append(batch, row); len(batch) == computedBatch {
			if err := flush(); err != nil {
				return done, err
			}
		}
	}
	return done, flush()
}

// importComputed compares and publishes a batch of rows, and then counts them.
func (a *App) importComputed(
	ctx context.Context, done *ComputedImport, batch []inventory.ComputedRow, since time.Time,
) error {
	var copies []schemas.Copy
	at := make([][][]schemas.Copy, len(batch)) // the copies of each key of each row
	for n, row := range batch {
		for _, key := range row.Keys {
			of := a.objectsAt(row.Bucket, key)
			at[n] = append(at[n], of)
			copies = append(copies, of...)
		}
	}
	var records []*pb.CopyRecord
	err := a.withoutGaps(ctx, func() (err error) {
		records, err = read.Records(ctx, a.db, copies)
		return err
	})
	if err != nil {
		return fmt.Errorf("read the records: %w", err)
	}
	known := map[schemas.Copy]*pb.CopyRecord{}
	for n, c := range copies {
		known[c] = records[n]
	}
	var out []schemas.Message
	var outcomes []ComputedOutcome
	for n, row := range batch {
		for _, o := range compareComputed(row, at[n], known, since) {
			outcomes = append(outcomes, o.ComputedOutcome)
			switch kind := a.stores.of(StoreName{o.Copy.Account, o.Copy.Store}).cfg.Driver; fixity.Comparison(o.What) {
			case fixity.ComputedAgrees:
				out = append(out, schemas.Message{Topic: schemas.FixityResults,
					Body: o.computed.Result(known[o.Copy], kind, Version)})
			case fixity.ComputedDiffers:
				out = append(out, CheckRequest{Copy: o.Copy, Reason: pb.FixityReason_FIXITY_REASON_SUSPECT,
					Cause: o.computed.ID(), Size: known[o.Copy].GetManifest().GetSize(), Time: since,
				}.task(int64(a.cfg.Duplication.LargeThreshold)))
			}
		}
	}
	if err := a.waitForCheckers(ctx); err != nil {
		return err
	}
	if err := a.producer.Publish(ctx, out...); err != nil {
		return fmt.Errorf("publish the results: some may be published; repeating it is safe: %w", err)
	}
	done.Rows += int64(len(batch))
	for _, o := range outcomes {
		done.count(o)
	}
	return nil
}

// waitForCheckers waits while more than sweep.max_backlog requested checks wait for the checkers.
func (a *App) waitForCheckers(ctx context.Context) error {
	for {
		n, err := a.lagHigh(ctx)
		if err != nil {
			return fmt.Errorf("read how far the checkers are: %w", err)
		}
		if n <= int64(a.cfg.Sweep.MaxBacklog) {
			return nil
		}
		if err := retry.Sleep(ctx, time.Second); err != nil {
			return err
		}
	}
}

// count counts an outcome.
func (i *ComputedImport) count(o ComputedOutcome) {
	what := fixity.Comparison(o.What)
	if o.What == computedFailed {
		i.Failed++
	} else {
		i.Compared[what]++
	}
	if what != fixity.ComputedAgrees && what != fixity.ComputedUnknown && len(i.Named) < maxComputedRows {
		i.Named = append(i.Named, o)
	}
}

// objectsAt returns the copies whose object has a key: one, unless stores share the bucket.
func (a *App) objectsAt(bucket, key string) (all []schemas.Copy) {
	for _, n := range a.stores.storeNames() {
		if space, item, is, _ := itemInBucket(a.stores.of(n).cfg, false, bucket, key); is {
			all = append(all, schemas.Copy{Account: n.Account, Store: n.Store, Space: space, Item: item})
		}
	}
	return all
}

// computedFailed is what became of a task that failed.
const computedFailed = "failed"

// A comparedRow is the outcome of a row for a copy, with the digest that was compared.
type comparedRow struct {
	ComputedOutcome
	computed fixity.Computed
}

// compareComputed compares a row with the records of the copies at each of its keys. It is pure. A row whose keys have
// both copies on record is comparable with neither.
func compareComputed(
	row inventory.ComputedRow, at [][]schemas.Copy, known map[schemas.Copy]*pb.CopyRecord, since time.Time,
) (all []comparedRow) {
	outcome := ComputedOutcome{At: row.At, Key: row.Bucket + "/" + row.Keys[len(row.Keys)-1]}
	only := func(what, why string) []comparedRow {
		outcome.What, outcome.Why = what, why
		return []comparedRow{{ComputedOutcome: outcome}}
	}
	if row.Failed != "" {
		return only(computedFailed, row.Failed)
	}
	keys := 0
	for _, copies := range at {
		before := len(all)
		for _, c := range copies {
			d := fixity.Computed{Copy: c, Version: row.Version, ETag: row.ETag, Digests: row.Digests, Since: since}
			if what := d.Compare(known[c]); what != fixity.ComputedUnknown {
				outcome.Copy, outcome.What = c, string(what)
				all = append(all, comparedRow{outcome, d})
			}
		}
		if len(all) > before {
			keys++
		}
	}
	outcome.Copy = schemas.Copy{}
	switch keys {
	case 0:
		return only(string(fixity.ComputedUnknown), "")
	case 1:
		return all
	}
	return only(string(fixity.ComputedIncomparable), "it is the key of two items, as it is and decoded")
}
