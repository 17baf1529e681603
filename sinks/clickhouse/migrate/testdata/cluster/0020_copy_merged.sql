CREATE OR REPLACE VIEW `millrace`.copy_merged_local ON CLUSTER `main` AS
SELECT
  account, store, space, item,
  max(content) AS content, max(deleted) AS deleted, maxMap(digests) AS digests,
  max(properties) AS properties, max(acl) AS acl,
  max(attempt) AS attempt, max(pass) AS pass, max(fail) AS fail, max(asserted) AS asserted
FROM `millrace`.copy_state_local
GROUP BY account, store, space, item;

CREATE OR REPLACE TABLE `millrace`.copy_merged ON CLUSTER `main` AS `millrace`.copy_merged_local
ENGINE = Distributed('main', 'millrace', 'copy_merged_local');
