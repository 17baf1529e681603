-- Every record of every incident, in the year in which the incident was opened. Each
-- carries its last steps; the first of them is number first_step.
-- subject is what an incident without an item is about, beside its kind. last_event is the time of the newest event on
-- record that the check of the incident has seen, in RFC 3339 with nanoseconds; empty if there was none.
CREATE TABLE IF NOT EXISTS {db}.incidents (
  id FixedString(16) CODEC(NONE),
  ts DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
  ns UInt32 CODEC(ZSTD(1)),
  topic LowCardinality(String),
  inc UInt32,
  part UInt16,
  off UInt64 CODEC(ZSTD(1)),
  INDEX position off TYPE minmax GRANULARITY 64,
  account LowCardinality(String),
  store LowCardinality(String),
  space String CODEC(ZSTD(1)),
  item String CODEC(ZSTD(1)),
  kind LowCardinality(String),
  state LowCardinality(String),
  updated Nullable(DateTime64(3, 'UTC')) CODEC(ZSTD(1)),
  closed Nullable(DateTime64(3, 'UTC')) CODEC(ZSTD(1)),
  checked Nullable(DateTime64(3, 'UTC')) CODEC(ZSTD(1)),
  row UInt8,
  expected Map(LowCardinality(String), String) CODEC(ZSTD(1)),
  found Map(LowCardinality(String), String) CODEC(ZSTD(1)),
  object_version String CODEC(ZSTD(1)),
  object_etag String CODEC(ZSTD(1)),
  object_modified Nullable(DateTime64(3, 'UTC')) CODEC(ZSTD(1)),
  object_ns UInt32 CODEC(ZSTD(1)),
  object_size Int64 CODEC(ZSTD(1)),
  repairs Int32,
  step_count Int32,
  revision Int64 CODEC(ZSTD(1)),
  first_step Int32,
  step Nested(time DateTime64(3, 'UTC'), action LowCardinality(String), ref String, by String, detail String) CODEC(ZSTD(1)),
  subject String CODEC(ZSTD(1)),
  last_event String CODEC(ZSTD(1)),
  sum UInt64 CODEC(NONE)
) ENGINE = ReplacingMergeTree
PARTITION BY multiIf(toYear(ts) < 2000, 1999, toYear(ts) <= 2040, toYear(ts), toYear(ts) < 2299, 2041, 2299)
ORDER BY (account, space, item, store, kind, ts, step_count, revision, id)
SETTINGS non_replicated_deduplication_window = 0, replicated_deduplication_window = 0,
  fsync_after_insert = 1, fsync_part_directory = 1
