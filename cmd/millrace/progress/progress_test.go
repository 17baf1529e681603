package progress

import (
	"bytes"
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"
)

// Without a terminal a step prints a line at its start, one per interval, and one at its end.
func TestLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		d := New(&out)
		s := d.Step("count", 100)
		for range 50 { // five seconds
			s.Add(1)
			time.Sleep(100 * time.Millisecond)
		}
		s.Set(70)
		s.End(true)
		s.End(false) // changes nothing
		d.Close()

		var got []line
		for dec := json.NewDecoder(&out); dec.More(); {
			var l line
			if err := dec.Decode(&l); err != nil {
				t.Fatal(err)
			}
			got = append(got, l)
		}
		want := []line{
			{Step: "count", Done: 1, Total: 100},
			{Step: "count", Done: 21, Total: 100, Rate: 10.5, Seconds: 2},
			{Step: "count", Done: 41, Total: 100, Rate: 10.3, Seconds: 4},
			{Step: "count", Done: 70, Total: 70, Rate: 14, Seconds: 5, Ended: true},
		}
		if len(got) != len(want) {
			t.Fatalf("lines %+v, want %+v", got, want)
		}
		for i := range want {
			if got[i] != want[i] {
				t.Errorf("line %d: %+v, want %+v", i, got[i], want[i])
			}
		}
	})
}
