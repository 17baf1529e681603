-- Every report of every Change: rows of one id are told apart by their offsets. ns is the part of the time below a
-- millisecond. modified is the date of a file, as text, if it is not ts. Digests are raw bytes. An unknown size is -1. Every log has one sum for each row (sum.go).
--
-- Fresh reads find copies by account, space, item and store, and unpack most of op, digests, ts and ingested if the
-- copies lie anywhere: LZ4 is unpacked in half the time of ZSTD and takes a few bytes a row more. T64 keeps the bits in which the
-- values of a block differ: it is unpacked several times as fast as Delta with ZSTD, and takes less space if times are in
-- no order.
--
-- The projections find rows by space and by user. They leave out ids, which do not compress and would double the cost of
-- a row. They do not take the codecs of the columns, so the table has a default. Rows that a merge replaces are replaced
-- in the projections, too.
--
-- position is how far a partition of a topic is in the table, in rows of account '' in a partition of their own. They are
-- lost and restored with the table. Every other row has position 0.
--
-- A year to which no row was added for 30 days becomes one part. Imports add rows to old years, and a merge of the whole
-- year for each of them would be dear.
CREATE TABLE IF NOT EXISTS {db}.audit_log (
  id FixedString(16) CODEC(NONE),
  ts DateTime64(3, 'UTC') CODEC(T64, LZ4),
  ns UInt32 CODEC(ZSTD(1)),
  topic LowCardinality(String),
  inc UInt32,
  part UInt16,
  off UInt64 CODEC(Delta, ZSTD(1)),
  INDEX position off TYPE minmax GRANULARITY 64,
  ingested DateTime64(3, 'UTC') CODEC(T64, LZ4),
  op LowCardinality(String) CODEC(LZ4),
  account LowCardinality(String) CODEC(LZ4),
  store LowCardinality(String) CODEC(LZ4),
  space String CODEC(LZ4),
  item String CODEC(LZ4),
  source_space String CODEC(ZSTD(1)),
  source_item String CODEC(ZSTD(1)),
  version String CODEC(ZSTD(1)),
  etag String CODEC(ZSTD(1)),
  size Int64 CODEC(ZSTD(1)),
  digests Map(LowCardinality(String), String) CODEC(LZ4),
  provenance LowCardinality(String),
  media_type LowCardinality(String),
  properties Map(String, String) CODEC(ZSTD(1)),
  acl Map(String, String) CODEC(ZSTD(1)),
  properties_unknown Bool CODEC(ZSTD(1)),
  sequence String CODEC(ZSTD(1)),
  user LowCardinality(String),
  agent LowCardinality(String),
  origin LowCardinality(String),
  cause String CODEC(ZSTD(1)),
  source_time Nullable(DateTime64(3, 'UTC')) CODEC(ZSTD(1)),
  source_ns UInt32 CODEC(ZSTD(1)),
  modified String CODEC(ZSTD(1)),
  source_version String CODEC(ZSTD(1)),
  approved String CODEC(ZSTD(1)),
  evidence Map(String, String) CODEC(ZSTD(1)),
  richness UInt16,
  position UInt64 CODEC(ZSTD(1)),
  sum UInt64 CODEC(NONE),
  PROJECTION by_space (SELECT account, space, ts, store, item, user ORDER BY account, space, ts),
  PROJECTION by_user (SELECT account, user, ts, space ORDER BY account, user, ts)
) ENGINE = ReplacingMergeTree(richness)
PARTITION BY multiIf(toYear(ts) < 2000, 1999, toYear(ts) <= 2040, toYear(ts), toYear(ts) < 2299, 2041, 2299)
PRIMARY KEY (account, space, item, store, ts, id)
ORDER BY (account, space, item, store, ts, id, off)
SETTINGS non_replicated_deduplication_window = 0, replicated_deduplication_window = 0,
  fsync_after_insert = 1, fsync_part_directory = 1,
  deduplicate_merge_projection_mode = 'rebuild', lightweight_mutation_projection_mode = 'rebuild',
  default_compression_codec = 'ZSTD(1)',
  min_age_to_force_merge_seconds = 2592000, min_age_to_force_merge_on_partition_only = 1
