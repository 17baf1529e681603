package deletion

import (
	"context"
	"fmt"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/held"
	"github.com/millrace/millrace/streams/held/heldtest"
)

// lists are the lists of a test, in pages of two items.
type lists struct {
	*heldtest.Lists
	reported []string
}

func (l *lists) Decide(_ context.Context, list held.List, id string) (lost string, err error) {
	if d, _, decided := l.Decision(list); !decided || d.ID != id {
		lost = fmt.Sprintf("%s decided before (%s)", d.By, d.Action)
	}
	return lost, nil
}

func (l *lists) Waiting(_ context.Context, list held.List, after string) (page []Listed, err error) {
	for _, r := range l.On(list) {
		if len(page) < 2 && (after == "" || r.GetItem() > after) {
			at := r.GetChangeTime().AsTime()
			page = append(page, Listed{Item: r.GetItem(), SourceStore: r.GetSourceStore(), Effect: r.GetEffect(),
				Deleted: at, Reason: r.GetReason(), Changed: at, Version: r.GetSourceVersion(), Digests: r.GetDigests()})
		}
	}
	return page, l.Unknown
}

func (l *lists) Ordered(_ context.Context, _ held.List, detail string) error {
	l.reported = append(l.reported, detail)
	return nil
}

// items returns the items that are on a list.
func (l *lists) items(list held.List) (all []string) {
	for _, r := range l.On(list) {
		all = append(all, r.GetItem())
	}
	return all
}

// listOfKind returns a list of the space of a world.
func listOfKind(k held.Kind, number int) held.List {
	return held.List{Space: destination.WithoutItem(), Kind: k, Number: number}
}

// config adds a brake, lists and a publisher to a Config.
func (w *world) config(c Config) Config {
	c.Brake, c.Lists, c.Publisher = w.topic.Process(), w.lists, w.topic
	c.Account = func(string) Account { return Account{Stores: []string{"1", "2"}, Primary: "1"} }
	return c
}

// published returns the messages of a type that the deleter itself published.
func published[M schemas.Body](w *world) (all []M) {
	for _, b := range w.topic.Published {
		if m, ok := b.(M); ok {
			all = append(all, m)
		}
	}
	return all
}

func (w *world) results() []*pb.DuplicationResult { return published[*pb.DuplicationResult](w) }
func (w *world) ordered() []*pb.DeletionCommand   { return published[*pb.DeletionCommand](w) }

// hold executes commands that need approval, of items, and returns the list that has their deletes.
func (w *world) hold(items ...string) held.List {
	w.t.Helper()
	l := held.List{}
	for _, item := range items {
		w.putItem(item)
		c := orderOf(item)
		c.NeedsApproval = true
		l = w.held(c)
	}
	return l
}

// held executes a command whose delete is held, and returns its list.
func (w *world) held(c *pb.DeletionCommand) held.List {
	w.t.Helper()
	_, r, err := w.run(c)
	w.must(err)
	l, ok := held.Named(destination, r.GetList())
	if !ok || r.GetResult() != "awaiting-approval" || r.GetEffect() == "" {
		w.t.Fatalf("not held: %v", r)
	}
	return l
}

// handles executes the command of a decision, and returns its result.
func (w *world) handles(c *pb.DeletionCommand) *pb.DuplicationResult {
	w.t.Helper()
	changes, r, err := w.run(c)
	w.must(err)
	if len(changes) > 0 || r.GetItem() != "" {
		w.t.Errorf("got %v, %v", r, changes)
	}
	return r
}

// decide makes a decision about a list, and returns its id.
func (w *world) decide(l held.List, action string) string { return w.lists.Lists.Decide(l, action) }

// approve approves a list, and returns the deletes that are ordered.
func (w *world) approve(l held.List) []*pb.DeletionCommand {
	w.t.Helper()
	before := len(w.ordered())
	if r := w.handles(approval(l, w.decide(l, held.ActionApprove))); r.GetResult() != "deletes-ordered" {
		w.t.Fatalf("got %v", r)
	}
	return w.ordered()[before:]
}
