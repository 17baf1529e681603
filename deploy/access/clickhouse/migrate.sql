-- The grants of the user of 'millrace migrate', which creates and changes tables. See docs/deploy/access.md.
GRANT CREATE DATABASE, CREATE TABLE, CREATE VIEW, DROP TABLE, DROP VIEW, ALTER TABLE, ALTER VIEW, SELECT, INSERT ON millrace.* TO millrace_migrate;
-- Needed unless the server has access_control_improvements.table_engines_require_grant = false:
GRANT TABLE ENGINE ON * TO millrace_migrate;
