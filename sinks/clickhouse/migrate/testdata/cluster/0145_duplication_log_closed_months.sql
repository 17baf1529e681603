ALTER TABLE `millrace`.duplication_log_local ON CLUSTER `main` MODIFY SETTING min_age_to_force_merge_seconds = 259200,
  min_age_to_force_merge_on_partition_only = 1;
