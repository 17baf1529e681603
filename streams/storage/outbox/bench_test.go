package outbox

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millrace/millrace/streams/digest"
)

// A mutation is recorded from its intent until it is done, as emit does for a Put (with content, outcome not awaited)
// and for a Delete (outcome awaited).
func BenchmarkMutations(b *testing.B) {
	digests := digest.Set{"md5": strings.Repeat("0", 32), "sha256": strings.Repeat("0", 64)}
	for _, op := range []string{"put", "delete"} {
		for _, callers := range []int{1, 16, 256} {
			b.Run(fmt.Sprintf("%s/callers=%d", op, callers), func(b *testing.B) {
				f, err := Open(Config{Dir: b.TempDir()})
				must(b, err)
				defer f.Close()
				var syncs atomic.Int64
				f.ObserveSync(func(time.Duration) { syncs.Add(1) })
				var n atomic.Int64
				var wg sync.WaitGroup
				b.ResetTimer()
				for range callers {
					wg.Go(func() {
						for i := n.Add(1); i <= int64(b.N); i = n.Add(1) {
							item := fmt.Sprintf("2026/%05d/img-%08d.tif", i/1000, i)
							t, err := f.Intend(b.Context(), intentOf(item))
							if err == nil && op == "put" {
								err = f.Content(t, Content{digests, i})
							}
							c := changeOf(item, i)
							c.Digests = digests
							if err == nil {
								_, err = f.Outcome(t, c)
							}
							if err == nil && op == "delete" {
								err = f.Safe(b.Context())
							}
							if err == nil {
								err = f.Done(t)
							}
							if err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				wg.Wait()
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "mutations/s")
				b.ReportMetric(float64(b.N)/float64(max(1, syncs.Load())), "mutations/sync")
			})
		}
	}
}
