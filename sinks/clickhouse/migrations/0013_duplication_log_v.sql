-- The views show neither the sums nor the positions, which have no account.
CREATE OR REPLACE VIEW {db}.duplication_log_v AS
SELECT * EXCEPT (position, sum) REPLACE (lower(hex(id)) AS id,
  mapApply((k, v) -> (k, lower(hex(v))), digests) AS digests)
FROM {db}.duplication_log FINAL
WHERE account != ''
SETTINGS do_not_merge_across_partitions_select_final = 1
