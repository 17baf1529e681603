// Package heaptest measures for tests how much memory a function needs.
package heaptest

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// Peak returns how many bytes are alive on the heap at most while f runs, besides those that are alive before, as the garbage
// collector finds them whenever a fifth has come. Nothing else may run in the process meanwhile.
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
