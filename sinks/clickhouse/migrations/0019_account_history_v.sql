CREATE OR REPLACE VIEW {db}.account_history_v AS
SELECT * EXCEPT sum REPLACE (lower(hex(id)) AS id)
FROM {db}.account_history FINAL
SETTINGS do_not_merge_across_partitions_select_final = 1
