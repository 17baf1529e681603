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
	Line    int    // in File, from 1; 0 if there is no single line
	Column  int    // in Line, in characters from 1; 0 if it is unknown
	Key     string // path in the document: defaultPolicies[0].destStoreId; empty for the whole document
	Reason  string
}

// String returns FILE:LINE:COLUMN: KEY: REASON, without the unknown parts.
func (f Fault) String() string {
	var parts []string
	switch {
	case f.File != "":
		parts = append(parts, f.File+f.position())
	case f.Line > 0:
		parts = append(parts, "line "+f.position()[1:])
	}
	if f.Key != "" {
		parts = append(parts, f.Key)
	}
	return strings.Join(append(parts, f.Reason), ": ")
}

// Origin returns the origin of a fault in a folder, FILE:LINE:COLUMN.
func (f Fault) Origin(folder string) string { return FileOf(folder, f.File) + f.position() }

// FileOf returns the path, or the URL, of a file in a folder.
func FileOf(folder, name string) string {
	if strings.Contains(folder, "://") {
		return strings.TrimSuffix(folder+"/"+name, "/")
	}
	return filepath.Join(folder, name)
}

// position returns :LINE:COLUMN, without the unknown parts.
func (f Fault) position() (s string) {
	if f.Line > 0 {
		s = ":" + strconv.Itoa(f.Line)
		if f.Column > 0 {
			s += ":" + strconv.Itoa(f.Column)
		}
	}
	return s
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

// A place is a position in a file; zero if it is unknown.
type place struct{ line, column int }

func (f *Faults) add(at place, key, format string, a ...any) {
	*f = append(*f, Fault{Line: at.line, Column: at.column, Key: key, Reason: fmt.Sprintf(format, a...)})
}

// err returns the faults in the order of the file, or nil if there are none.
func (f Faults) err() error {
	if len(f) == 0 {
		return nil
	}
	slices.SortStableFunc(f, func(a, b Fault) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return f
}

// documentFault returns one fault of a document as a whole.
func documentFault(at place, format string, a ...any) Faults {
	var f Faults
	f.add(at, "", format, a...)
	return f
}
