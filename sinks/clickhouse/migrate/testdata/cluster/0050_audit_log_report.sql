ALTER TABLE `millrace`.audit_log_local ON CLUSTER `main` ADD COLUMN IF NOT EXISTS report UInt64 CODEC(Delta, ZSTD(1)),
  MODIFY ORDER BY (account, space, item, store, ts, id, report);

ALTER TABLE `millrace`.audit_log ON CLUSTER `main` ADD COLUMN IF NOT EXISTS report UInt64;
