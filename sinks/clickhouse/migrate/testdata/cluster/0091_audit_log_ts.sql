ALTER TABLE `millrace`.audit_log_local ON CLUSTER `main` MODIFY COLUMN ts DateTime64(3, 'UTC') CODEC(T64, LZ4);

ALTER TABLE `millrace`.audit_log ON CLUSTER `main` MODIFY COLUMN ts DateTime64(3, 'UTC');
