-- The key of such a row is: account '', the topic, its incarnation, the partition.
ALTER TABLE {db}.copy_state ADD COLUMN IF NOT EXISTS position SimpleAggregateFunction(max, UInt64)
