-- What an incident without an item is about, beside its kind.
ALTER TABLE {db}.incidents ADD COLUMN IF NOT EXISTS subject String CODEC(ZSTD(1))
