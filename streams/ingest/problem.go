package ingest

import (
	"fmt"
	"net/http"
)

// A problem is a refusal, as RFC 9457 has it.
type problem struct {
	Type   string `json:"type"` // urn:millrace:problem:...
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`
	// Faults are what is wrong with the events, or the first of it; Detail has the number of all.
	Faults []Fault `json:"faults,omitempty"`

	retry int // seconds; 0: sending it again does not help
}

// A Fault is one thing that is wrong with one event.
type Fault struct {
	// Index is the event's place in its batch, from 0.
	Index int `json:"index"`
	// ID is what the sender calls the event, where it says so.
	ID string `json:"id,omitempty"`
	// Field is the attribute of the event or, without a "ce-" before it, the field of the Change; empty: all of it.
	Field  string `json:"field,omitempty"`
	Reason string `json:"reason"`
}

func refusal(status int, kind, format string, args ...any) *problem {
	return &problem{Type: "urn:millrace:problem:" + kind, Title: http.StatusText(status), Status: status, Detail: fmt.Sprintf(format, args...)}
}

func (p *problem) after(seconds int) *problem {
	p.retry = seconds
	return p
}
