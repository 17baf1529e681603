CREATE OR REPLACE VIEW `millrace`.duplication_log_v_local ON CLUSTER `main` AS
SELECT * EXCEPT (position, hash, sum) REPLACE (lower(hex(id)) AS id,
  mapApply((k, v) -> (k, lower(hex(v))), digests) AS digests)
FROM `millrace`.duplication_log_local FINAL
WHERE account != ''
SETTINGS do_not_merge_across_partitions_select_final = 1;

CREATE OR REPLACE TABLE `millrace`.duplication_log_v ON CLUSTER `main` AS `millrace`.duplication_log_v_local
ENGINE = Distributed('main', 'millrace', 'duplication_log_v_local');
