package kafka

// Metrics counts what the parts of one process do.
type Metrics struct{}
