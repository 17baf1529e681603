CREATE OR REPLACE VIEW {db}.incidents_v AS
SELECT * EXCEPT sum REPLACE (lower(hex(id)) AS id, mapApply((k, v) -> (k, lower(hex(v))), expected) AS expected,
  mapApply((k, v) -> (k, lower(hex(v))), found) AS found)
FROM {db}.incidents FINAL
SETTINGS do_not_merge_across_partitions_select_final = 1
