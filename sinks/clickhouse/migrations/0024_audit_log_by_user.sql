-- When and in which spaces a user did something; by_space knows what.
ALTER TABLE {db}.audit_log ADD PROJECTION IF NOT EXISTS by_user (
  SELECT account, user, ts, space ORDER BY account, user, ts
)
