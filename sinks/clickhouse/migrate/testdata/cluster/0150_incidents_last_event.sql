ALTER TABLE `millrace`.incidents_local ON CLUSTER `main` ADD COLUMN IF NOT EXISTS last_event String CODEC(ZSTD(1));

ALTER TABLE `millrace`.incidents ON CLUSTER `main` ADD COLUMN IF NOT EXISTS last_event String;
