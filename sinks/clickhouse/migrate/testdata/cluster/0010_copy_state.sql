CREATE TABLE IF NOT EXISTS `millrace`.copy_state_local ON CLUSTER `main` (
  account LowCardinality(String),
  store LowCardinality(String),
  space String,
  item String,
  content SimpleAggregateFunction(max, Tuple(ver UInt128, ns UInt32, change FixedString(16), size Int64, version String,
    etag String, media_type String, origin String, user String, source_time Nullable(DateTime64(3, 'UTC')),
    source_ns UInt32, source_version String)),
  deleted SimpleAggregateFunction(max, Tuple(ver UInt128, ns UInt32, change FixedString(16), origin String, user String)),
  digests SimpleAggregateFunction(maxMap, Map(String, String)),
  properties SimpleAggregateFunction(max, Tuple(ver UInt128, media_type String, user Map(String, String))),
  acl SimpleAggregateFunction(max, Tuple(ver UInt128, rights Map(String, String))),
  attempt SimpleAggregateFunction(max, Tuple(ver UInt128, verdict String, row UInt8)),
  pass SimpleAggregateFunction(max, Tuple(ver UInt128, digests Map(String, String))),
  fail SimpleAggregateFunction(max, Tuple(ver UInt128, finding String, row UInt8)),
  asserted SimpleAggregateFunction(max, Tuple(ver UInt128, level UInt8))
) ENGINE = ReplicatedAggregatingMergeTree('/clickhouse/tables/{shard}/millrace/copy_state', '{replica}')
ORDER BY (account, store, space, item)
SETTINGS non_replicated_deduplication_window = 0, replicated_deduplication_window = 0,
  fsync_after_insert = 1, fsync_part_directory = 1,
  index_granularity = 256, min_compress_block_size = 1024, min_bytes_for_wide_part = 1000000000000, min_rows_for_wide_part = 1000000000000;

CREATE TABLE IF NOT EXISTS `millrace`.copy_state ON CLUSTER `main` AS `millrace`.copy_state_local
ENGINE = Distributed('main', 'millrace', 'copy_state_local', cityHash64(account, store, space, item));
