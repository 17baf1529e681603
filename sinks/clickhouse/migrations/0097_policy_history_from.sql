-- Rows from before have empty texts, and keep their sums (sum.go).
ALTER TABLE {db}.policy_history ADD COLUMN IF NOT EXISTS came_from LowCardinality(String),
  ADD COLUMN IF NOT EXISTS location String CODEC(ZSTD(1))
