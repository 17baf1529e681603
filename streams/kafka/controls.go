package kafka

// Controls says what is paused.
type Controls struct{}
