-- Failures are rare: granules without any are passed over.
ALTER TABLE {db}.bit_log ADD INDEX IF NOT EXISTS verdicts verdict TYPE set(16) GRANULARITY 1
