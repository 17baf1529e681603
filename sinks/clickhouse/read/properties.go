package read

import (
	"context"
	"strings"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/version"
)

// describeProperties completes the manifest records of live copies: it sets the content that the properties were
// reported for, if it is not the current one, and whether they are only claimed. states are the rows of these
// records. It reads the audit log for copies that need more than the state, such as those with properties older than
// the content.
func describeProperties(
	ctx context.Context, db *clickhouse.DB, states []stateRecord, known map[schemas.Copy]*pb.CopyRecord,
) error {
	var older []*stateRecord
	for i := range states {
		s := &states[i]
		m := known[s.copy()].GetManifest()
		if s.PropertiesStale != 0 {
			m.PropertiesOf = &pb.Content{}
		}
		switch {
		case s.Live == 0 || m.GetMediaType() == "" && len(m.GetProperties()) == 0:
		case s.NewType == "" && len(s.UserProperties) == 0:
			m.PropertiesClaimed = true // only a verified report proves that a content has no properties
		case s.PropertiesTime < s.Written,
			s.PropertiesTime == s.Written && len(s.UserProperties) > 0 && !s.propertiesVerified():
			older = append(older, s)
		}
	}
	if len(older) == 0 {
		return nil
	}
	copies, until := make([]schemas.Copy, len(older)), make([]int64, len(older))
	for i, s := range older {
		copies[i], until[i] = s.copy(), s.PropertiesTime-version.Shift
	}
	ctx, err := clickhouse.WithCopies(ctx, copies, until...)
	if err != nil {
		return err
	}
	rows, err := clickhouse.Query[propertyReport](ctx, db, "read the audit log", propertyReports)
	if err != nil {
		return err
	}
	found := map[schemas.Copy]propertyReport{}
	for _, d := range rows {
		found[d.copy()] = d
	}
	for _, s := range older {
		m, d := known[s.copy()].GetManifest(), found[s.copy()]
		if m.PropertiesClaimed = len(s.UserProperties) > 0 && !d.Held; !m.PropertiesClaimed && s.PropertiesTime < s.Written {
			m.PropertiesOf = &pb.Content{Version: d.Version, Digests: d.Digests}
		}
	}
	return nil
}

// propertiesVerified reports whether the report that set the properties also verified a digest of the content. If
// not, the report may have claimed the properties, or a later report has replaced the digest.
func (s *stateRecord) propertiesVerified() bool {
	at := version.Version{
		Millis: s.PropertiesTime - version.Shift,
		Rank:   s.PropertiesVersion >> 50 & 1, Offset: s.PropertiesVersion & version.MaxOffset,
	}
	report := string(at.Digest(nil, true, false, [16]byte{})[:version.ChangeAt])
	completion := string(at.Digest(nil, true, true, [16]byte{})[:version.ChangeAt])
	for _, v := range s.Digests {
		if strings.HasPrefix(v, report) || strings.HasPrefix(v, completion) {
			return true
		}
	}
	return false
}

// reportsAt is SQL for the time that orders the Change of a row of the audit log.
const reportsAt = "least(ts, min(ingested) OVER (PARTITION BY account, space, item, store, ts, id))"

// propertyReports selects, for copies and the times of their properties: whether a report of that time came from a
// program that had read or written the properties (held), and the newest content at that time, from its richest
// report.
const propertyReports = `SELECT account, store, space, item,
  countIf(toUnixTimestamp64Milli(at) = until AND notEmpty(properties) AND NOT properties_unknown
    AND (op = 'set_properties' OR provenance = 'verified')) > 0 AS held,
  argMaxIf(r.version, (at, richness, off), op != 'set_properties') AS version,
  mapApply((k, v) -> (toString(k), lower(hex(v))),
    argMaxIf(r.digests, (at, richness, off), op != 'set_properties')) AS digests
FROM (
  SELECT account, store, space, item, ` + reportsAt + ` AS at, op, off, version, digests, provenance, richness,
    properties, properties_unknown
  FROM {db}.audit_log
  WHERE ` + clickhouse.RequestedCopies + ` AND op IN ('add', 'update', 'copy', 'set_properties')
) AS r
INNER JOIN copies USING (account, store, space, item)
WHERE toUnixTimestamp64Milli(at) <= until
GROUP BY account, store, space, item
SETTINGS optimize_use_projections = 0`

type propertyReport struct {
	copyKey
	Held    bool              `ch:"held"`
	Version string            `ch:"version"`
	Digests map[string]string `ch:"digests"`
}
