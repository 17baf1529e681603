-- Which incident a person decided about, and the digest of what was known of it. Rows from before have empty texts, and
-- keep their sums (sum.go).
ALTER TABLE {db}.admin_log ADD COLUMN IF NOT EXISTS incident String CODEC(ZSTD(1)),
  ADD COLUMN IF NOT EXISTS seen String CODEC(ZSTD(1))
