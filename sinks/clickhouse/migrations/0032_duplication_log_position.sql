ALTER TABLE {db}.duplication_log ADD COLUMN IF NOT EXISTS position UInt64 CODEC(ZSTD(1))
