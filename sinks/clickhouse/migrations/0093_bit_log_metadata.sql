-- What a check found of media type and properties, whatever its verdict: intact, damaged, or an empty text if they were not
-- compared. Rows from before have empty texts, and keep their sums (sum.go).
ALTER TABLE {db}.bit_log ADD COLUMN IF NOT EXISTS metadata LowCardinality(String),
  ADD COLUMN IF NOT EXISTS metadata_detail String CODEC(ZSTD(1))
