package heaptest

import (
	"runtime"
	"testing"
)

// What is alive at once counts, and garbage does not.
func TestPeak(t *testing.T) {
	const size = 8 << 20
	got := Peak(func() {
		for range 16 {
			b := make([]byte, size)
			runtime.KeepAlive(b)
		}
	})
	if got > 4*size {
		t.Errorf("got %d for one of %d after the other", got, size)
	}
	got = Peak(func() {
		all := make([][]byte, 8)
		for i := range all {
			all[i] = make([]byte, size)
		}
		runtime.KeepAlive(all)
	})
	if got < 4*size || got > 10*size {
		t.Errorf("got %d for eight of %d together", got, size)
	}
}

// What is alive counts, and garbage does not.
func TestAt(t *testing.T) {
	const size = 8 << 20
	got := At(func(look func()) {
		var held []byte
		for range 16 {
			held = make([]byte, size)
			look()
		}
		runtime.KeepAlive(held)
	})
	if got < size-size/4 || got > size+size/4 {
		t.Errorf("got %d for one of %d after the other", got, size)
	}
}
