package deadletter

// Names for the tests in package deadletter_test.
var (
	ErrNotFound = errNotFound
	ErrDecided  = errDecided
)
