ALTER TABLE `millrace`.audit_log_local ON CLUSTER `main` MODIFY SETTING min_age_to_force_merge_seconds = 2592000,
  min_age_to_force_merge_on_partition_only = 1;
