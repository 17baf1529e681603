-- What is on record of the content of each copy now: live, or a tombstone that keeps the digests of the content
-- before it. Digests are those of the newest content alone, the verified ones where there are any; claims are claimed
-- ones that they contradict. A size that the
-- last report of the content's time does not say is NULL, whatever earlier reports of that time say. Media type,
-- properties and rights of a content that is deleted are not those of the next one. Properties that are set
-- without a media type have none. Else a content that is reported without a media type, and without digests or
-- with properties that its store cannot tell, has the media type that was on record before.
CREATE OR REPLACE VIEW {db}.manifest AS
SELECT
  account, store, space, item,
  content.ver > deleted.ver AS live,
  if(notEmpty(computed), computed, claimed) AS digests, notEmpty(computed) AS verified,
  mapFilter((k, v) -> mapContains(computed, k) AND computed[k] != v, claimed) AS claims,
  if(content.ver = 0 OR content.size < 0, NULL, content.size) AS size, content.version AS version, content.etag AS etag,
  if((properties.ver > deleted.ver OR NOT live)
      AND (properties.ver > content.ver OR properties.media_type != '' AND content.media_type = ''),
    properties.media_type, content.media_type) AS media_type,
  mapFilter((k, v) -> properties.ver > deleted.ver OR NOT live, properties.user) AS properties,
  mapFilter((k, v) -> acl.ver > deleted.ver OR NOT live, acl.rights) AS acl,
  fromUnixTimestamp64Milli(toInt64(bitShiftRight(greatest(content.ver, deleted.ver), 83)) - 17592186044416
    + toInt64(intDiv(if(live, content.ns, deleted.ns), 1000000)), 'UTC') AS time,
  lower(hex(if(live, content.change, deleted.change))) AS change,
  if(live, content.origin, deleted.origin) AS origin,
  if(live, content.user, deleted.user) AS user,
  addMilliseconds(content.source_time, toInt64(intDiv(content.source_ns, 1000000))) AS source_time, content.source_version AS source_version,
  if(attempt.ver = 0, NULL, fromUnixTimestamp64Milli(toInt64(bitShiftRight(attempt.ver, 83)) - 17592186044416, 'UTC')) AS last_attempt,
  if(pass.ver = 0, NULL, fromUnixTimestamp64Milli(toInt64(bitShiftRight(pass.ver, 83)) - 17592186044416, 'UTC')) AS last_pass,
  mapApply((k, v) -> (k, lower(hex(v))), pass.digests) AS passed,
  if(fail.ver = 0, NULL, fromUnixTimestamp64Milli(toInt64(bitShiftRight(fail.ver, 83)) - 17592186044416, 'UTC')) AS last_fail,
  fail.finding AS last_finding,
  if(asserted.ver = 0, NULL, fromUnixTimestamp64Milli(toInt64(bitShiftRight(asserted.ver, 83)) - 17592186044416, 'UTC')) AS last_asserted
FROM (
  SELECT * EXCEPT digests, mapFilter((k, v) -> substring(v, 18, 16) = content.change, digests) AS current,
    mapApply((k, v) -> (k, lower(hex(substring(v, 34)))), mapFilter((k, v) -> NOT endsWith(k, '?'), current)) AS computed,
    mapApply((k, v) -> (substring(k, 1, length(k) - 1), lower(hex(substring(v, 34)))),
      mapFilter((k, v) -> endsWith(k, '?'), current)) AS claimed
  FROM {db}.copy_merged
)
WHERE content.ver > 0 OR deleted.ver > 0
