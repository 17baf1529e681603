package brake

import (
	"strings"
	"sync"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/retry"
)

// A Ledger holds the newest checkpoint of the brake of a kind for each space at a destination, as the topic checkpoints
// has them. It is safe for concurrent use.
type Ledger struct {
	kind    Kind
	mu      sync.RWMutex
	latest  map[string]*tally // of the accepted checkpoints, by split; never changed; guarded by mu
	written map[string]bool   // ids that this process publishes: whether they were accepted; guarded by mu
}

// NewLedger returns a Ledger without checkpoints. Apply adds those of the topic.
func NewLedger(k Kind) *Ledger {
	return &Ledger{kind: k, latest: map[string]*tally{}, written: map[string]bool{}}
}

// writes calls publish, which publishes the checkpoint with an id and reads the topic up to it. It reports whether the
// checkpoint was accepted, also if another one has followed it.
func (l *Ledger) writes(id string, publish func() error) (accepted bool, err error) {
	l.mu.Lock()
	l.written[id] = false
	l.mu.Unlock()
	err = publish()
	l.mu.Lock()
	defer l.mu.Unlock()
	accepted = l.written[id]
	delete(l.written, id)
	return accepted, err
}

// Apply applies a record of the topic checkpoints, with the broker's time, in the order of the topic; nil is a
// tombstone. It ignores those of other sweeps. A checkpoint that is not newer than the accepted one is ignored too, so
// of two that were made from the same one only the first counts. The error is permanent: the checkpoint cannot be read,
// and is as good as lost.
func (l *Ledger) Apply(key []byte, c *pb.Checkpoint, at time.Time) error {
	split, ours := l.splitOf(string(key))
	if !ours {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if c == nil {
		delete(l.latest, split)
		return nil
	}
	t, err := decodeTally(c)
	if err != nil {
		delete(l.latest, split)
		return retry.Permanent(err)
	}
	held, ok := l.latest[split]
	if !ok {
		held = &tally{}
	}
	if !ok || t.supersedes(held) {
		t.date(at, c.GetTime().AsTime(), held.dated)
		l.latest[split] = t
		if _, ok := l.written[c.GetId()]; ok {
			l.written[c.GetId()] = true
		}
	}
	return nil
}

// countedLead is how much larger than that of an earlier checkpoint, in milliseconds, the number of a counted tally is
// that supersedes it. A smaller lead means that two processes counted at the same time.
const countedLead = 10 * 60 * 1000

// supersedes reports whether t counts after a checkpoint with the tally held. A counted tally lacks what is in other
// checkpoints, so it does only if they were lost.
func (t *tally) supersedes(held *tally) bool {
	if t.Counted {
		return t.Seq > held.Seq+countedLead
	}
	return t.Seq > held.Seq
}

// Unreadable forgets the checkpoint of a record that cannot be decoded.
func (l *Ledger) Unreadable(key []byte) {
	if split, ours := l.splitOf(string(key)); ours {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.latest, split)
	}
}

// splitOf returns the escaped split of the key of a checkpoint of the brake.
func (l *Ledger) splitOf(key string) (string, bool) {
	return strings.CutPrefix(key, schemas.Key(l.kind.sweep())+"/")
}

func (l *Ledger) get(split string) (*tally, bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	t, ok := l.latest[schemas.Key(split)]
	return t, ok
}
