ALTER TABLE `millrace`.audit_log_local ON CLUSTER `main` ADD PROJECTION IF NOT EXISTS by_space (
  SELECT account, space, ts, store, item, user ORDER BY account, space, ts
);
