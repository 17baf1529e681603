-- The grants of all others that read ClickHouse: roles copier, deleter, checker, steward and sweeper, and commands.
GRANT SELECT ON millrace.* TO millrace_reader;
