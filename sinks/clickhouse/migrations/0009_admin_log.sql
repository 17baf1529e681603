-- The actions of administrators. incident is the incident that a person decided about, seen the digest of what was known
-- of it.
CREATE TABLE IF NOT EXISTS {db}.admin_log (
  id FixedString(16) CODEC(NONE),
  ts DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
  ns UInt32 CODEC(ZSTD(1)),
  topic LowCardinality(String),
  inc UInt32,
  part UInt16,
  off UInt64 CODEC(ZSTD(1)),
  INDEX position off TYPE minmax GRANULARITY 64,
  who String CODEC(ZSTD(1)),
  action LowCardinality(String),
  account LowCardinality(String),
  store LowCardinality(String),
  space String CODEC(ZSTD(1)),
  item String CODEC(ZSTD(1)),
  target String CODEC(ZSTD(1)),
  reason String CODEC(ZSTD(1)),
  came_from LowCardinality(String),
  before String CODEC(ZSTD(1)),
  after String CODEC(ZSTD(1)),
  incident String CODEC(ZSTD(1)),
  seen String CODEC(ZSTD(1)),
  sum UInt64 CODEC(NONE)
) ENGINE = ReplacingMergeTree
PARTITION BY multiIf(toYear(ts) < 2000, 1999, toYear(ts) <= 2040, toYear(ts), toYear(ts) < 2299, 2041, 2299)
ORDER BY (account, ts, id)
SETTINGS non_replicated_deduplication_window = 0, replicated_deduplication_window = 0,
  fsync_after_insert = 1, fsync_part_directory = 1
