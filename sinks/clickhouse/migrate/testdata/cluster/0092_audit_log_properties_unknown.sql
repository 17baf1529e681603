ALTER TABLE `millrace`.audit_log_local ON CLUSTER `main` ADD COLUMN IF NOT EXISTS properties_unknown Bool CODEC(ZSTD(1));

ALTER TABLE `millrace`.audit_log ON CLUSTER `main` ADD COLUMN IF NOT EXISTS properties_unknown Bool;
