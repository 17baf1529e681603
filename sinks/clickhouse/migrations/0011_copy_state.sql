-- The state of every copy, merged out of what each record knows, in any order and any number of
-- times. Each group carries its version (ver): the time that orders it, then Kafka order, as one wide integer;
-- the greatest stays. ns is the time from the millisecond of that to the reported time, in nanoseconds; source_time and
-- source_ns likewise. Values of digests are: the version of the record, big-endian; its change; the digest. Keys of
-- claimed digests end with a question mark.
-- Copies are looked up one by one, anywhere: a granule is few rows, its columns lie side by side in one file
-- and each is a block that is unpacked in no time (with wide parts and blocks of 64 KiB that takes ten times as long).
--
-- position is how far a partition of a topic is in the table, in rows whose key is: account '', the topic, its
-- incarnation, the partition. Kafka's time of the first record of a Change whose time was ever ahead of it is in rows
-- whose key is: account '', store '', the reported time and the id; their position is 17592186044416 minus that time in
-- milliseconds. Every other row has position 0.
CREATE TABLE IF NOT EXISTS {db}.copy_state (
  account LowCardinality(String),
  store LowCardinality(String),
  space String,
  item String,
  content SimpleAggregateFunction(max, Tuple(ver UInt128, ns UInt64, change FixedString(16), size Int64, version String,
    etag String, media_type String, origin String, user String, source_time Nullable(DateTime64(3, 'UTC')),
    source_ns UInt64, source_version String)),
  deleted SimpleAggregateFunction(max, Tuple(ver UInt128, ns UInt64, change FixedString(16), version String,
    origin String, user String)),
  digests SimpleAggregateFunction(maxMap, Map(String, String)),
  properties SimpleAggregateFunction(max, Tuple(ver UInt128, media_type String, user Map(String, String))),
  acl SimpleAggregateFunction(max, Tuple(ver UInt128, rights Map(String, String))),
  attempt SimpleAggregateFunction(max, Tuple(ver UInt128, verdict String, row UInt8)),
  pass SimpleAggregateFunction(max, Tuple(ver UInt128, digests Map(String, String))),
  fail SimpleAggregateFunction(max, Tuple(ver UInt128, finding String, row UInt8)),
  asserted SimpleAggregateFunction(max, Tuple(ver UInt128, level UInt8)),
  position SimpleAggregateFunction(max, UInt64)
) ENGINE = AggregatingMergeTree
ORDER BY (account, store, space, item)
SETTINGS non_replicated_deduplication_window = 0, replicated_deduplication_window = 0,
  fsync_after_insert = 1, fsync_part_directory = 1,
  index_granularity = 256, min_compress_block_size = 1024, min_bytes_for_wide_part = 1000000000000, min_rows_for_wide_part = 1000000000000
