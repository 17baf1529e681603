-- The grants of clickhouse.user of role sink, which inserts rows and reads which it has, and of 'millrace rebuild'.
GRANT SELECT, INSERT ON millrace.* TO millrace_sink;
