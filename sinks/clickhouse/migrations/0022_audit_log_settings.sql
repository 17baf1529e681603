-- Rows that merges make one are made one in the projections too.
ALTER TABLE {db}.audit_log MODIFY SETTING deduplicate_merge_projection_mode = 'rebuild',
  lightweight_mutation_projection_mode = 'rebuild'
