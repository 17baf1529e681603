package converge

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// An Op is what a client is to do, and when.
type Op struct {
	At time.Duration // since the clients began
	ItemRef
	Kind      Kind
	User      string
	Body      string // of a Put: the bytes
	MediaType string
	Props     map[string]string
}

// Original returns the place that an item has when it is not renamed.
func (p ItemRef) Original() ItemRef { return ItemRef{p.Space, strings.TrimSuffix(p.Item, movedSuffix)} }

// Load says how much clients do.
type Load struct {
	Items  []ItemRef // that they use
	Length time.Duration
	Every  time.Duration // between two ops, about
}

// Settings of what clients do.
const (
	backFirst, backLast   = 600 * time.Millisecond, 2900 * time.Millisecond // until deleted bytes are put back
	awayFirst, awayLast   = 500 * time.Millisecond, 5 * time.Second         // until a renamed item is renamed back
	minOpGap              = 300 * time.Millisecond                          // between two ops of an item, at least
	maxBody               = 6000                                            // bytes of an item, about
	movedSuffix           = ".moved"                                        // ends the name of a renamed item
	users                 = "ann ben cyd"
	mediaTypes, languages = "text/plain application/pdf image/png", "en de cy"
)

// A client knows what it has made of the items.
type client struct {
	random   *rand.Rand
	ops      []Op
	live     map[ItemRef]Op // the last put of those that are there
	deleted  map[ItemRef]Op // of those that were deleted
	nextFree map[ItemRef]time.Duration
	serial   int
}

// First returns the ops that put every item for the first time, all at once.
func First(seed uint64, places []ItemRef) []Op {
	c := newClient(seed)
	for _, p := range places {
		c.put(0, p, c.body())
	}
	return c.ops
}

// Ops returns what clients do in a run with this seed after First, in the order of time: they replace items, delete them,
// put back the bytes that they deleted, rename items away and back, and set properties.
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

// act does one thing to an item.
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

// rename gives an item another name for a while.
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

// body returns bytes that nothing else has.
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
