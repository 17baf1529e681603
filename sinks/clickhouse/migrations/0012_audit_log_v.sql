-- One row a change, made of all its reports. Who did it, why and where it stands in Kafka are of the client's report,
-- or if there is none of the first; digests are of the richest report; whatever else only some reports
-- say is of the first of those, the client's before others. The first is the one that came to Kafka first: offsets order
-- only those that came at one time, since a topic may have been made anew, or got more partitions, between two reports.
-- least(ts, first) orders changes, and newest those of one such time, as the state does: by the last report, or of a
-- change that was ahead by the last one in the millisecond of its first, if that is a client's or none is. Reports that stand in the table twice change
-- nothing, so FINAL is not needed.
-- A size is NULL, and properties are unknown, if no report says what they are. A condition on what is grouped by reaches
-- the primary index; a question of very many rows takes memory for each, which max_bytes_before_external_group_by bounds.
CREATE OR REPLACE VIEW {db}.audit_log_v AS
SELECT * REPLACE (lower(hex(id)) AS id, mapApply((k, v) -> (k, lower(hex(v))), digests) AS digests)
FROM (
  WITH
    bitShiftLeft(toUInt128(toUnixTimestamp64Milli(r.ingested) + 17592186044416), 80) + bitShiftLeft(toUInt128(r.off), 32)
      + toUInt128(r.inc) AS came,
    bitShiftLeft(toUInt128(r.off), 32) + toUInt128(r.inc) AS place,
    (r.origin IN ('fixity', 'sweep'), r.ingested, bitNot(place)) AS best,
    bitShiftLeft(toUInt128(r.origin != 'client'), 127) + came AS turn,
    bitShiftLeft(toUInt128(r.richness) + 1, 117) - bitShiftRight(came, 8) AS rich
  SELECT
    r.id AS id, r.ts AS ts, argMin(r.ns, turn) AS ns,
    argMin(r.topic, turn) AS topic, argMin(r.inc, turn) AS inc, argMin(r.part, turn) AS part,
    argMin(r.off, turn) AS off,
    argMin(r.ingested, turn) AS ingested, argMin(r.op, turn) AS op,
    r.account AS account, r.store AS store, r.space AS space, r.item AS item,
    argMinIf(r.source_space, turn, r.source_space != '') AS source_space,
    argMinIf(r.source_item, turn, r.source_item != '') AS source_item,
    argMinIf(r.version, turn, r.version != '') AS version, argMinIf(r.etag, turn, r.etag != '') AS etag,
    if(max(r.size) < 0, NULL, argMinIf(r.size, turn, r.size > 0)) AS size,
    argMax(r.digests, rich) AS digests, argMax(r.provenance, rich) AS provenance,
    argMinIf(r.media_type, turn, r.media_type != '') AS media_type,
    argMinIf(r.properties, turn, notEmpty(r.properties)) AS properties, argMinIf(r.acl, turn, notEmpty(r.acl)) AS acl,
    min(r.properties_unknown) AS properties_unknown,
    argMin(r.sequence, turn) AS sequence, argMin(r.user, turn) AS user, argMin(r.agent, turn) AS agent,
    argMin(r.origin, turn) AS origin, argMin(r.cause, turn) AS cause,
    argMinIf(r.source_time, turn, r.source_time IS NOT NULL) AS source_time,
    argMinIf(r.source_ns, turn, r.source_time IS NOT NULL) AS source_ns,
    argMinIf(r.modified, turn, r.modified != '') AS modified,
    argMinIf(r.source_version, turn, r.source_version != '') AS source_version,
    argMinIf(r.approved, turn, r.approved != '') AS approved,
    argMinIf(r.evidence, turn, notEmpty(r.evidence)) AS evidence,
    max(r.richness) AS richness, min(r.ingested) AS first,
    bitShiftLeft(toUInt128(max(r.origin NOT IN ('fixity', 'sweep'))), 82)
      + if(first < r.ts, if(argMin(r.ingested, best) = first, argMin(place, best), 0),
        argMax(place, (r.origin NOT IN ('fixity', 'sweep'), place))) AS newest
  FROM {db}.audit_log AS r
  WHERE r.account != ''
  GROUP BY r.account, r.space, r.item, r.store, r.ts, r.id
)
