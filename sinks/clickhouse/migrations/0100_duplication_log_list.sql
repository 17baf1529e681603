-- The list on which a delete waits for approval, or that was approved and had the delete. Rows from before have empty
-- texts, and keep their sums (sum.go).
ALTER TABLE {db}.duplication_log ADD COLUMN IF NOT EXISTS list String CODEC(ZSTD(1))
