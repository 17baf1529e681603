ALTER TABLE `millrace`.reports_local ON CLUSTER `main` ADD COLUMN IF NOT EXISTS destination_store LowCardinality(String);

ALTER TABLE `millrace`.reports ON CLUSTER `main` ADD COLUMN IF NOT EXISTS destination_store LowCardinality(String);
