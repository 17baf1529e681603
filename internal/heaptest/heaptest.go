// Package heaptest measures for tests how much memory a function needs.
package heaptest

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// Peak returns how many bytes are alive on the heap at most while f runs, besides those that are alive before, as the garbage
// collector finds them whenever a fifth has come. Nothing else may run in the process meanwhile. What f allocates while the
// collector is at work counts as alive, garbage too, which can be much on a loaded machine: f should not make much more
// garbage than it may hold, or use At.
func Peak(f func()) int64 {
	defer debug.SetGCPercent(debug.SetGCPercent(20))
	runtime.GC()
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	read := func() int64 {
		metrics.Read(sample)
		return int64(sample[0].Value.Uint64())
	}
	before := read()
	stop, most := make(chan struct{}), make(chan int64)
	go func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		top := int64(0)
		for {
			select {
			case <-stop:
				most <- max(top, read())
				return
			case <-tick.C:
				top = max(top, read())
			}
		}
	}()
	f()
	close(stop)
	return <-most - before
}

// At returns how many bytes are alive on the heap at most when f calls look, besides those that are alive before. f waits
// for the collector in look, so no garbage counts. Nothing else may run in the process meanwhile.
func At(f func(look func())) (most int64) {
	alive := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := alive()
	f(func() { most = max(most, alive()-before) })
	return most
}
