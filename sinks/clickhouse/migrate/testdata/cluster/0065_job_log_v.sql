CREATE OR REPLACE VIEW `millrace`.job_log_v_local ON CLUSTER `main` AS
SELECT * EXCEPT (hash, sum) REPLACE (lower(hex(id)) AS id)
FROM `millrace`.job_log_local FINAL
SETTINGS do_not_merge_across_partitions_select_final = 1;

CREATE OR REPLACE TABLE `millrace`.job_log_v ON CLUSTER `main` AS `millrace`.job_log_v_local
ENGINE = Distributed('main', 'millrace', 'job_log_v_local');
