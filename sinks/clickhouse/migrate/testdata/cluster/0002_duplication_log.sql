CREATE TABLE IF NOT EXISTS `millrace`.duplication_log_local ON CLUSTER `main` (
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
  newer Bool,
  worker LowCardinality(String),
  host LowCardinality(String),
  software LowCardinality(String),
  incident String CODEC(ZSTD(1))
) ENGINE = ReplicatedReplacingMergeTree('/clickhouse/tables/{shard}/millrace/duplication_log', '{replica}')
PARTITION BY toYYYYMM(ts)
ORDER BY (account, space, item, destination_store, ts, id)
SETTINGS non_replicated_deduplication_window = 0, replicated_deduplication_window = 0,
  fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS `millrace`.duplication_log ON CLUSTER `main` AS `millrace`.duplication_log_local
ENGINE = Distributed('main', 'millrace', 'duplication_log_local', cityHash64(topic, part));
