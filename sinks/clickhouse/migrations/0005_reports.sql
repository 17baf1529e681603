-- The results of rounds and sweeps. destination_store is set in reports of kind pair.
CREATE TABLE IF NOT EXISTS {db}.reports (
  id FixedString(16) CODEC(NONE),
  ts DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
  ns UInt32 CODEC(ZSTD(1)),
  topic LowCardinality(String),
  inc UInt32,
  part UInt16,
  off UInt64 CODEC(ZSTD(1)),
  INDEX position off TYPE minmax GRANULARITY 64,
  kind LowCardinality(String),
  account LowCardinality(String),
  store LowCardinality(String),
  destination_store LowCardinality(String),
  space String CODEC(ZSTD(1)),
  round String CODEC(ZSTD(1)),
  started Nullable(DateTime64(3, 'UTC')) CODEC(ZSTD(1)),
  counts Map(String, Int64) CODEC(ZSTD(1)),
  complete Bool,
  detail String CODEC(ZSTD(1)),
  sum UInt64 CODEC(NONE)
) ENGINE = ReplacingMergeTree
PARTITION BY multiIf(toYear(ts) < 2000, 1999, toYear(ts) <= 2040, toYear(ts), toYear(ts) < 2299, 2041, 2299)
ORDER BY (account, store, space, kind, ts, id)
SETTINGS non_replicated_deduplication_window = 0, replicated_deduplication_window = 0,
  fsync_after_insert = 1, fsync_part_directory = 1
