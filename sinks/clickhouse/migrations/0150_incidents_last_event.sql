-- The time of the newest event on record that the check of an incident has seen, in RFC 3339 with nanoseconds; empty if
-- there was none. Rows from before have empty texts, and keep their sums (sum.go).
ALTER TABLE {db}.incidents ADD COLUMN IF NOT EXISTS last_event String CODEC(ZSTD(1))
