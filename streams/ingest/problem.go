package ingest

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
)

// A problem is a refusal, as RFC 9457 has it.
type problem struct {
	Type   string `json:"type"` // urn:millrace:problem:...
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`
	// Faults are all that is wrong with the events.
	Faults []Fault `json:"faults,omitempty"`

	retry int // seconds; 0: sending it again does not help
}

// write writes the problem as JSON, its faults one by one: they can be many times as long as the body.
func (p *problem) write(w io.Writer) error {
	head := *p
	head.Faults = nil
	b, err := json.Marshal(head)
	if err != nil {
		return err
	}
	out := bufio.NewWriter(w)
	put := func(b []byte) { _, _ = out.Write(b) } // Flush returns its error
	put(b[:len(b)-1])                             // without its brace
	for i, f := range p.Faults {
		if b, err = json.Marshal(f); err != nil {
			return err
		}
		if i == 0 {
			put([]byte(`,"faults":[`))
		} else {
			put([]byte(","))
		}
		put(b)
	}
	if len(p.Faults) > 0 {
		put([]byte("]"))
	}
	put([]byte("}\n"))
	return out.Flush()
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
