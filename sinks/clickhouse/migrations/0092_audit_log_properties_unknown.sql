-- Whether the store could not tell media type and properties. Rows from before say no, and keep their sums (sum.go). An
-- unknown size is -1 in this table; in rows from before it is 0.
ALTER TABLE {db}.audit_log ADD COLUMN IF NOT EXISTS properties_unknown Bool CODEC(ZSTD(1))
