-- The destination of a report of kind pair. Rows from before have empty texts, and keep their sums (sum.go).
ALTER TABLE {db}.reports ADD COLUMN IF NOT EXISTS destination_store LowCardinality(String)
