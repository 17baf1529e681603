ALTER TABLE {db}.bit_log MATERIALIZE INDEX verdicts
