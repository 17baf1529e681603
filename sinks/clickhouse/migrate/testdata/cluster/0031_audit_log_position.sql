ALTER TABLE `millrace`.audit_log_local ON CLUSTER `main` ADD COLUMN IF NOT EXISTS position UInt64 CODEC(ZSTD(1));

ALTER TABLE `millrace`.audit_log ON CLUSTER `main` ADD COLUMN IF NOT EXISTS position UInt64;
