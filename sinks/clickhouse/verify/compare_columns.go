package verify

import (
	"slices"
	"strings"
)

// A stateGroup is one column of the state, with the parts of it that are compared: all but the Kafka offset of the
// record, which differs between reports of one message.
type stateGroup struct {
	name  string
	parts []string
	// restatedBy is how another report of the same change is recognised: by its change, its digests or its time. A change
	// may have several reports with different values. Empty: the group does not come from changes.
	restatedBy string
}

func stateGroups() []stateGroup {
	return []stateGroup{
		{"content", []string{"ver", "ns", "change", "size", "version", "etag", "media_type", "origin", "user",
			"source_time", "source_ns", "source_version"}, "change"},
		{"digests", []string{""}, "digests"},
		{"deleted", []string{"ver", "ns", "change", "origin", "user"}, "change"},
		{"properties", []string{"ver", "media_type", "user"}, "time"},
		{"acl", []string{"ver", "rights"}, "time"},
		{"attempt", []string{"ver", "verdict", "row"}, ""},
		{"pass", []string{"ver", "digests"}, ""},
		{"fail", []string{"ver", "finding", "row"}, ""},
		{"asserted", []string{"ver", "level"}, ""},
	}
}

// currentDigests is SQL for the digests of the current content as the manifest shows them: only the verified ones, if
// there are any. The first byte of each value is 1 if it is verified.
const currentDigests = "mapFilter((k, v) -> substring(v, 1, 1) = char(1)" +
	" OR NOT arrayExists(x -> substring(x, 9, 1) = char(1) AND substring(x, 18, 16) = content.change," +
	" mapValues(digests))," +
	" mapApply((k, v) -> (k, concat(substring(v, 9, 1), substring(v, 34)))," +
	" mapFilter((k, v) -> substring(v, 18, 16) = content.change, digests)))"

// stateSum is SQL for a hash of all compared values. Converting them to text would cost more than the merge.
func stateSum() string {
	var values []string
	for _, g := range stateGroups() {
		for _, part := range g.parts {
			column := g.name + "." + part
			switch part {
			case "":
				values = append(values, currentDigests)
			case "ver":
				values = append(values, "bitShiftRight("+column+", 83)")
			case "source_time":
				values = append(values, "isNull("+column+")", "ifNull("+column+", toDateTime64(0, 3, 'UTC'))")
			default:
				values = append(values, column)
			}
		}
	}
	return "cityHash64(" + strings.Join(values, ", ") + ")"
}

// stateValues is SQL for an array of the same values as text.
func stateValues() string {
	var values []string
	for _, g := range stateGroups() {
		for _, part := range g.parts {
			column := g.name + "." + part
			switch {
			case g.name == "digests":
				values = append(values, "toString(mapApply((k, v) -> (k, lower(hex(v))), "+currentDigests+"))")
			case part == "ver":
				values = append(values, "if("+column+" = 0, '',"+
					" toString(fromUnixTimestamp64Milli(toInt64(bitShiftRight("+column+", 83)) - 17592186044416, 'UTC')))")
			case part == "change":
				values = append(values, "lower(hex("+column+"))")
			case part == "size":
				values = append(values, "if("+column+" < 0, 'unknown', toString("+column+"))")
			case g.name == "pass":
				values = append(values, "toString(mapApply((k, v) -> (k, lower(hex(v))), "+column+"))")
			default:
				values = append(values, "ifNull(toString("+column+"), '')")
			}
		}
	}
	return "[" + strings.Join(values, ", ") + "]"
}

// stateVersions is SQL for an array of the versions of the groups that have one, in the order of the groups.
func stateVersions() string {
	var values []string
	for _, g := range stateGroups() {
		if g.parts[0] == "ver" {
			values = append(values, "leftPad(toString("+g.name+".ver), 39, '0')")
		}
	}
	return "[" + strings.Join(values, ", ") + "]"
}

// diffCopy compares the values of one copy. A difference in a group that comes from changes does not count if the
// log has the change and the state has stored a later report of it. The log shows the richest report, and of two
// changes of the same millisecond, the last report of each decides which one came last.
func diffCopy(state, logs []string, log loggedChanges) (columns []ColumnDifference, restated bool) {
	if state == nil || logs == nil {
		there := func(values []string) string {
			return map[bool]string{true: "there", false: "not there"}[values != nil]
		}
		return []ColumnDifference{{"*", there(state), there(logs)}}, false
	}
	names, versions := stateNames()
	i, v := 0, len(names)
	other := false // the content is from another change
	for _, g := range stateGroups() {
		a, b := state[i:i+len(g.parts)], logs[i:i+len(g.parts)]
		explained := false // another report explains the difference
		switch g.restatedBy {
		case "change":
			explained = state[v] > logs[v] && a[0] == b[0] && slices.Contains(log.Changes, a[0]+" "+a[2])
			other = other || g.name == "content" && explained && a[2] != b[2]
		case "digests": // the group content comes before
			explained = other || state[2] == logs[2] && state[2] != "" && containsEntries(a[0], b[0])
		case "time":
			explained = state[v] > logs[v] && (a[0] == b[0] || slices.Contains(log.Times, a[0]))
		}
		if versions[g.name] {
			v++
		}
		for k := range a {
			switch {
			case a[k] == b[k]:
			case explained:
				restated = true
			default:
				columns = append(columns, ColumnDifference{names[i+k], a[k], b[k]})
			}
		}
		i += len(g.parts)
	}
	return columns, restated
}

// stateNames returns the names of the compared values, in order, and the groups that have a version.
func stateNames() (names []string, versions map[string]bool) {
	versions = map[string]bool{}
	for _, g := range stateGroups() {
		for _, part := range g.parts {
			switch part {
			case "":
				names = append(names, g.name)
				continue
			case "ver":
				versions[g.name] = true
				part = "time"
			}
			names = append(names, g.name+"."+part)
		}
	}
	return names, versions
}

// containsEntries reports whether a map in text form has every entry of another one.
func containsEntries(all, some string) bool {
	have := strings.Split(strings.Trim(all, "{}"), ",")
	for _, entry := range strings.Split(strings.Trim(some, "{}"), ",") {
		if entry != "" && !slices.Contains(have, entry) {
			return false
		}
	}
	return true
}
