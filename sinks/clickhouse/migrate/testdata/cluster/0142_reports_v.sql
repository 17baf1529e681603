CREATE OR REPLACE VIEW `millrace`.reports_v_local ON CLUSTER `main` AS
SELECT * EXCEPT (hash, sum) REPLACE (lower(hex(id)) AS id)
FROM `millrace`.reports_local FINAL
ORDER BY ts DESC, off DESC
LIMIT 1 BY id
SETTINGS do_not_merge_across_partitions_select_final = 1;

CREATE OR REPLACE TABLE `millrace`.reports_v ON CLUSTER `main` AS `millrace`.reports_v_local
ENGINE = Distributed('main', 'millrace', 'reports_v_local');
