ALTER TABLE `millrace`.audit_log_local ON CLUSTER `main` MODIFY COLUMN account LowCardinality(String) CODEC(LZ4),
  MODIFY COLUMN store LowCardinality(String) CODEC(LZ4), MODIFY COLUMN space String CODEC(LZ4),
  MODIFY COLUMN item String CODEC(LZ4), MODIFY COLUMN op LowCardinality(String) CODEC(LZ4),
  MODIFY COLUMN digests Map(LowCardinality(String), String) CODEC(LZ4);

ALTER TABLE `millrace`.audit_log ON CLUSTER `main` MODIFY COLUMN account LowCardinality(String),
  MODIFY COLUMN store LowCardinality(String), MODIFY COLUMN space String,
  MODIFY COLUMN item String, MODIFY COLUMN op LowCardinality(String),
  MODIFY COLUMN digests Map(LowCardinality(String), String);
