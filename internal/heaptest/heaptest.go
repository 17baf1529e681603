// Package heaptest measures for tests how much memory a function needs.
package heaptest

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// Peak returns the largest number of live heap bytes while f runs, minus those before. It samples the garbage
// collector, which runs whenever the heap has grown by a fifth. Nothing else may run in the process.
//
// Objects that f allocates during a collection count as live, even if they are garbage, which can be many on a loaded
// machine. Use At if f produces much more garbage than the tested limit.
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

// At returns the largest number of live heap bytes at the calls of look, minus those before f. Each call of look
// collects garbage first, so garbage does not count. Nothing else may run in the process.
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
