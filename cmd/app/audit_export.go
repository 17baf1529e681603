package app

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/cmd/precondition"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/sinks/export"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/record"
	"github.com/millrace/millrace/streams/sweep"
)

// exportRecords is the number of records of the topic changes in a file, by default.
const exportRecords = 50_000

// An ExportRequest describes an export of the audit log.
type ExportRequest struct {
	// Name identifies the position of the export: each change is exported once under a name.
	Name    string
	Account string // empty: all
	Format  export.Format
	Begun   time.Time
	// Write writes a file of some changes. It may be called again with the same name and text.
	Write func(ctx context.Context, name string, text []byte, changes int) error

	// own reports whether a change has made a file of an export, or a copy of one. Such changes alone are no reason for
	// another file. nil: none is.
	own     func(*pb.Change) bool
	records int64 // of the topic changes in a file [exportRecords]
}

// An exportPosition is how far an export is.
type exportPosition struct {
	Request string       `json:"request,omitempty"` // that of jobCursor
	Account string       `json:"account,omitempty"`
	Records int64        `json:"records"` // in a file
	Parts   []exportPart `json:"parts"`
}

// An exportPart is how far an export is in a partition: Next is the first offset that is not exported, and To the one
// after the last of the round.
type exportPart struct {
	read.ChangePartition
	Next int64 `json:"next"`
	To   int64 `json:"to"`
}

// next returns the index of the first part that is not exported to its end; negative: all are.
func (p exportPosition) next() int {
	return slices.IndexFunc(p.Parts, func(p exportPart) bool { return p.Next < p.To })
}

func positionOf(cursor []byte) (p exportPosition, err error) {
	if cursor == nil {
		return p, nil
	}
	if err := json.Unmarshal(cursor, &p); err != nil {
		return p, fmt.Errorf("read the position of the export: %w", err)
	}
	return p, nil
}

// ExportAudit exports the changes that the audit log has and that were not exported under the name before. Each range
// of offsets of a partition of the topic changes is a file, which a repeated page writes again. A change that was
// reported several times is in the file of the first report that is exported.
func (a *App) ExportAudit(ctx context.Context, r ExportRequest) error {
	if err := config.CheckExportName(r.Name); err != nil {
		return fmt.Errorf("%w: %w", precondition.Err, err)
	}
	if slices.ContainsFunc(a.cfg.Audit.Exports, func(e config.AuditExport) bool { return e.Name == r.Name }) {
		return fmt.Errorf("%w: role sweeper makes the export %s (audit.exports): use another name, or request it with "+
			"'millrace job start %s'", precondition.Err, r.Name, jobName(auditExport, r.Name))
	}
	return a.inCommand(ctx, false, func(ctx context.Context, w sweeping) error {
		for {
			m := a.exportSplit(r)
			m.Start = r.Begun
			results, err := w.rounds(ctx, []sweep.Split{m})
			if err != nil || len(results) > 0 && results[0].Started.Equal(r.Begun) {
				return err
			} // it was a round that had been interrupted, and what came since remains
		}
	})
}

func (a *App) exportSplit(r ExportRequest) sweep.Split {
	return sweep.Split{
		Sweep: auditExport, Name: r.Name, Account: r.Account, Lag: noLag,
		Pages: func(ctx context.Context, round sweep.Round, cursor []byte) (page sweep.Page, err error) {
			err = a.withoutGaps(ctx, func() (err error) {
				page, err = a.exportPage(ctx, r, round, cursor)
				return err
			})
			return page, err
		},
	}
}

// scheduledExport returns the split of an export of the settings.
func (a *App) scheduledExport(e config.AuditExport) sweep.Split {
	account, store, space := e.To()
	of := StoreName{account, store}
	r := ExportRequest{Name: e.Name, Account: e.Account, Format: e.FormatOrDefault(), own: a.isExport}
	m := a.exportSplit(r)
	m.Pages = func(ctx context.Context, round sweep.Round, cursor []byte) (sweep.Page, error) {
		own := r
		own.Write = func(ctx context.Context, name string, text []byte, _ int) error {
			to := schemas.Copy{Account: account, Store: store, Space: space, Item: name}
			return a.putItem(ctx, to, "millrace audit export", bytes.NewReader(text), int64(len(text)))
		}
		return a.exportSplit(own).Pages(ctx, round, cursor)
	}
	m.Blocked = a.jobBlocked(auditExport, of)
	return m
}

// exportFiles matches the names of files of exports, after the name of the export.
var exportFiles = regexp.MustCompile(`^-[0-9a-f]{8}-\d{3,}-\d{12,}-\d{12,}\.[a-z]+$`)

// isExport reports whether a change has made a file of an export of the settings, or a copy of one.
func (a *App) isExport(c *pb.Change) bool {
	if c.GetOp() != pb.Op_OP_ADD && c.GetOp() != pb.Op_OP_UPDATE {
		return false
	}
	return slices.ContainsFunc(a.cfg.Audit.Exports, func(e config.AuditExport) bool {
		account, _, space := e.To()
		rest, ok := strings.CutPrefix(c.GetItem(), e.Name)
		return ok && c.GetAccount() == account && c.GetSpace() == space && exportFiles.MatchString(rest)
	})
}

