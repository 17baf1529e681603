CREATE OR REPLACE VIEW `millrace`.space_stats_local ON CLUSTER `main` AS
SELECT ts, account, store, space, counts['items'] AS items, counts['bytes'] AS bytes, counts['unsized'] AS unsized,
  counts['verified'] AS verified, round
FROM `millrace`.reports_local FINAL
WHERE kind = 'stats'
SETTINGS do_not_merge_across_partitions_select_final = 1;

CREATE OR REPLACE TABLE `millrace`.space_stats ON CLUSTER `main` AS `millrace`.space_stats_local
ENGINE = Distributed('main', 'millrace', 'space_stats_local');
