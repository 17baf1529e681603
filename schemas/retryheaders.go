package schemas

// The headers that the runtime adds to a record after a failure: where it was first read, the role that failed, the
// number of attempts and waits, and the last failure. A waiting record and a dead letter are the original record with
// these headers.
const (
	HeaderOriginTopic     = "millrace-topic"
	HeaderOriginPartition = "millrace-partition"
	HeaderOriginOffset    = "millrace-offset"
	HeaderOriginTimestamp = "millrace-timestamp" // milliseconds
	HeaderRole            = "millrace-role"
	HeaderAttempts        = "millrace-attempts"
	HeaderWaits           = "millrace-waits"
	HeaderWaitsByCause    = "millrace-waits-for" // CAUSE=N ...: the number of waits for each cause
	HeaderUnavailable     = "millrace-unavailable"
	HeaderAfter           = "millrace-after" // duration
	HeaderDue             = "millrace-due"   // RFC 3339
	HeaderClass           = "millrace-class"
	HeaderError           = "millrace-error"
	HeaderHistory         = "millrace-history" // JSON
)
