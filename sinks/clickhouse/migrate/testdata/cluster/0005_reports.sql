CREATE TABLE IF NOT EXISTS `millrace`.reports_local ON CLUSTER `main` (
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
  space String CODEC(ZSTD(1)),
  round String CODEC(ZSTD(1)),
  started Nullable(DateTime64(3, 'UTC')) CODEC(ZSTD(1)),
  counts Map(String, Int64) CODEC(ZSTD(1)),
  complete Bool,
  detail String CODEC(ZSTD(1))
) ENGINE = ReplicatedReplacingMergeTree('/clickhouse/tables/{shard}/millrace/reports', '{replica}')
PARTITION BY toYYYYMM(ts)
ORDER BY (account, store, space, kind, ts, id)
SETTINGS non_replicated_deduplication_window = 0, replicated_deduplication_window = 0,
  fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS `millrace`.reports ON CLUSTER `main` AS `millrace`.reports_local
ENGINE = Distributed('main', 'millrace', 'reports_local', cityHash64(topic, part));
