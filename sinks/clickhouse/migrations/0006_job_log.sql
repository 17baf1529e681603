-- The iterations of sweeps and schedules.
CREATE TABLE IF NOT EXISTS {db}.job_log (
  id FixedString(16) CODEC(NONE),
  ts DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
  ns UInt32 CODEC(ZSTD(1)),
  topic LowCardinality(String),
  inc UInt32,
  part UInt16,
  off UInt64 CODEC(ZSTD(1)),
  INDEX position off TYPE minmax GRANULARITY 64,
  name String CODEC(ZSTD(1)),
  finished Nullable(DateTime64(3, 'UTC')) CODEC(ZSTD(1)),
  counts Map(String, Int64) CODEC(ZSTD(1)),
  error String CODEC(ZSTD(1)),
  sum UInt64 CODEC(NONE)
) ENGINE = ReplacingMergeTree
PARTITION BY multiIf(toYear(ts) < 2000, 1999, toYear(ts) <= 2040, toYear(ts), toYear(ts) < 2299, 2041, 2299)
ORDER BY (name, ts, id)
SETTINGS non_replicated_deduplication_window = 0, replicated_deduplication_window = 0,
  fsync_after_insert = 1, fsync_part_directory = 1
