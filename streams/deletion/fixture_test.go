package deletion

import (
	"context"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// lists are the lists of a test.
type lists struct {
	pages    [][]Listed
	onlyPage []Listed // is returned for each page
	decided  *Decision
	reported []string
	unknown  error
}

func (l *lists) Waiting(_ context.Context, of ListPage) ([]Listed, error) {
	if l.onlyPage != nil {
		return l.onlyPage, l.unknown
	}
	for _, page := range l.pages {
		if page[0].Item > of.After {
			return page, l.unknown
		}
	}
	return nil, l.unknown
}

func (l *lists) Decide(_ context.Context, _ schemas.Copy, _ string, by Decision) (bool, error) {
	if l.decided == nil {
		l.decided = &by
	}
	return l.decided.Action == by.Action, nil
}

func (l *lists) Ordered(_ context.Context, _ schemas.Copy, _, detail string) error {
	l.reported = append(l.reported, detail)
	return nil
}

// config adds a brake and lists to a Config.
func (w *world) config(c Config) Config {
	c.Brake, c.Lists = w.topic.Process(), w.lists
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
