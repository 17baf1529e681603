package converge

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// Op is a planned mutation of a client.
type Op struct {
	At time.Duration // since the clients started
	ItemRef
	Kind      Kind
	User      string
	Body      string // the bytes of a Put
	MediaType string
	Props     map[string]string
}

// Original returns the item's reference without the suffix of a rename.
func (p ItemRef) Original() ItemRef { return ItemRef{p.Space, strings.TrimSuffix(p.Item, movedSuffix)} }

// Load is the amount of work of the clients.
type Load struct {
	Items  []ItemRef // items that clients use
	Length time.Duration
	Every  time.Duration // average time between two ops
}

// Parameters of the clients' work.
const (
	backFirst, backLast   = 600 * time.Millisecond, 2900 * time.Millisecond // time until deleted bytes are put back
	awayFirst, awayLast   = 500 * time.Millisecond, 5 * time.Second         // time until a renamed item is renamed back
	minOpGap              = 300 * time.Millisecond                          // minimum time between two ops of an item
	maxBody               = 6000                                            // approximate maximum size of an item in bytes
	movedSuffix           = ".moved"                                        // suffix of a renamed item
	users                 = "ann ben cyd"
	mediaTypes, languages = "text/plain application/pdf image/png", "en de cy"
)

// client generates ops and tracks the resulting items.
type client struct {
	random   *rand.Rand
	ops      []Op
	live     map[ItemRef]Op // last put of each existing item
	deleted  map[ItemRef]Op // last put of each deleted item
	nextFree map[ItemRef]time.Duration
	serial   int
}

// First returns the ops that put every item for the first time, all at time 0.
func First(seed uint64, places []ItemRef) []Op {
	c := newClient(seed)
	for _, p := range places {
		c.put(0, p, c.body())
	}
	return c.ops
}

// Ops returns the clients' ops after First for a seed, ordered by time. Clients replace items, delete them, put deleted
// bytes back, rename items and rename them back, and set properties.
func Ops(seed uint64, l Load) []Op {
	c := newClient(seed)
	for _, p := range l.Items {
		c.put(0, p, c.body())
	}
	c.ops = nil
	for now := time.Duration(0); now < l.Length; now += between(c.random, l.Every/2, l.Every*3/2) {
		p := l.Items[c.random.IntN(len(l.Items))]
		if c.nextFree[p] > now {
			continue
		}
		c.act(now, p)
	}
	slices.SortStableFunc(c.ops, func(a, b Op) int { return int(a.At - b.At) })
	return c.ops
}

func newClient(seed uint64) *client {
	return &client{
		random: rand.New(rand.NewPCG(seed, 1)),
		live:   map[ItemRef]Op{}, deleted: map[ItemRef]Op{}, nextFree: map[ItemRef]time.Duration{},
	}
}

// act adds the ops of one random action on an item.
func (c *client) act(now time.Duration, p ItemRef) {
	was, live := c.live[p]
	if !live {
		body := c.deleted[p].Body
		if c.random.IntN(2) == 0 {
			body = c.body()
		}
		c.put(now, p, body)
		return
	}
	switch n := c.random.IntN(100); {
	case n < 45:
		c.put(now, p, c.body())
	case n < 65:
		c.set(now, p)
	case n < 75:
		c.remove(now, p)
	case n < 88:
		c.remove(now, p)
		c.put(now+between(c.random, backFirst, backLast), p, was.Body)
	default:
		c.rename(now, p, was.Body)
	}
}

// rename gives an item another name and later its old name again.
func (c *client) rename(now time.Duration, p ItemRef, body string) {
	to, back := ItemRef{p.Space, p.Item + movedSuffix}, now+between(c.random, awayFirst, awayLast)
	c.put(now, to, body)
	c.remove(now+time.Millisecond, p)
	c.put(back, p, body)
	c.remove(back+time.Millisecond, to)
}

func (c *client) put(at time.Duration, p ItemRef, body string) {
	o := Op{At: at, ItemRef: p, Kind: Put, User: c.pick(users), Body: body, MediaType: c.pick(mediaTypes),
		Props: c.props()}
	c.live[p] = o
	c.add(o)
}

func (c *client) set(at time.Duration, p ItemRef) {
	c.add(Op{At: at, ItemRef: p, Kind: SetProperties, User: c.pick(users), MediaType: c.pick(mediaTypes),
		Props: c.props()})
}

func (c *client) remove(at time.Duration, p ItemRef) {
	c.deleted[p] = c.live[p]
	delete(c.live, p)
	c.add(Op{At: at, ItemRef: p, Kind: Delete, User: c.pick(users)})
}

func (c *client) add(o Op) {
	c.nextFree[o.ItemRef] = o.At + minOpGap
	c.ops = append(c.ops, o)
}

// body returns unique bytes.
func (c *client) body() string {
	c.serial++
	line := fmt.Sprintf("%d of %x\n", c.serial, c.random.Uint64())
	return strings.Repeat(line, 1+c.random.IntN(maxBody/len(line)))
}

func (c *client) props() map[string]string {
	return map[string]string{"language": c.pick(languages), "serial": fmt.Sprint(len(c.ops))}
}

func (c *client) pick(words string) string {
	all := strings.Fields(words)
	return all[c.random.IntN(len(all))]
}

func between(r *rand.Rand, first, last time.Duration) time.Duration {
	return first + time.Duration(r.Int64N(int64(last-first+1)))
}
