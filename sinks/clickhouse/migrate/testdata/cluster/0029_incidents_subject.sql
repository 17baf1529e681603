ALTER TABLE `millrace`.incidents_local ON CLUSTER `main` ADD COLUMN IF NOT EXISTS subject String CODEC(ZSTD(1));

ALTER TABLE `millrace`.incidents ON CLUSTER `main` ADD COLUMN IF NOT EXISTS subject String;
