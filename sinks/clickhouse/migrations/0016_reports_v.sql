-- One row per report: a report that was published again, because its process ended before the checkpoint after it, has
-- another time. The later one is shown.
CREATE OR REPLACE VIEW {db}.reports_v AS
SELECT * EXCEPT sum REPLACE (lower(hex(id)) AS id)
FROM {db}.reports FINAL
ORDER BY ts DESC, off DESC
LIMIT 1 BY id
SETTINGS do_not_merge_across_partitions_select_final = 1
