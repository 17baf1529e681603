CREATE OR REPLACE VIEW `millrace`.incidents_v_local ON CLUSTER `main` AS
SELECT * EXCEPT (hash, sum) REPLACE (lower(hex(id)) AS id, mapApply((k, v) -> (k, lower(hex(v))), expected) AS expected,
  mapApply((k, v) -> (k, lower(hex(v))), found) AS found)
FROM `millrace`.incidents_local FINAL
SETTINGS do_not_merge_across_partitions_select_final = 1;

CREATE OR REPLACE TABLE `millrace`.incidents_v ON CLUSTER `main` AS `millrace`.incidents_v_local
ENGINE = Distributed('main', 'millrace', 'incidents_v_local');
