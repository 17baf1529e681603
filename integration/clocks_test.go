package integration

import "testing"

func TestClocks(t *testing.T) {
	w := newClockWorld(t)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(w.report(w.put("1", "one")))
	must(w.deliver())
	t.Log(w.summary())
	must(w.report(w.put("1", "two")))
	must(w.rest())
	t.Log(w.summary(), len(w.log))
	must(w.report(w.remove("1")))
	must(w.rest())
	t.Log(w.summary(), len(w.log), w.broken)
	for _, i := range w.incidents {
		t.Log(i)
	}
}
