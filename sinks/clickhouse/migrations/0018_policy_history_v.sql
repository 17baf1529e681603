CREATE OR REPLACE VIEW {db}.policy_history_v AS
SELECT * EXCEPT sum REPLACE (lower(hex(id)) AS id)
FROM {db}.policy_history FINAL
SETTINGS do_not_merge_across_partitions_select_final = 1
