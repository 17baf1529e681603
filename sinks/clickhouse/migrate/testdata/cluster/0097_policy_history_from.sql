ALTER TABLE `millrace`.policy_history_local ON CLUSTER `main` ADD COLUMN IF NOT EXISTS came_from LowCardinality(String),
  ADD COLUMN IF NOT EXISTS location String CODEC(ZSTD(1));

ALTER TABLE `millrace`.policy_history ON CLUSTER `main` ADD COLUMN IF NOT EXISTS came_from LowCardinality(String),
  ADD COLUMN IF NOT EXISTS location String;
