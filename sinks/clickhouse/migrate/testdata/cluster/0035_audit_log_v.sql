CREATE OR REPLACE VIEW `millrace`.audit_log_v_local ON CLUSTER `main` AS
SELECT * EXCEPT position REPLACE (lower(hex(id)) AS id, mapApply((k, v) -> (k, lower(hex(v))), digests) AS digests)
FROM `millrace`.audit_log_local FINAL
WHERE position = 0
SETTINGS do_not_merge_across_partitions_select_final = 1;

CREATE OR REPLACE TABLE `millrace`.audit_log_v ON CLUSTER `main` AS `millrace`.audit_log_v_local
ENGINE = Distributed('main', 'millrace', 'audit_log_v_local');
