CREATE TABLE IF NOT EXISTS `millrace`.admin_log_local ON CLUSTER `main` (
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
  after String CODEC(ZSTD(1))
) ENGINE = ReplicatedReplacingMergeTree('/clickhouse/tables/{shard}/millrace/admin_log', '{replica}')
PARTITION BY toYYYYMM(ts)
ORDER BY (account, ts, id)
SETTINGS non_replicated_deduplication_window = 0, replicated_deduplication_window = 0,
  fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS `millrace`.admin_log ON CLUSTER `main` AS `millrace`.admin_log_local
ENGINE = Distributed('main', 'millrace', 'admin_log_local', cityHash64(topic, part));
