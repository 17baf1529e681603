ALTER TABLE `millrace`.duplication_log_local ON CLUSTER `main` ADD COLUMN IF NOT EXISTS would_be LowCardinality(String) CODEC(ZSTD(1));

ALTER TABLE `millrace`.duplication_log ON CLUSTER `main` ADD COLUMN IF NOT EXISTS would_be LowCardinality(String);
