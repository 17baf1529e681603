-- Every report of a change is kept: rows of one id are told apart by their offsets, which key columns must repeat to be
-- added. Rows from before have 0 and are merged by id, as they were.
ALTER TABLE {db}.audit_log ADD COLUMN IF NOT EXISTS report UInt64 CODEC(Delta, ZSTD(1)),
  MODIFY ORDER BY (account, space, item, store, ts, id, report)
