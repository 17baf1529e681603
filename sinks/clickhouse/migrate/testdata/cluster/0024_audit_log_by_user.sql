ALTER TABLE `millrace`.audit_log_local ON CLUSTER `main` ADD PROJECTION IF NOT EXISTS by_user (
  SELECT account, user, ts, space ORDER BY account, user, ts
);
