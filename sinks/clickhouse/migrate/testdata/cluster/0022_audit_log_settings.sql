ALTER TABLE `millrace`.audit_log_local ON CLUSTER `main` MODIFY SETTING deduplicate_merge_projection_mode = 'rebuild',
  lightweight_mutation_projection_mode = 'rebuild', default_compression_codec = 'ZSTD(1)';
