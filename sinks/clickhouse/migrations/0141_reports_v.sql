CREATE OR REPLACE VIEW {db}.reports_v AS
SELECT * EXCEPT (hash, sum) REPLACE (lower(hex(id)) AS id)
FROM {db}.reports FINAL
SETTINGS do_not_merge_across_partitions_select_final = 1
