-- The version of the source's content, in the rows of rewrites that wait for approval. Rows from before have empty
-- texts, and keep their sums (sum.go).
ALTER TABLE {db}.duplication_log ADD COLUMN IF NOT EXISTS source_version String CODEC(ZSTD(1))
