ALTER TABLE `millrace`.copy_state_local ON CLUSTER `main` ADD COLUMN IF NOT EXISTS position SimpleAggregateFunction(max, UInt64);

ALTER TABLE `millrace`.copy_state ON CLUSTER `main` ADD COLUMN IF NOT EXISTS position SimpleAggregateFunction(max, UInt64);
