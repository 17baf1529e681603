ALTER TABLE `millrace`.audit_log_local ON CLUSTER `main` MATERIALIZE PROJECTION by_user;
