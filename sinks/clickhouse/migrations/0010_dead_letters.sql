-- Every dead letter with its bytes, by its record's own time. Its id is a function of its position.
CREATE TABLE IF NOT EXISTS {db}.dead_letters (
  id FixedString(16) CODEC(NONE),
  ts DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
  ns UInt32 CODEC(ZSTD(1)),
  topic LowCardinality(String),
  inc UInt32,
  part UInt16,
  off UInt64 CODEC(ZSTD(1)),
  INDEX position off TYPE minmax GRANULARITY 64,
  origin_topic LowCardinality(String),
  origin_part Int32 CODEC(ZSTD(1)),
  origin_off Int64 CODEC(ZSTD(1)),
  origin_time Nullable(DateTime64(3, 'UTC')) CODEC(ZSTD(1)),
  role LowCardinality(String),
  class LowCardinality(String),
  error String CODEC(ZSTD(1)),
  attempts Int32,
  waits Int32,
  unavailable Int32,
  history String CODEC(ZSTD(1)),
  message String CODEC(ZSTD(1)),
  type LowCardinality(String),
  account LowCardinality(String),
  space String CODEC(ZSTD(1)),
  item String CODEC(ZSTD(1)),
  key String CODEC(ZSTD(1)),
  value String CODEC(ZSTD(1)),
  header Nested(name LowCardinality(String), value String) CODEC(ZSTD(1)),
  sum UInt64 CODEC(NONE)
) ENGINE = ReplacingMergeTree
PARTITION BY multiIf(toYear(ts) < 2000, 1999, toYear(ts) <= 2040, toYear(ts), toYear(ts) < 2299, 2041, 2299)
ORDER BY (origin_topic, class, ts, id)
SETTINGS non_replicated_deduplication_window = 0, replicated_deduplication_window = 0,
  fsync_after_insert = 1, fsync_part_directory = 1
