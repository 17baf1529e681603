-- A month to which no row was added for 30 days becomes one part. Imports add rows to old months, and a merge of the
-- whole month for each of them would be dear.
ALTER TABLE {db}.audit_log MODIFY SETTING min_age_to_force_merge_seconds = 2592000,
  min_age_to_force_merge_on_partition_only = 1
