-- One row a copy. Grouped, not FINAL: FINAL does not merge the parts of a tuple when only some
-- of them are read (content.ver), and then tells of any one of the unmerged rows. Conditions on
-- the keys reach the primary index through the grouping. Positions are left out.
CREATE OR REPLACE VIEW {db}.copy_merged AS
SELECT
  account, store, space, item,
  max(content) AS content, max(deleted) AS deleted, maxMap(digests) AS digests,
  max(properties) AS properties, max(acl) AS acl,
  max(attempt) AS attempt, max(pass) AS pass, max(fail) AS fail, max(asserted) AS asserted
FROM {db}.copy_state
WHERE position = 0
GROUP BY account, store, space, item
