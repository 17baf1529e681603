CREATE OR REPLACE VIEW `millrace`.policy_history_v_local ON CLUSTER `main` AS
SELECT * EXCEPT (hash, sum) REPLACE (lower(hex(id)) AS id)
FROM `millrace`.policy_history_local FINAL
SETTINGS do_not_merge_across_partitions_select_final = 1;

CREATE OR REPLACE TABLE `millrace`.policy_history_v ON CLUSTER `main` AS `millrace`.policy_history_v_local
ENGINE = Distributed('main', 'millrace', 'policy_history_v_local');
