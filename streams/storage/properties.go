package storage

import (
	"maps"
	"slices"
	"strings"
)

// IsEmpty reports whether there is no media type and no property.
func (p Properties) IsEmpty() bool { return p.MediaType == "" && len(p.User) == 0 }

// Equal reports whether p and q are the same media type and properties. With foldCase, the case of names does not
// count.
func (p Properties) Equal(q Properties, foldCase bool) bool {
	return p.MediaType == q.MediaType && EqualUser(p.User, q.User, foldCase)
}

// EqualUser reports whether a and b are the same properties. With foldCase, the case of names does not count.
func EqualUser(a, b map[string]string, foldCase bool) bool {
	if !foldCase {
		return maps.Equal(a, b)
	}
	return maps.Equal(lowerNames(a), lowerNames(b))
}

// lowerNames returns m with names in lower case. Of names that differ only in case, the last one in order counts.
func lowerNames(m map[string]string) map[string]string {
	lower := make(map[string]string, len(m))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		lower[strings.ToLower(k)] = m[k]
	}
	return lower
}
