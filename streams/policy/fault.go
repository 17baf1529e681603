package policy

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// A Fault is one thing that is wrong with a policy.
type Fault struct {
	Account string // empty: not of one account only
	File    string // name in the folder; empty: the document is not from a folder, or the folder itself
	Line    int    // in File; 0: not one line
	Key     string // path in the document: defaultPolicies[0].destStoreId; empty: the whole document
	Reason  string
}

// String returns FILE:LINE: KEY: REASON, without the parts that are not known.
func (f Fault) String() string {
	var parts []string
	switch {
	case f.File != "" && f.Line > 0:
		parts = append(parts, fmt.Sprintf("%s:%d", f.File, f.Line))
	case f.File != "":
		parts = append(parts, f.File)
	case f.Line > 0:
		parts = append(parts, fmt.Sprintf("line %d", f.Line))
	}
	if f.Key != "" {
		parts = append(parts, f.Key)
	}
	return strings.Join(append(parts, f.Reason), ": ")
}

// Faults are all that is wrong with one policy or several.
type Faults []Fault

// Error returns the faults, one a line.
func (f Faults) Error() string {
	lines := make([]string, len(f))
	for i, fault := range f {
		lines[i] = fault.String()
	}
	return strings.Join(lines, "\n")
}

func (f *Faults) add(line int, key, format string, a ...any) {
	*f = append(*f, Fault{Line: line, Key: key, Reason: fmt.Sprintf(format, a...)})
}

// err returns the faults in the order of their lines, or nil.
func (f Faults) err() error {
	if len(f) == 0 {
		return nil
	}
	slices.SortStableFunc(f, func(a, b Fault) int { return cmp.Compare(a.Line, b.Line) })
	return f
}

// whole returns the only fault of a document that cannot be read.
func whole(line int, format string, a ...any) Faults {
	var f Faults
	f.add(line, "", format, a...)
	return f
}
