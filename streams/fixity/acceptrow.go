package fixity

// An AcceptRow is a row of the second decision table in docs/decisions-fixity.md: what becomes of an AcceptOrder.
type AcceptRow string

// The rows, in the order in which decideAccept tries them.
const (
	RowAcceptUnknown      AcceptRow = "A1"
	RowAcceptGone         AcceptRow = "A2"
	RowAcceptOtherObject  AcceptRow = "A3"
	RowAcceptUnread       AcceptRow = "A4"
	RowAcceptOtherBytes   AcceptRow = "A5"
	RowAcceptRecorded     AcceptRow = "A6"
	RowAcceptOtherRecords AcceptRow = "A7"
	RowAcceptContradicted AcceptRow = "A8"
	RowAcceptSameVersion  AcceptRow = "A9"
	RowAcceptNotLater     AcceptRow = "A10"
	RowAccepted           AcceptRow = "A11"
)
