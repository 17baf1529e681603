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

// A stateValue is one compared value.
type stateValue struct {
	name string
	sum  string // SQL for it in a hash of all values; converting them to text would cost more than the merge
	text string // SQL for it as text
}

// stateValues returns all compared values.
func stateValues() (all []stateValue) {
	hexMap := func(column string) string { return "toString(mapApply((k, v) -> (k, lower(hex(v))), " + column + "))" }
	for _, g := range stateGroups() {
		for _, part := range g.parts {
			column := g.name + "." + part
			v := stateValue{column, column, "ifNull(toString(" + column + "), '')"}
			switch part {
			case "":
				v = stateValue{g.name, currentDigests, hexMap(currentDigests)}
			case "ver":
				v = stateValue{g.name + ".time", "bitShiftRight(" + column + ", 83)", "if(" + column + " = 0, ''," +
					" toString(fromUnixTimestamp64Milli(toInt64(bitShiftRight(" + column + ", 83)) - 17592186044416, 'UTC')))"}
			case "source_time":
				v.sum = "isNull(" + column + "), ifNull(" + column + ", toDateTime64(0, 3, 'UTC'))"
			case "change":
				v.text = "lower(hex(" + column + "))"
			case "size":
				v.text = "if(" + column + " < 0, 'unknown', toString(" + column + "))"
			case "digests":
				v.text = hexMap(column)
			}
			all = append(all, v)
		}
	}
	return all
}

// joinValues returns a list of SQL.
func joinValues(of func(stateValue) string) string {
	var all []string
	for _, v := range stateValues() {
		all = append(all, of(v))
	}
	return strings.Join(all, ", ")
}

// stateSum is SQL for a hash of all compared values.
func stateSum() string {
	return "cityHash64(" + joinValues(func(v stateValue) string { return v.sum }) + ")"
}

// diffCopy compares the values of one copy.
func diffCopy(state, logs []string) (columns []ColumnDifference) {
	if state == nil || logs == nil {
		there := func(values []string) string {
			return map[bool]string{true: "there", false: "not there"}[values != nil]
		}
		return []ColumnDifference{{"*", there(state), there(logs)}}
	}
	for i, v := range stateValues() {
		if state[i] != logs[i] {
			columns = append(columns, ColumnDifference{v.name, state[i], logs[i]})
		}
	}
	return columns
}
