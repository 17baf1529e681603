package verify

import "strings"

// A stateGroup is one column of the state, with the parts of it that are compared: all but the Kafka offset of the
// record, which differs between reports of one message.
type stateGroup struct {
	name  string
	parts []string
}

func stateGroups() []stateGroup {
	return []stateGroup{
		{"content", []string{"ver", "ns", "change", "size", "version", "etag", "media_type", "origin", "user",
			"source_time", "source_ns", "source_version"}},
		{"digests", []string{""}},
		{"deleted", []string{"ver", "ns", "change", "version", "origin", "user"}},
		{"properties", []string{"ver", "media_type", "user"}},
		{"acl", []string{"ver", "rights"}},
		{"attempt", []string{"ver", "verdict", "row"}},
		{"pass", []string{"ver", "digests"}},
		{"fail", []string{"ver", "finding", "row"}},
		{"asserted", []string{"ver", "level"}},
	}
}

// currentDigests is SQL for the digests of the current content, verified and claimed.
const currentDigests = "mapApply((k, v) -> (k, substring(v, 34))," +
	" mapFilter((k, v) -> substring(v, 18, 16) = content.change, digests))"

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

// diffCopy compares the values of one copy.
func diffCopy(state, logs []string) (columns []ColumnDifference) {
	if state == nil || logs == nil {
		there := func(values []string) string {
			return map[bool]string{true: "there", false: "not there"}[values != nil]
		}
		return []ColumnDifference{{"*", there(state), there(logs)}}
	}
	for i, name := range stateNames() {
		if state[i] != logs[i] {
			columns = append(columns, ColumnDifference{name, state[i], logs[i]})
		}
	}
	return columns
}

// stateNames returns the names of the compared values, in order.
func stateNames() (names []string) {
	for _, g := range stateGroups() {
		for _, part := range g.parts {
			switch part {
			case "":
				names = append(names, g.name)
				continue
			case "ver":
				part = "time"
			}
			names = append(names, g.name+"."+part)
		}
	}
	return names
}
