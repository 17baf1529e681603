CREATE OR REPLACE VIEW `millrace`.account_history_v_local ON CLUSTER `main` AS
SELECT * EXCEPT (hash, sum) REPLACE (lower(hex(id)) AS id)
FROM `millrace`.account_history_local FINAL
SETTINGS do_not_merge_across_partitions_select_final = 1;

CREATE OR REPLACE TABLE `millrace`.account_history_v ON CLUSTER `main` AS `millrace`.account_history_v_local
ENGINE = Distributed('main', 'millrace', 'account_history_v_local');
