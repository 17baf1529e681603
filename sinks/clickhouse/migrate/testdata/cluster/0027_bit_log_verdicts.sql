ALTER TABLE `millrace`.bit_log_local ON CLUSTER `main` ADD INDEX IF NOT EXISTS verdicts verdict TYPE set(16) GRANULARITY 1;
