package kafka

import (
	"log/slog"
	"sync"
	"time"
)

// openLimit is how long a transaction may be open before it is logged. A producer that is alive ends its own within a
// minute, by its default; brokers abort those of producers that are not, but for hanging ones.
const openTransactionLimit = 5 * time.Minute

// An undecided remembers where transactions were open at the last look. The zero value is ready to use, by many at a time.
type openTransactions struct {
	mu          sync.Mutex
	byPartition map[partition]openTransaction
}

// An opening is the offset at which a transaction that is open begins, and since when that is known.
type openTransaction struct {
	offset int64
	since  time.Time
	logged bool
}

// note returns how many offsets of topics lie between ends, up to where readers of what is committed come, and written,
// which were read before. It logs a transaction that is open for openLimit, once.
func (u *openTransactions) update(log *slog.Logger, ends, written offsets, now time.Time) map[string]int64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	counts := map[string]int64{}
	for topic, ps := range ends {
		for id, end := range ps {
			p := partition{topic, id}
			n := written[topic][id] - end
			if n <= 0 {
				delete(u.byPartition, p)
				continue
			}
			counts[topic] += n
			o := u.byPartition[p]
			if o.since.IsZero() || o.offset != end {
				o = openTransaction{offset: end, since: now}
			}
			if !o.logged && now.Sub(o.since) >= openTransactionLimit {
				log.Warn("a transaction stays open, and no record behind its beginning is read: end its producer, or abort it with kafka-transactions.sh",
					"topic", topic, "partition", id, "offset", end, "undecided", n, "open", now.Sub(o.since).Round(time.Second))
				o.logged = true
			}
			if u.byPartition == nil {
				u.byPartition = map[partition]openTransaction{}
			}
			u.byPartition[p] = o
		}
	}
	return counts
}
