package schemas

import (
	"maps"
	"testing"
)

func TestSeen(t *testing.T) {
	for text, want := range map[string]Seen{
		"5f3a0001:0=120,3=88": {0x5f3a0001, map[int32]int64{0: 120, 3: 88}},
		"00000000:11=0":       {0, map[int32]int64{11: 0}},
	} {
		got, err := ParseSeen(text)
		if err != nil || got.Incarnation != want.Incarnation || !maps.Equal(got.Ends, want.Ends) || got.String() != text {
			t.Errorf("%s: got %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "5f3a0001", "x:0=1", "5f3a0001:0", "5f3a0001:0=x", "5f3a0001:0=-1", "5f3a0001:-1=1",
		"5f3a0001f:0=1", "5f3a0001:0=1,"} {
		if got, err := ParseSeen(text); err == nil {
			t.Errorf("%q: got %v", text, got)
		}
	}
	s := Seen{7, map[int32]int64{1: 5}}
	for at, want := range map[Coordinates]bool{
		{7, 1, 4}: true, {7, 1, 5}: false, {7, 0, 0}: false, {8, 1, 0}: false,
	} {
		if s.Has(at) != want {
			t.Errorf("%v: got %t", at, !want)
		}
	}
}
