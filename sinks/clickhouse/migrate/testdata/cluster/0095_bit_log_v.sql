CREATE OR REPLACE VIEW `millrace`.bit_log_v_local ON CLUSTER `main` AS
SELECT * EXCEPT (position, hash, sum) REPLACE (lower(hex(id)) AS id,
  arrayMap(v -> lower(hex(v)), digest.value) AS `digest.value`)
FROM `millrace`.bit_log_local FINAL
WHERE account != ''
SETTINGS do_not_merge_across_partitions_select_final = 1;

CREATE OR REPLACE TABLE `millrace`.bit_log_v ON CLUSTER `main` AS `millrace`.bit_log_v_local
ENGINE = Distributed('main', 'millrace', 'bit_log_v_local');
