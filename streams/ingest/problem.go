package ingest

import (
	"fmt"
	"net/http"
)

// A problem is the response to a rejected request, according to RFC 9457.
type problem struct {
	Type   string `json:"type"` // urn:millrace:problem:...
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`
	// Faults are the first faults of the events. Detail has the number of all.
	Faults []Fault `json:"faults,omitempty"`

	retry int // value of Retry-After in seconds; 0 if a retry cannot succeed
}

// A Fault is one error in one event.
type Fault struct {
	// Index is the index of the event in its batch, from 0.
	Index int `json:"index"`
	// ID is the id that the sender has given to the event, if any.
	ID string `json:"id,omitempty"`
	// Field is an attribute of the event, with the prefix "ce-", or a field of the Change. It is empty for the whole
	// event.
	Field  string `json:"field,omitempty"`
	Reason string `json:"reason"`
}

func refusal(status int, kind, format string, args ...any) *problem {
	return &problem{
		Type: "urn:millrace:problem:" + kind, Title: http.StatusText(status), Status: status,
		Detail: fmt.Sprintf(format, args...),
	}
}

func (p *problem) retryAfter(seconds int) *problem {
	p.retry = seconds
	return p
}
