package schemas

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Coordinates are where a record is in a topic.
type Coordinates struct {
	Incarnation uint32 // as in a Delivery
	Partition   int32
	Offset      int64
}

// Seen says how far somebody has seen a topic: to the end of each partition, which is the offset after the last record.
type Seen struct {
	Incarnation uint32
	Ends        map[int32]int64
}

// Has reports whether the record at p was seen. One of another topic with the same name was not.
func (s Seen) Has(p Coordinates) bool {
	return p.Incarnation == s.Incarnation && p.Offset < s.Ends[p.Partition]
}

// String returns s in the form that ParseSeen reads, such as 5f3a0001:0=120,3=88.
func (s Seen) String() string {
	var ends []string
	for _, id := range slices.Sorted(maps.Keys(s.Ends)) {
		ends = append(ends, fmt.Sprintf("%d=%d", id, s.Ends[id]))
	}
	return fmt.Sprintf("%08x:%s", s.Incarnation, strings.Join(ends, ","))
}

// ParseSeen reads what Seen.String has written.
func ParseSeen(text string) (Seen, error) {
	fault := fmt.Errorf("%q says not how far a topic was seen, as 5f3a0001:0=120,3=88 does", text)
	topic, ends, ok := strings.Cut(text, ":")
	incarnation, err := strconv.ParseUint(topic, 16, 32)
	if !ok || err != nil {
		return Seen{}, fault
	}
	s := Seen{uint32(incarnation), map[int32]int64{}}
	for _, part := range strings.Split(ends, ",") {
		id, end, ok := strings.Cut(part, "=")
		n, err := strconv.ParseInt(id, 10, 32)
		to, err2 := strconv.ParseInt(end, 10, 64)
		if !ok || cmp.Or(err, err2) != nil || n < 0 || to < 0 {
			return Seen{}, fault
		}
		s.Ends[int32(n)] = to
	}
	return s, nil
}

// Mooting returns the results of DuplicationResults which show that what was held of the item before, on a list of a
// kind, is not to be done any more.
func Mooting(kind string) []string {
	switch kind {
	case "repairs":
		return []string{"repaired", "was-lost", "copied", "in-sync", "properties-set", "deleted", "gone"}
	case "rewrites", "differs":
		return []string{"copied", "in-sync", "properties-set", "deleted", "gone"}
	}
	return []string{"not-deleted", "in-sync", "copied", "deleted", "gone"}
}
