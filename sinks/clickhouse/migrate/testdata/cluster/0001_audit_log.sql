CREATE TABLE IF NOT EXISTS `millrace`.audit_log_local ON CLUSTER `main` (
  id FixedString(16) CODEC(NONE),
  ts DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
  ns UInt32 CODEC(ZSTD(1)),
  topic LowCardinality(String),
  inc UInt32,
  part UInt16,
  off UInt64 CODEC(Delta, ZSTD(1)),
  INDEX position off TYPE minmax GRANULARITY 64,
  ingested DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
  op LowCardinality(String),
  account LowCardinality(String),
  store LowCardinality(String),
  space String CODEC(ZSTD(1)),
  item String CODEC(ZSTD(1)),
  source_space String CODEC(ZSTD(1)),
  source_item String CODEC(ZSTD(1)),
  version String CODEC(ZSTD(1)),
  etag String CODEC(ZSTD(1)),
  size Int64 CODEC(ZSTD(1)),
  digests Map(LowCardinality(String), String) CODEC(ZSTD(1)),
  provenance LowCardinality(String),
  media_type LowCardinality(String),
  properties Map(String, String) CODEC(ZSTD(1)),
  acl Map(String, String) CODEC(ZSTD(1)),
  sequence String CODEC(ZSTD(1)),
  user LowCardinality(String),
  agent LowCardinality(String),
  origin LowCardinality(String),
  cause String CODEC(ZSTD(1)),
  source_time Nullable(DateTime64(3, 'UTC')) CODEC(ZSTD(1)),
  source_ns UInt32 CODEC(ZSTD(1)),
  source_version String CODEC(ZSTD(1)),
  approved String CODEC(ZSTD(1)),
  evidence Map(String, String) CODEC(ZSTD(1)),
  richness UInt16
) ENGINE = ReplicatedReplacingMergeTree('/clickhouse/tables/{shard}/millrace/audit_log', '{replica}', richness)
PARTITION BY toYYYYMM(ts)
ORDER BY (account, space, item, store, ts, id)
SETTINGS non_replicated_deduplication_window = 0, replicated_deduplication_window = 0,
  fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS `millrace`.audit_log ON CLUSTER `main` AS `millrace`.audit_log_local
ENGINE = Distributed('main', 'millrace', 'audit_log_local', cityHash64(topic, part));
