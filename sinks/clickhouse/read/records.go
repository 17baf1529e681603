package read

import (
	"context"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/version"
)

// An auditQuery returns the record of the newest content of each copy, as the audit log has it: auditRecords or
// newestEvidence.
type auditQuery func(ctx context.Context, db *clickhouse.DB, copies []schemas.Copy) (map[schemas.Copy]*pb.Record, error)

// readRecords reads manifest and audit log, puts the record of each copy into known, and returns the rows of the
// manifest.
func readRecords(
	ctx context.Context, db *clickhouse.DB, copies []schemas.Copy, readAudit auditQuery,
	known map[schemas.Copy]*pb.CopyRecord,
) ([]stateRecord, error) {
	g, ctx := errgroup.WithContext(ctx)
	var audit map[schemas.Copy]*pb.Record
	g.Go(func() (err error) {
		audit, err = readAudit(ctx, db, copies)
		return err
	})
	var states []stateRecord
	g.Go(func() error {
		with, err := clickhouse.WithCopies(ctx, copies)
		if err != nil {
			return err
		}
		states, err = clickhouse.Query[stateRecord](with, db, "read the manifest",
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
			return nil, fmt.Errorf("read the manifest: got a row of %s, which was not requested", s.copy())
		}
		s.fill(r)
	}
	return states, nil
}

// requestedStates is the query of the view copy_merged for the copies that WithCopies sends, with only the groups
// that stateFields reads. Rows of positions, whose account is empty, are excluded.
const requestedStates = `SELECT account, store, space, item, max(s.content) AS content, max(s.deleted) AS deleted,
  maxMap(s.digests) AS digests, max(s.properties) AS properties, max(s.attempt) AS attempt, max(s.pass) AS pass
FROM {db}.copy_state AS s WHERE account != '' AND ` + clickhouse.RequestedCopies + `
GROUP BY account, store, space, item`

// onePass is a setting for copy_state. All columns of a granule are in one file there, so reading them all at once
// is faster than finding the rows with PREWHERE and then reading the other columns.
const onePass = " SETTINGS optimize_move_to_prewhere = 0"

func noRecord() *pb.Record { return &pb.Record{State: pb.RecordState_RECORD_STATE_NONE} }

func recordOrNone(r *pb.Record) *pb.Record {
	if r == nil {
		return noRecord()
	}
	return r
}

// stateFields are the fields of a stateRecord, selected from copy_merged. Times are in milliseconds and shifted as
// in a version, so that zero means never. Properties of a deleted content do not belong to the next content.
const stateFields = `account, store, space, item,
  toInt64(bitShiftRight(content.ver, 83)) AS written, content.ns AS written_ns, content.change AS written_by,
  content.origin AS written_origin, content.size AS size, content.version AS version, content.etag AS etag,
  content.media_type AS media_type, content.source_time AS source_time, content.source_ns AS source_ns,
  content.source_version AS source_version, digests,
  content.ver > deleted.ver AS live,
  toInt64(bitShiftRight(deleted.ver, 83)) AS gone,
  deleted.ns AS gone_ns, deleted.change AS gone_by, deleted.version AS gone_version, deleted.origin AS gone_origin,
  if((properties.ver > deleted.ver OR content.ver < deleted.ver) AS counts,
    toInt64(bitShiftRight(properties.ver, 83)), 0) AS described,
  toUInt64(bitShiftRight(properties.ver, 32)) AS described_at,
  NOT counts AND (properties.media_type != '' OR notEmpty(properties.user)) AS outdated,
  if(counts, properties.media_type, '') AS new_type,
  counts AND properties.ver > content.ver OR new_type != '' AND content.media_type = '' AS retyped,
  mapFilter((k, v) -> counts, properties.user) AS user_properties,
  toInt64(bitShiftRight(attempt.ver, 83)) AS attempted,
  toInt64(bitShiftRight(pass.ver, 83)) AS passed, pass.digests AS pass_digests`

// A copyKey is the copy that a row is about.
type copyKey struct {
	Account string `ch:"account"`
	Store   string `ch:"store"`
	Space   string `ch:"space"`
	Item    string `ch:"item"`
}

func (k copyKey) copy() schemas.Copy { return schemas.Copy(k) }

type stateRecord struct {
	copyKey
	Written           int64             `ch:"written"`
	WrittenNanos      uint64            `ch:"written_ns"` // to the reported time
	WrittenBy         string            `ch:"written_by"`
	WrittenOrigin     string            `ch:"written_origin"`
	Size              int64             `ch:"size"`
	Version           string            `ch:"version"`
	ETag              string            `ch:"etag"`
	MediaType         string            `ch:"media_type"`
	SourceTime        *time.Time        `ch:"source_time"`
	SourceNanos       uint64            `ch:"source_ns"`
	SourceVersion     string            `ch:"source_version"`
	Digests           map[string]string `ch:"digests"`
	Live              uint8             `ch:"live"`
	Deleted           int64             `ch:"gone"`
	DeletedNanos      uint64            `ch:"gone_ns"`
	DeletedBy         string            `ch:"gone_by"`
	DeletedVersion    string            `ch:"gone_version"`
	DeletedOrigin     string            `ch:"gone_origin"`
	PropertiesTime    int64             `ch:"described"`
	PropertiesVersion uint64            `ch:"described_at"` // its lower 51 bits are rank and offset
	PropertiesStale   uint8             `ch:"outdated"`     // the newest properties belong to a deleted content
	TypeReplaced      uint8             `ch:"retyped"`
	NewType           string            `ch:"new_type"`
	UserProperties    map[string]string `ch:"user_properties"`
	Attempted         int64             `ch:"attempted"`
	Passed            int64             `ch:"passed"`
	PassDigests       map[string]string `ch:"pass_digests"`
}

// fill sets the manifest, and the times of the last attempt and the last pass.
func (s *stateRecord) fill(r *pb.CopyRecord) {
	if s.Attempted != 0 {
		r.LastAttempt = unshift(s.Attempted)
	}
	if s.Written == 0 && s.Deleted == 0 {
		return // only checks have reported the copy
	}
	m := &pb.Record{
		State: pb.RecordState_RECORD_STATE_LIVE, Size: max(s.Size, 0), SizeUnknown: s.Size < 0 || s.Written == 0,
		Version: s.Version, Etag: s.ETag,
		ChangeId:      hex.EncodeToString([]byte(s.WrittenBy)),
		SourceVersion: s.SourceVersion,
		MediaType:     s.MediaType, Properties: s.UserProperties, Origin: originOf(s.WrittenOrigin),
	}
	if s.TypeReplaced != 0 {
		m.MediaType = s.NewType
	}
	m.Digests, m.Provenance, m.Claims = s.current()
	m.Time, m.Reported = bothTimes(unshift(s.Written).AsTime(), s.WrittenNanos)
	if s.SourceTime != nil {
		m.SourceTime, m.SourceEffective = bothTimes(*s.SourceTime, s.SourceNanos)
		if m.SourceEffective != nil {
			m.SourceTime, m.SourceEffective = m.SourceEffective, m.SourceTime
		}
	}
	if s.Live == 0 {
		m.State = pb.RecordState_RECORD_STATE_TOMBSTONE
		written := schemas.Reported(m).AsTime()
		m.Time, m.Reported = bothTimes(unshift(s.Deleted).AsTime(), s.DeletedNanos)
		of := s.DeletedVersion != "" && s.DeletedVersion == s.Version
		m.Disputed = s.Written != 0 && !of && written.After(schemas.Reported(m).AsTime())
		m.ChangeId, m.Origin = hex.EncodeToString([]byte(s.DeletedBy)), originOf(s.DeletedOrigin)
	}
	r.Manifest = m
	if s.Passed != 0 && m.Provenance == pb.Provenance_PROVENANCE_VERIFIED && s.passCounts(m.Digests) {
		r.LastPass = unshift(s.Passed)
	}
}

// current returns the digests of the newest content, from all reports of its change. If some are verified, it
// returns those, and the claims that they contradict.
func (s *stateRecord) current() (digests map[string]string, how pb.Provenance, claims map[string]string) {
	var verified, claimed map[string]string
	for alg, v := range s.Digests {
		if len(v) <= version.DigestAt || v[version.ChangeAt:version.DigestAt] != s.WrittenBy {
			continue
		}
		alg, isClaim := strings.CutSuffix(alg, version.ClaimMark)
		set := &verified
		if isClaim {
			set = &claimed
		}
		if *set == nil {
			*set = map[string]string{}
		}
		(*set)[alg] = hex.EncodeToString([]byte(v[version.DigestAt:]))
	}
	switch {
	case len(verified) > 0:
		maps.DeleteFunc(claimed, func(alg, d string) bool { return verified[alg] == "" || verified[alg] == d })
		return verified, pb.Provenance_PROVENANCE_VERIFIED, claimed
	case len(claimed) > 0:
		return claimed, pb.Provenance_PROVENANCE_CLAIMED, nil
	}
	return nil, pb.Provenance_PROVENANCE_UNSPECIFIED, nil
}

// passCounts reports whether the newest pass was of the current content, with these verified digests: they share a
// digest and contradict each other in none.
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

// bothTimes returns the time that orders a content and, if it is later, the reported time. The first is in
// milliseconds, and nanos are those from there to the reported time.
func bothTimes(at time.Time, nanos uint64) (orders, reported *timestamppb.Timestamp) {
	t := timestamppb.New(at.Add(time.Duration(nanos)))
	if nanos < 1e6 {
		return t, nil
	}
	return timestamppb.New(at), t
}

// unshift returns the time of the shifted milliseconds of a version.
func unshift(shifted int64) *timestamppb.Timestamp {
	return timestamppb.New(time.UnixMilli(shifted - version.Shift))
}

func nullTime(t *time.Time, nanos uint32) *timestamppb.Timestamp {
	if t == nil {
		return nil
	}
	return timestamppb.New(t.Add(time.Duration(nanos)))
}

func originOf(word string) pb.Origin { return pb.Origin(enumValue(pb.Origin_value, "ORIGIN_", word)) }

// newestReports selects the two newest writes and the two newest deletes of each copy, newest first, with the
// columns that decisions need. For copies that are scattered over the table, reading the other columns would take
// longer than the whole query, and so would the columns that order changes of the same time and reports of the same
// change. A change is ambiguous if its reports differ and richness does not select one of them.
const newestReports = `SELECT account, store, space, item, gone, ts, ns, at, lower(hex(newest.id)) AS id,
  mapApply((k, v) -> (k, lower(hex(v))), richest.1) AS digests, richest.2 AS provenance, doubtful
FROM (
  SELECT account, store, space, item, any(r.op) AS op, op = 'delete' AS gone, ts, any(r.ns) AS ns, id,
    least(ts, min(r.ingested)) AS at,
    argMax((r.digests, r.provenance), r.richness) AS richest,
    uniqExact(r.richness, r.digests, r.provenance) > uniqExact(r.richness)
      OR uniqExact(r.op IN ` + contentOps + `, r.op = 'delete', r.ns) > 1 AS doubtful
  FROM {db}.audit_log AS r
  WHERE ` + clickhouse.RequestedCopies + `
  GROUP BY account, space, item, store, ts, id
  HAVING op IN ` + contentOps + ` OR doubtful
) AS newest
ORDER BY account, store, space, item, at DESC
LIMIT 2 BY account, store, space, item, gone
SETTINGS optimize_use_projections = 0` // choosing a projection takes time, and none has all these columns

// contentOps are the operations that create or delete a content.
const contentOps = `('add', 'update', 'copy', 'delete')`

// newestChanges selects the newest write and the newest delete of each copy, the newer one first.
const newestChanges = `SELECT account, store, space, item, op = 'delete' AS gone, ts, ns, least(ts, first) AS at, id,
  origin,
  size, version, etag, media_type, digests, provenance, properties,
  source_time, source_ns, if(source_time IS NULL, NULL, least(assumeNotNull(source_time), first)) AS source_at,
  source_version
FROM {db}.audit_log_v
WHERE ` + clickhouse.RequestedCopies + `
  AND op IN ` + contentOps + `
ORDER BY account, store, space, item, at DESC, newest DESC
LIMIT 1 BY account, store, space, item, gone`

type auditRecord struct {
	copyKey
	Deleted       uint8             `ch:"gone"`
	Time          time.Time         `ch:"ts"`
	Nanos         uint32            `ch:"ns"`
	At            time.Time         `ch:"at"` // orders; Time, or earlier
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
	SourceAt      *time.Time        `ch:"source_at"`
	SourceVersion string            `ch:"source_version"`
	Ambiguous     bool              `ch:"doubtful"`
}

// newestEvidence is like auditRecords, but returns only the fields that decisions need: state, time, change, digests
// and provenance.
func newestEvidence(
	ctx context.Context, db *clickhouse.DB, copies []schemas.Copy,
) (map[schemas.Copy]*pb.Record, error) {
	rows, err := auditRows(ctx, db, copies, newestReports)
	if err != nil {
		return nil, err
	}
	rows, ambiguous := unambiguous(rows)
	records := newestContents(rows)
	if len(ambiguous) == 0 {
		return records, nil
	}
	whole, err := auditRecords(ctx, db, ambiguous)
	if err != nil {
		return nil, err
	}
	for c, r := range whole {
		records[c] = &pb.Record{
			State: r.GetState(), Digests: r.GetDigests(), Provenance: r.GetProvenance(), Time: r.GetTime(),
			Reported: r.GetReported(), ChangeId: r.GetChangeId(), SizeUnknown: true,
		}
	}
	return records, nil
}

// unambiguous splits the rows of newestReports. It returns the newest write and the newest delete of each copy, and
// the copies that need newestChanges: two of their changes have the same time, or a change is ambiguous.
func unambiguous(rows []auditRecord) (newest []auditRecord, ambiguous []schemas.Copy) {
	for len(rows) > 0 {
		c, n, unclear := rows[0].copy(), 0, false
		for ; n < len(rows) && rows[n].copy() == c; n++ {
			unclear = unclear || rows[n].Ambiguous || n > 0 && rows[n].At.Equal(rows[n-1].At)
		}
		if unclear {
			ambiguous = append(ambiguous, c)
		} else {
			newest = append(newest, firstOfEach(rows[:n])...)
		}
		rows = rows[n:]
	}
	return newest, ambiguous
}

// firstOfEach returns the first write and the first delete of rows.
func firstOfEach(rows []auditRecord) (first []auditRecord) {
	for i, a := range rows {
		if !slices.ContainsFunc(rows[:i], func(b auditRecord) bool { return b.Deleted == a.Deleted }) {
			first = append(first, a)
		}
	}
	return first
}

// auditRecords returns the record of the newest content of each copy that the audit log has.
func auditRecords(ctx context.Context, db *clickhouse.DB, copies []schemas.Copy) (map[schemas.Copy]*pb.Record, error) {
	rows, err := auditRows(ctx, db, copies, newestChanges)
	if err != nil {
		return nil, err
	}
	return newestContents(rows), nil
}

// auditRows runs a statement for the copies.
func auditRows(ctx context.Context, db *clickhouse.DB, copies []schemas.Copy, statement string) ([]auditRecord, error) {
	ctx, err := clickhouse.WithCopies(ctx, copies)
	if err != nil {
		return nil, err
	}
	return clickhouse.Query[auditRecord](ctx, db, "read the audit log", statement)
}

// newestContents returns the newest content of each copy. rows has its newest write and its newest delete, the newer
// one first.
func newestContents(rows []auditRecord) map[schemas.Copy]*pb.Record {
	records := map[schemas.Copy]*pb.Record{}
	for i := range rows {
		a := &rows[i]
		c := a.copy()
		newer, r := records[c], a.record()
		switch {
		case newer == nil:
			records[c] = r
		case a.Deleted == 0: // the newer row deletes this content
			r.State, r.Time, r.Reported = newer.GetState(), newer.GetTime(), newer.GetReported()
			r.ChangeId, r.Origin = newer.GetChangeId(), newer.GetOrigin()
			records[c] = r
		}
	}
	return records
}

// record returns what the change reports, regardless of other changes.
func (a *auditRecord) record() *pb.Record {
	r := &pb.Record{
		State: pb.RecordState_RECORD_STATE_TOMBSTONE, Time: nullTime(&a.Time, a.Nanos),
		ChangeId: a.ID, Origin: originOf(a.Origin),
		SizeUnknown: true,
	}
	if a.At.Before(a.Time) {
		r.Time, r.Reported = timestamppb.New(a.At), r.Time
	}
	if a.Deleted != 0 {
		return r
	}
	r.State, r.Digests = pb.RecordState_RECORD_STATE_LIVE, a.Digests
	r.Provenance = pb.Provenance(enumValue(pb.Provenance_value, "PROVENANCE_", a.Provenance))
	r.Size, r.SizeUnknown = reported(a.Size)
	r.Version, r.Etag = a.Version, a.ETag
	r.SourceTime, r.SourceVersion = nullTime(a.SourceTime, a.SourceNanos), a.SourceVersion
	if a.SourceTime != nil && a.SourceAt.Before(*a.SourceTime) {
		r.SourceEffective = timestamppb.New(*a.SourceAt)
	}
	r.MediaType, r.Properties = a.MediaType, a.Properties
	return r
}

// reported converts a size to its form in messages; nil: unknown.
func reported(size *int64) (bytes int64, unknown bool) {
	if size == nil {
		return 0, true
	}
	return *size, false
}

// enumValue is the inverse of enumName. It returns 0 for an unknown name.
func enumValue(values map[string]int32, prefix, word string) int32 {
	return values[prefix+strings.ToUpper(word)]
}
