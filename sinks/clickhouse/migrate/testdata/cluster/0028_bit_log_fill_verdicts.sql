ALTER TABLE `millrace`.bit_log_local ON CLUSTER `main` MATERIALIZE INDEX verdicts;
