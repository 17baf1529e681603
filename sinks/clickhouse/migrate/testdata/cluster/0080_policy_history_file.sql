ALTER TABLE `millrace`.policy_history_local ON CLUSTER `main` ADD COLUMN IF NOT EXISTS file_sha256 String CODEC(ZSTD(1));

ALTER TABLE `millrace`.policy_history ON CLUSTER `main` ADD COLUMN IF NOT EXISTS file_sha256 String;
