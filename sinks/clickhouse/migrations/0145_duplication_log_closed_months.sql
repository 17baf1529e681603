-- A month to which no row was added for three days becomes one part, so that reads with FINAL merge nothing.
ALTER TABLE {db}.duplication_log MODIFY SETTING min_age_to_force_merge_seconds = 259200,
  min_age_to_force_merge_on_partition_only = 1
