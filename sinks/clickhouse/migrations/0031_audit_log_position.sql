-- How far each partition of a topic is in the table: rows of account '', of which position is not 0, in a partition of
-- their own. They are lost and restored with the table. Every other row has position 0.
ALTER TABLE {db}.audit_log ADD COLUMN IF NOT EXISTS position UInt64 CODEC(ZSTD(1))
