CREATE OR REPLACE VIEW `millrace`.dead_letters_v_local ON CLUSTER `main` AS
SELECT * REPLACE (lower(hex(id)) AS id)
FROM `millrace`.dead_letters_local FINAL
SETTINGS do_not_merge_across_partitions_select_final = 1;

CREATE OR REPLACE TABLE `millrace`.dead_letters_v ON CLUSTER `main` AS `millrace`.dead_letters_v_local
ENGINE = Distributed('main', 'millrace', 'dead_letters_v_local');
