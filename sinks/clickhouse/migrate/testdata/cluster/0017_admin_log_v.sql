CREATE OR REPLACE VIEW `millrace`.admin_log_v_local ON CLUSTER `main` AS
SELECT * REPLACE (lower(hex(id)) AS id)
FROM `millrace`.admin_log_local FINAL
SETTINGS do_not_merge_across_partitions_select_final = 1;

CREATE OR REPLACE TABLE `millrace`.admin_log_v ON CLUSTER `main` AS `millrace`.admin_log_v_local
ENGINE = Distributed('main', 'millrace', 'admin_log_v_local');
