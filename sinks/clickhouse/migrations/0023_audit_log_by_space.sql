-- What happened in a space, by time: it says where the rows are, not all that they say. Ids are
-- left out, since they do not compress and a row would cost twice.
ALTER TABLE {db}.audit_log ADD PROJECTION IF NOT EXISTS by_space (
  SELECT account, space, ts, store, item, user ORDER BY account, space, ts
)
