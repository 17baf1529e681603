-- Rows that merges make one are made one in the projections too. A projection's columns do not take the codecs of
-- the table's: without a default of its own they are two thirds larger.
ALTER TABLE {db}.audit_log MODIFY SETTING deduplicate_merge_projection_mode = 'rebuild',
  lightweight_mutation_projection_mode = 'rebuild', default_compression_codec = 'ZSTD(1)'
