CREATE OR REPLACE VIEW {db}.job_log_v AS
SELECT * EXCEPT sum REPLACE (lower(hex(id)) AS id)
FROM {db}.job_log FINAL
SETTINGS do_not_merge_across_partitions_select_final = 1
