ALTER TABLE `millrace`.bit_log_local ON CLUSTER `main` ADD COLUMN IF NOT EXISTS metadata LowCardinality(String),
  ADD COLUMN IF NOT EXISTS metadata_detail String CODEC(ZSTD(1));

ALTER TABLE `millrace`.bit_log ON CLUSTER `main` ADD COLUMN IF NOT EXISTS metadata LowCardinality(String),
  ADD COLUMN IF NOT EXISTS metadata_detail String;
