package limit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"syscall"
	"testing"
	"time"

	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

func TestStep(t *testing.T) {
	shut := func(failures int) machine { return machine{state: Closed, failures: failures} }
	open := func(rounds int) machine { return machine{state: Open, rounds: rounds} }
	half := func(rounds int) machine { return machine{state: HalfOpen, rounds: rounds} }
	hangs := func(failures, hangs int) machine { return machine{state: Closed, failures: failures, hangs: hangs} }
	streams := func(s State, rounds int) machine { return machine{state: s, rounds: rounds, streams: true} }
	tests := map[string]struct {
		from machine
		on   event
		want machine
	}{
		"closed, nothing":                        {shut(0), nothing, shut(0)},
		"closed, nothing, failures stay":         {shut(2), nothing, shut(2)},
		"closed, answered":                       {shut(0), answered, shut(0)},
		"closed, answered, failures go":          {shut(2), answered, shut(0)},
		"closed, failed: counted":                {shut(0), failed, shut(1)},
		"closed, failed: one below":              {shut(1), failed, shut(2)},
		"closed, failed: the threshold":          {shut(2), failed, open(1)},
		"closed, unavailable: at once":           {shut(0), unavailable, open(1)},
		"closed, unavailable after failures":     {shut(2), unavailable, open(1)},
		"closed, due":                            {shut(2), due, shut(2)},
		"open, nothing":                          {open(3), nothing, open(3)},
		"open, answered: late":                   {open(3), answered, open(3)},
		"open, failed: late":                     {open(3), failed, open(3)},
		"open, unavailable: late":                {open(3), unavailable, open(3)},
		"open, due: may be probed":               {open(3), due, half(3)},
		"half-open, nothing: the next one":       {half(3), nothing, half(3)},
		"half-open, answered: the store is back": {half(3), answered, shut(0)},
		"half-open, failed: the first suffices":  {half(3), failed, open(4)},
		"half-open, unavailable":                 {half(3), unavailable, open(4)},
		"half-open, due":                         {half(3), due, half(3)},

		"closed, opened: an answer":                        {shut(2), opened, shut(0)},
		"closed, answered: streams may hang all the same":  {hangs(2, 2), answered, hangs(0, 2)},
		"closed, opened: the bytes are still to come":      {hangs(2, 2), opened, hangs(0, 2)},
		"closed, streamed: all is well":                    {hangs(2, 2), streamed, shut(0)},
		"closed, hung: counted apart":                      {hangs(2, 1), hung, hangs(2, 2)},
		"closed, hung: the threshold":                      {hangs(0, 2), hung, streams(Open, 1)},
		"closed, failed: hangs stay":                       {hangs(0, 2), failed, hangs(1, 2)},
		"open, opened: late":                               {open(3), opened, open(3)},
		"open, streamed: late":                             {open(3), streamed, open(3)},
		"open, hung: late":                                 {open(3), hung, open(3)},
		"open as streams hung, due":                        {streams(Open, 3), due, streams(HalfOpen, 3)},
		"half-open, opened: the store is back":             {half(3), opened, shut(0)},
		"half-open, streamed: the store is back":           {half(3), streamed, shut(0)},
		"half-open, hung":                                  {half(3), hung, streams(Open, 4)},
		"half-open as streams hung, answered: not enough":  {streams(HalfOpen, 3), answered, streams(HalfOpen, 3)},
		"half-open as streams hung, opened: not enough":    {streams(HalfOpen, 3), opened, streams(HalfOpen, 3)},
		"half-open as streams hung, streamed: it is back":  {streams(HalfOpen, 3), streamed, shut(0)},
		"half-open as streams hung, hung":                  {streams(HalfOpen, 3), hung, streams(Open, 4)},
		"half-open as streams hung, failed: still streams": {streams(HalfOpen, 3), failed, streams(Open, 4)},
		"half-open as streams hung, nothing":               {streams(HalfOpen, 3), nothing, streams(HalfOpen, 3)},
	}
	seen := map[string]bool{}
	for name, tt := range tests {
		seen[fmt.Sprint(tt.from.state, tt.on)] = true
		t.Run(name, func(t *testing.T) {
			if got := tt.from.step(tt.on, 3); got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
	for s := Closed; s <= Open; s++ {
		for e := nothing; e <= due; e++ {
			if !seen[fmt.Sprint(s, e)] {
				t.Errorf("no row for state %v and event %d", s, e)
			}
		}
	}
	if got := (machine{}).step(failed, 1); got != open(1) {
		t.Errorf("a threshold of 1: got %+v, want %+v", got, open(1))
	}
}

type timeout struct{}

func (timeout) Error() string   { return "i/o timeout" }
func (timeout) Timeout() bool   { return true }
func (timeout) Temporary() bool { return true }

func TestJudge(t *testing.T) {
	live := t.Context()
	cancelled, cancel := context.WithCancelCause(live)
	cancel(errors.New("shut down"))
	watched, cancel := context.WithCancelCause(live)
	cancel(fmt.Errorf("task took too long: %w", context.DeadlineExceeded))
	late, cancelLate := context.WithTimeoutCause(live, -time.Second, errors.New("held too long"))
	defer cancelLate()

	type row struct {
		ctx          context.Context
		err          error
		want, stream event // stream: where the caller was waited for, too
		alone        event // where the store alone was
	}
	tests := map[string]row{
		"none":                    {live, nil, answered, answered, answered},
		"none, though cancelled":  {cancelled, nil, answered, answered, answered},
		"unclassified":            {live, io.ErrUnexpectedEOF, failed, failed, failed},
		"time-out of the driver":  {live, fmt.Errorf("stat: %w", timeout{}), failed, failed, hung},
		"deadline of the driver":  {live, context.DeadlineExceeded, failed, failed, hung},
		"cancelled by the driver": {live, context.Canceled, failed, failed, failed},
		"reset":                   {live, syscall.ECONNRESET, failed, failed, failed},
		"I/O error":               {live, &fs.PathError{Op: "read", Path: "a", Err: syscall.EIO}, failed, failed, failed},
		// a driver returns ErrNotFound for an absent item
		"file system's own no": {live, fs.ErrNotExist, failed, failed, failed},

		"permanent": {live, retry.Permanent(errors.New("malformed")), answered, answered, answered},
		"wait":      {live, retry.Wait(errors.New("in the archive"), time.Time{}), answered, answered, answered},

		"unavailable": {live, retry.Unavailable(syscall.ENOENT), unavailable, unavailable, unavailable},
		"unavailable, no root": {live,
			retry.Unavailable(fmt.Errorf("%w: %w", storage.ErrNoMarker, syscall.ENOENT)), unavailable, unavailable, unavailable},
		"unavailable, wrapped": {live, fmt.Errorf("stat: %w", retry.Unavailable(io.EOF)), unavailable,
			unavailable, unavailable},
		"unavailable for writes, read-only": {live,
			retry.Unavailable(fmt.Errorf("%w: %w", storage.ErrReadOnly, syscall.EROFS)), nothing, nothing, nothing},
		"unavailable for writes, full": {live, retry.Unavailable(&fs.PathError{Op: "write", Err: syscall.ENOSPC}),
			nothing, nothing, nothing},
		"unavailable for writes, quota": {live, retry.Unavailable(syscall.EDQUOT), nothing, nothing, nothing},

		"cancelled by the caller":            {cancelled, context.Cause(cancelled), nothing, nothing, nothing},
		"cancelled, and a reset":             {cancelled, syscall.ECONNRESET, nothing, nothing, nothing},
		"cancelled, and unavailable":         {cancelled, retry.Unavailable(io.EOF), nothing, nothing, nothing},
		"cancelled, and an answer":           {cancelled, storage.ErrNotFound, answered, answered, answered},
		"caller's time is up":                {late, context.Cause(late), failed, nothing, hung},
		"caller's time is up, by the cause":  {watched, context.Cause(watched), failed, nothing, hung},
		"time is up, and an answer":          {late, storage.ErrNotFound, answered, answered, answered},
		"deadline exceeded, and unavailable": {late, retry.Unavailable(io.EOF), unavailable, nothing, nothing},
	}
	for _, answer := range []error{
		storage.ErrNotFound, storage.ErrNoSpace, storage.ErrExists, storage.ErrNotEmpty, storage.ErrChanged,
		storage.ErrDigest,
		storage.ErrName, storage.ErrReadOnly, storage.ErrUnsupported, storage.ErrNoMarker, storage.ErrWrongMarker,
		storage.ErrTooLarge, storage.ErrListing, storage.ErrSlowDown,
	} {
		tests["answer: "+answer.Error()] = row{live, fmt.Errorf("item: %w", answer), answered, answered, answered}
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := classify(tt.ctx, tt.err); got != tt.want {
				t.Errorf("judge: got %d, want %d", got, tt.want)
			}
			if got := classifyStream(tt.ctx, tt.err, false); got != tt.stream {
				t.Errorf("judgeStream: got %d, want %d", got, tt.stream)
			}
			if got := classifyStream(tt.ctx, tt.err, true); got != tt.alone {
				t.Errorf("judgeStream, alone: got %d, want %d", got, tt.alone)
			}
		})
	}
}
