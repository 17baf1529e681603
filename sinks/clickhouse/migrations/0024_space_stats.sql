-- The items and bytes of each space in each store, counted once a day.
CREATE OR REPLACE VIEW {db}.space_stats AS
SELECT ts, account, store, space, counts['items'] AS items, counts['bytes'] AS bytes, counts['unsized'] AS unsized,
  counts['verified'] AS verified, round
FROM {db}.reports FINAL
WHERE kind = 'stats'
SETTINGS do_not_merge_across_partitions_select_final = 1
