-- hash is the hash of the record's value as it stands in Kafka, sum that of all other columns of the row (sum.go). Rows
-- from before have 0. Hashes do not compress.
ALTER TABLE {db}.audit_log ADD COLUMN IF NOT EXISTS hash UInt64 CODEC(NONE),
  ADD COLUMN IF NOT EXISTS sum UInt64 CODEC(NONE)
