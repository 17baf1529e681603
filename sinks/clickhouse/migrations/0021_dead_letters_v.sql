CREATE OR REPLACE VIEW {db}.dead_letters_v AS
SELECT * EXCEPT sum REPLACE (lower(hex(id)) AS id)
FROM {db}.dead_letters FINAL
SETTINGS do_not_merge_across_partitions_select_final = 1
