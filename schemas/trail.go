package schemas

// The headers that the runtime adds to a record that failed: where it was first read, who
// failed, how often it ended in which way, and the last failure. A waiting record and a
// dead letter are the original record with these.
const (
	TrailTopic       = "millrace-topic"
	TrailPartition   = "millrace-partition"
	TrailOffset      = "millrace-offset"
	TrailTimestamp   = "millrace-timestamp" // milliseconds
	TrailRole        = "millrace-role"
	TrailAttempts    = "millrace-attempts"
	TrailWaits       = "millrace-waits"
	TrailWaitsFor    = "millrace-waits-for" // CAUSE=N ...: those of the waits that have a cause
	TrailUnavailable = "millrace-unavailable"
	TrailDue         = "millrace-due" // RFC 3339
	TrailClass       = "millrace-class"
	TrailError       = "millrace-error"
	TrailHistory     = "millrace-history" // JSON
)
