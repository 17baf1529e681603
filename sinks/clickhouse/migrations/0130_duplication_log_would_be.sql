-- What the result would have been if the command had not been a dry run. Rows from before have empty texts, and keep
-- their sums (sum.go).
ALTER TABLE {db}.duplication_log ADD COLUMN IF NOT EXISTS would_be LowCardinality(String) CODEC(ZSTD(1))
