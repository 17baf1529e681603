package app

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/steward"
)

var _ steward.Copies = (*liveCounts)(nil)

// A count is repeated when it is old, is there later if it takes longer than the caller waits, and counts for a day
// while the space cannot be counted. Without one the number is unknown.
func TestLiveCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		photos := schemas.Copy{Account: "acme", Store: "2", Space: "photos"}
		var (
			calls   int
			takes   time.Duration
			result  int64
			failure error
		)
		l := newLiveCounts(func(context.Context, schemas.Copy) (int64, error) {
			calls++
			time.Sleep(takes)
			return result, failure
		})
		ended := make(chan error)
		go func() { ended <- l.Run(ctx) }()
		check := func(what string, n int64, want error, counted int) {
			t.Helper()
			wait, stop := context.WithTimeout(ctx, 4*time.Second)
			defer stop()
			got, err := l.Live(wait, photos)
			synctest.Wait() // until a count that was requested is under way or over
			if got != n || !errors.Is(err, want) || calls != counted {
				t.Errorf("%s: got %d, %v after %d counts, want %d, %v after %d", what, got, err, calls, n, want, counted)
			}
		}
		down := errors.New("no answer")
		failure = down
		check("no count", 0, down, 1)
		failure, result, takes = nil, 7, time.Minute
		check("a slow count", 0, errNotCounted, 2)
		check("still counting", 0, errNotCounted, 2)
		time.Sleep(time.Minute)
		check("counted meanwhile", 7, nil, 2)
		result, takes = 8, time.Second
		time.Sleep(liveCountFresh)
		check("an old count", 7, nil, 3)
		time.Sleep(time.Minute)
		check("counted again meanwhile", 8, nil, 3)
		failure = down
		time.Sleep(liveCountFresh)
		check("another old count", 8, nil, 4)
		time.Sleep(time.Minute)
		check("it cannot be counted again", 8, nil, 5)
		time.Sleep(liveCountKnown)
		check("the count is too old", 0, down, 6)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