// putItem stores an item and publishes its Change. After an error the caller stores it again.
func (a *App) putItem(ctx context.Context, to schemas.Copy, agent string, r io.Reader, size int64) error {
	st, err := a.stores.configured(StoreName{to.Account, to.Store})
	if err != nil {
		return err
	}
	if err := st.Marker(ctx); err != nil {
		return err
	}
	op := pb.Op_OP_UPDATE
	if _, err := st.Stat(ctx, to.Space, to.Item); errors.Is(err, storage.ErrNotFound) {
		op = pb.Op_OP_ADD
	} else if err != nil {
		return err
	}
	o := storage.PutOptions{Size: size, Compute: []string{digest.MD5, digest.SHA256}}
	obj, err := st.Put(ctx, to.Space, to.Item, r, o)
	if err != nil {
		return err
	}
	c := record.Content(to, obj)
	c.Op, c.Agent, c.Origin = op, agent, pb.Origin_ORIGIN_CLIENT
	c.Sequence = strconv.FormatInt(time.Now().UnixNano(), 10)
	return a.producer.Publish(ctx, schemas.Message{Topic: schemas.Changes, Body: record.Seal(c)})
}

// exportPage writes the next file. The first page only finds out how far the round goes.
func (a *App) exportPage(
	ctx context.Context, r ExportRequest, round sweep.Round, cursor []byte,
) (page sweep.Page, err error) {
	var at exportPosition
	if cursor == nil {
		if at, err = a.beginExport(ctx, r, round.Previous); err != nil {
			return page, err
		}
	} else {
		if at, err = positionOf(cursor); err != nil {
			return page, err
		}
		if page.Counts, err = a.exportFile(ctx, r, &at); err != nil {
			return page, err
		}
		page.Emitted = page.Counts["changes"]
	}
	page.Last = at.next() < 0
	if page.Next, err = json.Marshal(at); err != nil {
		return page, fmt.Errorf("write the position of the export: %w", err)
	}
	return page, nil
}

// beginExport returns the position at the start of a round, after that of the round before.
func (a *App) beginExport(ctx context.Context, r ExportRequest, previous []byte) (at exportPosition, err error) {
	if at, err = positionOf(previous); err != nil {
		return at, err
	}
	if previous != nil && at.Account != r.Account {
		return at, fmt.Errorf("%w: export %s is of account %q: use another name", precondition.Err, r.Name, at.Account)
	}
	at.Account, at.Records = r.Account, cmp.Or(r.records, exportRecords)
	at.Request = cmp.Or(a.jobRequests.newest(jobName(auditExport, r.Name)).id, at.Request)
	ranges, err := read.ChangePartitions(ctx, a.db)
	for _, found := range ranges {
		i := slices.IndexFunc(at.Parts, func(p exportPart) bool { return p.ChangePartition == found.Partition })
		if i < 0 {
			i, at.Parts = len(at.Parts), append(at.Parts, exportPart{found.Partition, found.From, 0})
		}
		at.Parts[i].To = max(at.Parts[i].Next, found.To)
	}
	return at, err
}

// exportFile exports the next range, and moves the position after it.
func (a *App) exportFile(ctx context.Context, r ExportRequest, at *exportPosition) (map[string]int64, error) {
	i := at.next()
	if i < 0 {
		return nil, fmt.Errorf("nothing is left to export: %v", at.Parts)
	}
	p := &at.Parts[i]
	q := read.ExportQuery{Account: r.Account, Exported: map[read.ChangePartition]int64{},
		Range: read.ChangeRange{Partition: p.ChangePartition, From: p.Next, To: min(p.To, p.Next+at.Records)}}
	for _, p := range at.Parts {
		q.Exported[p.ChangePartition] = p.Next
	}
	changes, err := read.ChangesToExport(ctx, a.db, q)
	if err != nil {
		return nil, err
	}
	if r.own != nil && len(changes) > 0 && !slices.ContainsFunc(changes, func(c *pb.Change) bool { return !r.own(c) }) &&
		q.Range.To == p.To {
		p.To = p.Next // the next round begins with them
		return nil, nil
	}
	counts := map[string]int64{"changes": int64(len(changes))}
	if len(changes) > 0 {
		var text bytes.Buffer
		if err := r.Format.Write(&text, changes); err != nil {
			return nil, err
		}
		name := fmt.Sprintf("%s-%08x-%03d-%012d-%012d.%s", r.Name, p.Incarnation, p.Partition, q.Range.From, q.Range.To-1,
			r.Format)
		if err := r.Write(ctx, name, text.Bytes(), len(changes)); err != nil {
			return nil, fmt.Errorf("export changes: %w", err)
		}
		counts["files"] = 1
	}
	p.Next = q.Range.To
	return counts, nil
}
