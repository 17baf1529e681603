CREATE OR REPLACE VIEW {db}.bit_log_v AS
SELECT * EXCEPT (position, sum) REPLACE (lower(hex(id)) AS id,
  arrayMap(v -> lower(hex(v)), digest.value) AS `digest.value`)
FROM {db}.bit_log FINAL
WHERE account != ''
SETTINGS do_not_merge_across_partitions_select_final = 1
