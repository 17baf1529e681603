package clickhouse

import (
	"slices"
	"strings"
)

// A stateGroup is one column of the state, and what of it is compared: all but where in Kafka
// the record stood, which differs between tellings of one message.
type stateGroup struct {
	name  string
	parts []string
	// told says how a telling of the same change is recognised, where changes make the group: a change
	// may have been told several times, each time saying something else.
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

// currentDigests is SQL for what the manifest says of the digests of the current content: the verified
// ones where there are any. Each has a byte in front that says whether it is.
const currentDigests = "mapFilter((k, v) -> substring(v, 1, 1) = char(1)" +
	" OR NOT arrayExists(x -> substring(x, 9, 1) = char(1) AND substring(x, 18, 16) = content.change, mapValues(digests))," +
	" mapApply((k, v) -> (k, concat(substring(v, 9, 1), substring(v, 34))), mapFilter((k, v) -> substring(v, 18, 16) = content.change, digests)))"

// stateSum is SQL for a sum of all that is compared: texts of it would cost more than the merge does.
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

// stateValues is SQL for an array of the same, as texts.
func stateValues() string {
	var values []string
	for _, g := range stateGroups() {
		for _, part := range g.parts {
			column := g.name + "." + part
			switch {
			case g.name == "digests":
				values = append(values, "toString(mapApply((k, v) -> (k, lower(hex(v))), "+currentDigests+"))")
			case part == "ver":
				values = append(values, "if("+column+" = 0, '', toString(fromUnixTimestamp64Milli(toInt64(bitShiftRight("+column+
					", 83)) - 17592186044416, 'UTC')))")
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

// stateVersions is SQL for the whole version of each group that has one, in the order of the groups.
func stateVersions() string {
	var values []string
	for _, g := range stateGroups() {
		if g.parts[0] == "ver" {
			values = append(values, "leftPad(toString("+g.name+".ver), 39, '0')")
		}
	}
	return "[" + strings.Join(values, ", ") + "]"
}

// differences judges one copy. A difference in a group that a change told is none where the log has
// that change, and the state a later telling of it: the log keeps the telling that says most, and which of two changes
// of one millisecond came last is known by the last telling of each.
func diffCopy(state, logs []string, log loggedChanges) (columns []ColumnDifference, retold bool) {
	if state == nil || logs == nil {
		there := func(values []string) string { return map[bool]string{true: "there", false: "not there"}[values != nil] }
		return []ColumnDifference{{"*", there(state), there(logs)}}, false
	}
	names, versions := stateNames()
	i, v := 0, len(names)
	other := false // the content is another change's
	for _, g := range stateGroups() {
		a, b := state[i:i+len(g.parts)], logs[i:i+len(g.parts)]
		told := false // another telling explains it
		switch g.restatedBy {
		case "change":
			told = state[v] > logs[v] && a[0] == b[0] && slices.Contains(log.Changes, a[0]+" "+a[2])
			other = other || g.name == "content" && told && a[2] != b[2]
		case "digests": // what stands in front is the content's
			told = other || state[2] == logs[2] && state[2] != "" && containsEntries(a[0], b[0])
		case "time":
			told = state[v] > logs[v] && (a[0] == b[0] || slices.Contains(log.Times, a[0]))
		}
		if versions[g.name] {
			v++
		}
		for k := range a {
			switch {
			case a[k] == b[k]:
			case told:
				retold = true
			default:
				columns = append(columns, ColumnDifference{names[i+k], a[k], b[k]})
			}
		}
		i += len(g.parts)
	}
	return columns, retold
}

// stateNames are the names of what is compared, in order, and which groups have a version.
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

// contains says whether one text of a map has every entry of another.
func containsEntries(all, some string) bool {
	have := strings.Split(strings.Trim(all, "{}"), ",")
	for _, entry := range strings.Split(strings.Trim(some, "{}"), ",") {
		if entry != "" && !slices.Contains(have, entry) {
			return false
		}
	}
	return true
}
