ALTER TABLE `millrace`.admin_log_local ON CLUSTER `main` ADD COLUMN IF NOT EXISTS incident String CODEC(ZSTD(1)),
  ADD COLUMN IF NOT EXISTS seen String CODEC(ZSTD(1));

ALTER TABLE `millrace`.admin_log ON CLUSTER `main` ADD COLUMN IF NOT EXISTS incident String,
  ADD COLUMN IF NOT EXISTS seen String;
