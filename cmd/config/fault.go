package config

import (
	"errors"
	"fmt"
	"strings"
)

// A Fault is one error in a configuration.
type Fault struct {
	Key    string // path of the setting: accounts[0].stores[1].root
	Value  string // as given, shortened; empty if there is none or if it may be a secret
	Reason string // the error, or the values that are allowed
	Origin string // FILE:LINE, the name of a variable, "command line" or "default"

	meant string // of an unknown setting: the path of the setting that was probably meant
}

func (f Fault) String() string {
	var b strings.Builder
	if f.Origin != "" {
		b.WriteString(f.Origin + ": ")
	}
	if f.Key != "" {
		b.WriteString(f.Key)
		if f.Value != "" {
			b.WriteString(" = " + f.Value)
		}
		b.WriteString(": ")
	}
	return b.String() + f.Reason
}

// Faults are all errors in a configuration, or in a document that is validated like a part of it.
type Faults []Fault

// Error lists the faults, one per line, as those of the configuration.
func (f Faults) Error() string { return f.in("the configuration") }

// InDocument returns the faults as those of a document.
func (f Faults) InDocument() error { return errors.New(f.in("the document")) }

func (f Faults) in(what string) string {
	var b strings.Builder
	if len(f) == 1 {
		fmt.Fprintf(&b, "1 fault in %s:", what)
	} else {
		fmt.Fprintf(&b, "%d faults in %s:", len(f), what)
	}
	for _, fault := range f {
		b.WriteString("\n  " + fault.String())
	}
	return b.String()
}

func (f *Faults) add(key string, value any, origin, reason string) {
	v := ""
	if value != nil {
		if v = fmt.Sprint(value); v == "" {
			v = `""`
		}
		if r := []rune(v); len(r) > 60 {
			v = string(r[:60]) + "..."
		}
	}
	*f = append(*f, Fault{Key: key, Value: v, Reason: reason, Origin: origin})
}
