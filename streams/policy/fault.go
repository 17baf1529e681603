package policy

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// A Fault is one error in a policy document or folder.
type Fault struct {
	Account string // empty if the fault is not in one account
	File    string // name in the folder; empty for the folder itself or a document that is not from a folder
	Line    int    // in File; 0 if there is no single line
	Key     string // path in the document: defaultPolicies[0].destStoreId; empty for the whole document
	Reason  string
}

// String returns FILE:LINE: KEY: REASON, without the unknown parts.
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

// Origin returns the origin of a fault in the folder with the path dir, FILE:LINE.
func (f Fault) Origin(dir string) string {
	origin := filepath.Join(dir, f.File)
	if f.Line > 0 {
		origin += ":" + strconv.Itoa(f.Line)
	}
	return origin
}

// Faults are all faults of one or more policies.
type Faults []Fault

// Error returns the faults, one per line.
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

// err returns the faults ordered by line, or nil if there are none.
func (f Faults) err() error {
	if len(f) == 0 {
		return nil
	}
	slices.SortStableFunc(f, func(a, b Fault) int { return cmp.Compare(a.Line, b.Line) })
	return f
}

// documentFault returns one fault of a document as a whole.
func documentFault(line int, format string, a ...any) Faults {
	var f Faults
	f.add(line, "", format, a...)
	return f
}
