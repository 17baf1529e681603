-- Rows from before have an empty text, and keep their sums (sum.go).
ALTER TABLE {db}.policy_history ADD COLUMN IF NOT EXISTS file_sha256 String CODEC(ZSTD(1))
