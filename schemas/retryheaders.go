package schemas

// The headers that the runtime adds to a record after a failure: where it was first read, the role that failed, the
// number of attempts and waits, and the last failure. A waiting record and a dead letter are the original record with
// these headers.
const (
	TrailTopic       = "millrace-topic"
	TrailPartition   = "millrace-partition"
	TrailOffset      = "millrace-offset"
	TrailTimestamp   = "millrace-timestamp" // milliseconds
	TrailRole        = "millrace-role"
	TrailAttempts    = "millrace-attempts"
	TrailWaits       = "millrace-waits"
	TrailWaitsFor    = "millrace-waits-for" // CAUSE=N ...: the number of waits for each cause
	TrailUnavailable = "millrace-unavailable"
	TrailDue         = "millrace-due" // RFC 3339
	TrailClass       = "millrace-class"
	TrailError       = "millrace-error"
	TrailHistory     = "millrace-history" // JSON
)
