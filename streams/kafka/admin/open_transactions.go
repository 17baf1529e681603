package admin

import (
	"log/slog"
	"sync"
	"time"

	"github.com/millrace/millrace/streams/kafka/internal/core"
)

// openTransactionLimit is how long a transaction may be open before it is logged. By default a live producer
// ends its transaction within a minute, and the brokers abort those of dead producers, except hanging
// transactions.
const openTransactionLimit = 5 * time.Minute

// openTransactions remembers the open transactions of the last update. The zero value is ready to use. It is
// safe for concurrent use.
type openTransactions struct {
	mu          sync.Mutex
	byPartition map[core.Partition]openTransaction
}

// An openTransaction is the first offset of an open transaction, and when it was first seen.
type openTransaction struct {
	offset int64
	since  time.Time
	logged bool
}

// update returns by topic how many offsets lie between ends, the last stable offsets, and written, the end
// offsets, which were read before. It logs a transaction once when it has been open for openTransactionLimit.
func (t *openTransactions) update(log *slog.Logger, ends, written core.Offsets, now time.Time) map[string]int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	counts := map[string]int64{}
	for topic, ps := range ends {
		for id, end := range ps {
			p := core.Partition{Topic: topic, ID: id}
			n := written[topic][id] - end
			if n <= 0 {
				delete(t.byPartition, p)
				continue
			}
			counts[topic] += n
			o := t.byPartition[p]
			if o.since.IsZero() || o.offset != end {
				o = openTransaction{offset: end, since: now}
			}
			if !o.logged && now.Sub(o.since) >= openTransactionLimit {
				log.Warn("wait for open transaction",
					"topic", topic, "partition", id, "offset", end, "records", n, "age", now.Sub(o.since).Round(time.Second),
					"remedy", "end its producer, or abort it with kafka-transactions.sh")
				o.logged = true
			}
			if t.byPartition == nil {
				t.byPartition = map[core.Partition]openTransaction{}
			}
			t.byPartition[p] = o
		}
	}
	return counts
}
