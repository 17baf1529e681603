-- Every end of a command: results by when they finished, and dead letters (decision dead). list is the list on which a
-- delete or a rewrite waits for approval, or that was approved and had it, and effect identifies what waits or was done;
-- source_version is the version of the source's content, in the rows of rewrites that wait for approval; would_be is
-- what the result of a dry run would have been; planned is Kafka's time of the causing change, from which delays are
-- counted: change_time may be that of an old file. position is as in audit_log.
--
-- A year to which no row was added for 30 days becomes one part, so that reads with FINAL merge nothing.
CREATE TABLE IF NOT EXISTS {db}.duplication_log (
  id FixedString(16) CODEC(NONE),
  ts DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
  ns UInt32 CODEC(ZSTD(1)),
  topic LowCardinality(String),
  inc UInt32,
  part UInt16,
  off UInt64 CODEC(ZSTD(1)),
  INDEX position off TYPE minmax GRANULARITY 64,
  command String CODEC(ZSTD(1)),
  cause String CODEC(ZSTD(1)),
  account LowCardinality(String),
  space String CODEC(ZSTD(1)),
  item String CODEC(ZSTD(1)),
  source_store LowCardinality(String),
  destination_store LowCardinality(String),
  reason LowCardinality(String),
  decision LowCardinality(String),
  result LowCardinality(String),
  outcome LowCardinality(String),
  bytes Int64 CODEC(ZSTD(1)),
  digests Map(LowCardinality(String), String) CODEC(ZSTD(1)),
  started Nullable(DateTime64(3, 'UTC')) CODEC(ZSTD(1)),
  attempt Int32 CODEC(ZSTD(1)),
  error_class LowCardinality(String),
  error String CODEC(ZSTD(1)),
  detail String CODEC(ZSTD(1)),
  change_time Nullable(DateTime64(3, 'UTC')) CODEC(ZSTD(1)),
  planned Nullable(DateTime64(3, 'UTC')) CODEC(ZSTD(1)),
  newer Bool,
  worker LowCardinality(String),
  host LowCardinality(String),
  software LowCardinality(String),
  incident String CODEC(ZSTD(1)),
  list String CODEC(ZSTD(1)),
  effect String CODEC(ZSTD(1)),
  source_version String CODEC(ZSTD(1)),
  would_be LowCardinality(String) CODEC(ZSTD(1)),
  position UInt64 CODEC(ZSTD(1)),
  sum UInt64 CODEC(NONE)
) ENGINE = ReplacingMergeTree
PARTITION BY multiIf(toYear(ts) < 2000, 1999, toYear(ts) <= 2040, toYear(ts), toYear(ts) < 2299, 2041, 2299)
ORDER BY (account, space, item, destination_store, ts, id)
SETTINGS non_replicated_deduplication_window = 0, replicated_deduplication_window = 0,
  fsync_after_insert = 1, fsync_part_directory = 1,
  min_age_to_force_merge_seconds = 2592000, min_age_to_force_merge_on_partition_only = 1
