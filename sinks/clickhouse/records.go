package clickhouse

import (
	"context"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	ch "github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/ext"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// A reading returns what the audit log has of the newest content of copies: audit or evidence.
type auditQuery func(ctx context.Context, copies []schemas.Copy) (map[schemas.Copy]*pb.Record, error)

// records puts what is on record of each copy into known, and returns the states that it read. log reads the audit log.
func (db *DB) records(
	ctx context.Context, copies []schemas.Copy, log auditQuery, known map[schemas.Copy]*pb.CopyRecord,
) ([]stateRecord, error) {
	g, ctx := errgroup.WithContext(ctx)
	var audit map[schemas.Copy]*pb.Record
	g.Go(func() (err error) {
		audit, err = log(ctx, copies)
		return err
	})
	var states []stateRecord
	g.Go(func() error {
		with, err := withCopies(ctx, copies)
		if err != nil {
			return err
		}
		states, err = query[stateRecord](with, db, "read the manifest",
			"SELECT "+stateFields+" FROM ("+requestedStates+")"+onePass)
		return err
	})
	if err := g.Wait(); err != nil {
		return nil, err
	}
	for _, c := range copies {
		known[c] = &pb.CopyRecord{Manifest: noRecord(), Audit: recordOrNone(audit[c])}
	}
	for _, s := range states {
		r := known[s.copy()]
		if r == nil {
			return nil, fmt.Errorf("read the manifest: it tells of %s, which was not asked for", s.copy())
		}
		s.fill(r)
	}
	return states, nil
}

// asked is true of the rows of the copies that withCopies sends. That the items are asked for by themselves decides most
// rows by one column, and halves what a query takes.
const requestedCopies = `item IN (SELECT item FROM copies) AND (account, store, space, item) IN (SELECT account, store, space, item FROM copies)`

// askedStates is what copy_merged says of the copies that withCopies sends, of the groups in stateFields alone. Positions,
// which have no account, are left out.
const requestedStates = `SELECT account, store, space, item, max(s.content) AS content, max(s.deleted) AS deleted,
  maxMap(s.digests) AS digests, max(s.properties) AS properties, max(s.attempt) AS attempt, max(s.pass) AS pass
FROM {db}.copy_state AS s WHERE account != '' AND ` + requestedCopies + `
GROUP BY account, store, space, item`

// onePass is for copy_state, which has all columns of a granule in one file: to look for the rows in PREWHERE, and then
// to read the other columns of their granules, takes longer than to read all of them at once.
const onePass = " SETTINGS optimize_move_to_prewhere = 0"

// withCopies sends the copies along as a table, each with a time if until is given: their ids may be longer than a statement.
func withCopies(ctx context.Context, copies []schemas.Copy, until ...int64) (context.Context, error) {
	columns := []func(*ext.Table) error{ext.Column("account", "String"), ext.Column("store", "String"),
		ext.Column("space", "String"), ext.Column("item", "String")}
	if len(until) > 0 {
		columns = append(columns, ext.Column("until", "Int64"))
	}
	t, err := ext.NewTable("copies", columns...)
	if err != nil {
		return nil, fmt.Errorf("make a table of copies: %w", err)
	}
	for i, c := range copies {
		row := []any{c.Account, c.Store, c.Space, c.Item}
		if len(until) > 0 {
			row = append(row, until[i])
		}
		if err := t.Append(row...); err != nil {
			return nil, fmt.Errorf("make a table of copies: %w", err)
		}
	}
	return ch.Context(ctx, ch.WithExternalTable(t)), nil
}

func noRecord() *pb.Record { return &pb.Record{State: pb.RecordState_RECORD_STATE_NONE} }

func recordOrNone(r *pb.Record) *pb.Record {
	if r == nil {
		return noRecord()
	}
	return r
}

// stateFields are read from copy_merged into a stateRecord. Times are in milliseconds, shifted
// as in a version: zero is never. Properties of a content that was deleted are not those of the next one.
const stateFields = `account, store, space, item,
  toInt64(bitShiftRight(content.ver, 83)) AS written, content.ns AS written_ns, content.change AS written_by,
  content.origin AS written_origin, content.size AS size, content.version AS version, content.etag AS etag,
  content.media_type AS media_type, content.source_time AS source_time, content.source_ns AS source_ns,
  content.source_version AS source_version, digests,
  content.ver > deleted.ver AS live,
  toInt64(bitShiftRight(deleted.ver, 83)) AS gone, deleted.ns AS gone_ns, deleted.change AS gone_by, deleted.origin AS gone_origin,
  if((properties.ver > deleted.ver OR content.ver < deleted.ver) AS counts,
    toInt64(bitShiftRight(properties.ver, 83)), 0) AS described,
  toUInt64(bitShiftRight(properties.ver, 32)) AS described_at,
  NOT counts AND (properties.media_type != '' OR notEmpty(properties.user)) AS outdated, if(counts, properties.media_type, '') AS new_type,
  new_type != '' AND (properties.ver > content.ver OR content.media_type = '') AS retyped,
  mapFilter((k, v) -> counts, properties.user) AS user_properties,
  toInt64(bitShiftRight(attempt.ver, 83)) AS attempted, toInt64(bitShiftRight(pass.ver, 83)) AS passed, pass.digests AS pass_digests`

type stateRecord struct {
	Account           string            `ch:"account"`
	Store             string            `ch:"store"`
	Space             string            `ch:"space"`
	Item              string            `ch:"item"`
	Written           int64             `ch:"written"`
	WrittenNanos      uint32            `ch:"written_ns"`
	WrittenBy         string            `ch:"written_by"`
	WrittenOrigin     string            `ch:"written_origin"`
	Size              int64             `ch:"size"`
	Version           string            `ch:"version"`
	ETag              string            `ch:"etag"`
	MediaType         string            `ch:"media_type"`
	SourceTime        *time.Time        `ch:"source_time"`
	SourceNanos       uint32            `ch:"source_ns"`
	SourceVersion     string            `ch:"source_version"`
	Digests           map[string]string `ch:"digests"`
	Live              uint8             `ch:"live"`
	Deleted           int64             `ch:"gone"`
	DeletedNanos      uint32            `ch:"gone_ns"`
	DeletedBy         string            `ch:"gone_by"`
	DeletedOrigin     string            `ch:"gone_origin"`
	PropertiesTime    int64             `ch:"described"`
	PropertiesVersion uint64            `ch:"described_at"` // rank and offset are its lower 51 bits
	PropertiesStale   uint8             `ch:"outdated"`     // the properties were those of a content that was deleted
	TypeReplaced      uint8             `ch:"retyped"`
	NewType           string            `ch:"new_type"`
	UserProperties    map[string]string `ch:"user_properties"`
	Attempted         int64             `ch:"attempted"`
	Passed            int64             `ch:"passed"`
	PassDigests       map[string]string `ch:"pass_digests"`
}

func (s *stateRecord) copy() schemas.Copy {
	return schemas.Copy{Account: s.Account, Store: s.Store, Space: s.Space, Item: s.Item}
}

// fill puts manifest and clocks into r.
func (s *stateRecord) fill(r *pb.CopyRecord) {
	if s.Attempted != 0 {
		r.LastAttempt = unshift(s.Attempted, 0)
	}
	if s.Written == 0 && s.Deleted == 0 {
		return // only checks tell of it
	}
	m := &pb.Record{
		State: pb.RecordState_RECORD_STATE_LIVE, Size: max(s.Size, 0), SizeUnknown: s.Size < 0 || s.Written == 0,
		Version: s.Version, Etag: s.ETag,
		Time: unshift(s.Written, s.WrittenNanos), ChangeId: hex.EncodeToString([]byte(s.WrittenBy)),
		SourceTime: nullTime(s.SourceTime, s.SourceNanos), SourceVersion: s.SourceVersion,
		MediaType: s.MediaType, Properties: s.UserProperties, Origin: originOf(s.WrittenOrigin),
	}
	if s.TypeReplaced != 0 {
		m.MediaType = s.NewType
	}
	m.Digests, m.Provenance = s.current()
	if s.Live == 0 {
		m.State = pb.RecordState_RECORD_STATE_TOMBSTONE
		m.Time, m.ChangeId, m.Origin = unshift(s.Deleted, s.DeletedNanos), hex.EncodeToString([]byte(s.DeletedBy)), originOf(s.DeletedOrigin)
	}
	r.Manifest = m
	if s.Passed != 0 && s.passCounts(m.Digests) {
		r.LastPass = unshift(s.Passed, 0)
	}
}

// current returns the digests of the newest content: those that its change told, in all its
// tellings; the verified ones alone where there are any.
func (s *stateRecord) current() (map[string]string, pb.Provenance) {
	verified, claimed := map[string]string{}, map[string]string{}
	for alg, v := range s.Digests {
		if len(v) <= digestAt || v[changeAt:digestAt] != s.WrittenBy {
			continue
		}
		d := hex.EncodeToString([]byte(v[digestAt:]))
		if v[verifiedAt] == 1 {
			verified[alg] = d
		} else {
			claimed[alg] = d
		}
	}
	switch {
	case len(verified) > 0:
		return verified, pb.Provenance_PROVENANCE_VERIFIED
	case len(claimed) > 0:
		return claimed, pb.Provenance_PROVENANCE_CLAIMED
	}
	return nil, pb.Provenance_PROVENANCE_UNSPECIFIED
}

// passCounts says whether the newest pass was of the content that is current.
func (s *stateRecord) passCounts(current map[string]string) bool {
	shared := false
	for alg, raw := range s.PassDigests {
		d, ok := current[alg]
		if !ok {
			continue
		}
		if d != hex.EncodeToString([]byte(raw)) {
			return false
		}
		shared = true
	}
	return shared
}

// unshift returns the time of a version's milliseconds.
func unshift(shifted int64, nanos uint32) *timestamppb.Timestamp {
	return timestamppb.New(time.UnixMilli(shifted - millisShift).Add(time.Duration(nanos)))
}

func nullTime(t *time.Time, nanos uint32) *timestamppb.Timestamp {
	if t == nil {
		return nil
	}
	return timestamppb.New(t.Add(time.Duration(nanos)))
}

func originOf(word string) pb.Origin { return pb.Origin(enumValue(pb.Origin_value, "ORIGIN_", word)) }

// newestReports are the two newest writes and the two newest deletes of each copy, newest first, with the columns that
// a decision needs. If copies lie anywhere, the other columns, and those that order changes of one time and reports of
// one change, take more time than these. A change is doubtful if its reports differ and richness does not decide
// between them.
const newestReports = `SELECT account, store, space, item, gone, ts, ns, lower(hex(newest.id)) AS id,
  mapApply((k, v) -> (k, lower(hex(v))), richest.1) AS digests, richest.2 AS provenance, doubtful
FROM (
  SELECT account, store, space, item, any(r.op) AS op, op = 'delete' AS gone, ts, any(r.ns) AS ns, id,
    argMax((r.digests, r.provenance), r.richness) AS richest,
    uniqExact(r.richness, r.digests, r.provenance) > uniqExact(r.richness)
      OR uniqExact(r.op IN ` + contentOps + `, r.op = 'delete', r.ns) > 1 AS doubtful
  FROM {db}.audit_log AS r
  WHERE ` + requestedCopies + `
  GROUP BY account, space, item, store, ts, id
  HAVING op IN ` + contentOps + ` OR doubtful
) AS newest
ORDER BY account, store, space, item, ts DESC
LIMIT 2 BY account, store, space, item, gone
SETTINGS optimize_use_projections = 0` // which takes time, and none of them has these columns

// contentOps are the words of the changes that make or remove a content.
const contentOps = `('add', 'update', 'copy', 'delete')`

// newestChanges are the newest write and the newest delete of each copy, the newer of the two first.
const newestChanges = `SELECT account, store, space, item, op = 'delete' AS gone, ts, ns, id, origin,
  size, version, etag, media_type, digests, provenance, properties, source_time, source_ns, source_version
FROM {db}.audit_log_v
WHERE ` + requestedCopies + `
  AND op IN ` + contentOps + `
ORDER BY account, store, space, item, ts DESC, newest DESC
LIMIT 1 BY account, store, space, item, gone`

type auditRecord struct {
	Account       string            `ch:"account"`
	Store         string            `ch:"store"`
	Space         string            `ch:"space"`
	Item          string            `ch:"item"`
	Deleted       uint8             `ch:"gone"`
	Time          time.Time         `ch:"ts"`
	Nanos         uint32            `ch:"ns"`
	ID            string            `ch:"id"`
	Origin        string            `ch:"origin"`
	Size          *int64            `ch:"size"`
	Version       string            `ch:"version"`
	ETag          string            `ch:"etag"`
	MediaType     string            `ch:"media_type"`
	Digests       map[string]string `ch:"digests"`
	Provenance    string            `ch:"provenance"`
	Properties    map[string]string `ch:"properties"`
	SourceTime    *time.Time        `ch:"source_time"`
	SourceNanos   uint32            `ch:"source_ns"`
	SourceVersion string            `ch:"source_version"`
	Ambiguous     bool              `ch:"doubtful"`
}

func (a *auditRecord) copy() schemas.Copy {
	return schemas.Copy{Account: a.Account, Store: a.Store, Space: a.Space, Item: a.Item}
}

// evidence is audit with the fields alone on which decisions rest: state, time, change, digests and provenance.
func (db *DB) evidence(ctx context.Context, copies []schemas.Copy) (map[schemas.Copy]*pb.Record, error) {
	rows, err := db.auditRows(ctx, copies, newestReports)
	if err != nil {
		return nil, err
	}
	rows, doubted := unambiguous(rows)
	records := newestContents(rows)
	if len(doubted) == 0 {
		return records, nil
	}
	whole, err := db.audit(ctx, doubted)
	if err != nil {
		return nil, err
	}
	for c, r := range whole {
		records[c] = &pb.Record{
			State: r.GetState(), Digests: r.GetDigests(), Provenance: r.GetProvenance(), Time: r.GetTime(),
			ChangeId: r.GetChangeId(), SizeUnknown: true,
		}
	}
	return records, nil
}

// certain returns the newest write and the newest delete of each copy out of the rows of newestReports, and the copies
// for which these rows do not decide: two changes have one time, or a change is doubtful.
func unambiguous(rows []auditRecord) (newest []auditRecord, doubted []schemas.Copy) {
	for len(rows) > 0 {
		c, n, doubt := rows[0].copy(), 0, false
		for ; n < len(rows) && rows[n].copy() == c; n++ {
			doubt = doubt || rows[n].Ambiguous || n > 0 && rows[n].Time.Equal(rows[n-1].Time)
		}
		if doubt {
			doubted = append(doubted, c)
		} else {
			newest = append(newest, firstOfEach(rows[:n])...)
		}
		rows = rows[n:]
	}
	return newest, doubted
}

// firstOfEach returns the first write and the first delete.
func firstOfEach(rows []auditRecord) (first []auditRecord) {
	for i, a := range rows {
		if !slices.ContainsFunc(rows[:i], func(b auditRecord) bool { return b.Deleted == a.Deleted }) {
			first = append(first, a)
		}
	}
	return first
}

// audit returns what the log says of the newest content of each copy that it knows of.
func (db *DB) audit(ctx context.Context, copies []schemas.Copy) (map[schemas.Copy]*pb.Record, error) {
	rows, err := db.auditRows(ctx, copies, newestChanges)
	if err != nil {
		return nil, err
	}
	return newestContents(rows), nil
}

// auditRows returns the rows of a statement about copies.
func (db *DB) auditRows(ctx context.Context, copies []schemas.Copy, statement string) ([]auditRecord, error) {
	ctx, err := withCopies(ctx, copies)
	if err != nil {
		return nil, err
	}
	return query[auditRecord](ctx, db, "read the audit log", statement)
}

// newestContents returns the newest content of each copy. rows are its newest write and its newest delete, the newer of
// the two first.
func newestContents(rows []auditRecord) map[schemas.Copy]*pb.Record {
	records := map[schemas.Copy]*pb.Record{}
	for i := range rows {
		a := &rows[i]
		c := a.copy()
		newer, r := records[c], a.record()
		switch {
		case newer == nil:
			records[c] = r
		case a.Deleted == 0: // this content was deleted
			r.State, r.Time = newer.GetState(), newer.GetTime()
			r.ChangeId, r.Origin = newer.GetChangeId(), newer.GetOrigin()
			records[c] = r
		}
	}
	return records
}

// record is what the change says alone.
func (a *auditRecord) record() *pb.Record {
	r := &pb.Record{
		State: pb.RecordState_RECORD_STATE_TOMBSTONE, Time: nullTime(&a.Time, a.Nanos), ChangeId: a.ID, Origin: originOf(a.Origin),
		SizeUnknown: true,
	}
	if a.Deleted != 0 {
		return r
	}
	r.State, r.Digests = pb.RecordState_RECORD_STATE_LIVE, a.Digests
	r.Provenance = pb.Provenance(enumValue(pb.Provenance_value, "PROVENANCE_", a.Provenance))
	r.Size, r.SizeUnknown = reported(a.Size)
	r.Version, r.Etag = a.Version, a.ETag
	r.SourceTime, r.SourceVersion = nullTime(a.SourceTime, a.SourceNanos), a.SourceVersion
	r.MediaType, r.Properties = a.MediaType, a.Properties
	return r
}

// reported returns a size as messages have it; nil is unknown.
func reported(size *int64) (bytes int64, unknown bool) {
	if size == nil {
		return 0, true
	}
	return *size, false
}
