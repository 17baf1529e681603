// Package progress shows the progress of long operations: bars on a terminal, otherwise one JSON
// line per interval and one at the end of each step. The last output of a step shows its last
// value.
package progress

import (
	"encoding/json"
	"io"
	"os"
	"sync"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"golang.org/x/term"
)

// interval is the time between two lines of one step.
const interval = 2 * time.Second

// A Display shows the steps of an operation on one writer. Write is safe for concurrent use.
type Display struct {
	bars  *mpb.Progress // nil: lines are written
	steps []*Step       // all steps; Step and Close must not be called concurrently

	mu     sync.Mutex // guards the fields below
	out    io.Writer
	closed bool
}

// New returns a display on out: bars if out is a terminal, otherwise lines.
func New(out io.Writer) *Display {
	d := &Display{out: out}
	if f, ok := out.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		d.bars = mpb.New(mpb.WithOutput(out), mpb.WithWidth(48), mpb.WithRefreshRate(150*time.Millisecond))
	}
	return d
}

// Write prints text, above the bars if there are any and the display is not closed.
func (d *Display) Write(p []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.bars != nil && !d.closed {
		return d.bars.Write(p)
	}
	return d.out.Write(p)
}

// Close waits until the bars are drawn, and leaves them on the screen. A second Close does nothing.
func (d *Display) Close() {
	d.mu.Lock()
	closed := d.closed
	d.closed = true
	d.mu.Unlock()
	if d.bars == nil || closed {
		return
	}
	for _, s := range d.steps {
		s.End(false)
	}
	d.bars.Wait()
}

// A Step is one part of the operation, with a counter. Its methods are safe for concurrent use.
type Step struct {
	display *Display
	name    string
	bar     *mpb.Bar
	started time.Time

	mu    sync.Mutex // guards the fields below
	n     int64
	total int64
	shown time.Time
	ended bool
}

type line struct {
	Step    string  `json:"step"`
	Done    int64   `json:"done"`
	Total   int64   `json:"total"`
	Rate    float64 `json:"rate_per_second"`
	Seconds float64 `json:"seconds"`
	Ended   bool    `json:"ended"`
}

// Step starts a step of total units.
func (d *Display) Step(name string, total int64) *Step {
	s := &Step{display: d, name: name, total: total, started: time.Now()}
	d.steps = append(d.steps, s)
	if d.bars != nil {
		s.bar = d.bars.AddBar(total,
			mpb.PrependDecorators(decor.Name(name, decor.WCSyncSpaceR), decor.CountersNoUnit("%d / %d", decor.WCSyncWidth)),
			mpb.AppendDecorators(decor.Percentage(decor.WC{W: 5}), decor.AverageSpeed(0, " %.0f/s"), decor.Name(" "),
				decor.OnComplete(decor.AverageETA(decor.ET_STYLE_GO), "done")))
	}
	return s
}

// Set sets the number of finished units.
func (s *Step) Set(n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.set(n)
}

// Add adds to the number of finished units.
func (s *Step) Add(n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.set(s.n + n)
}

func (s *Step) set(n int64) {
	s.n = n
	if s.bar != nil {
		s.bar.SetCurrent(min(n, s.total-1)) // End completes the bar
		return
	}
	if now := time.Now(); now.Sub(s.shown) >= interval {
		s.shown = now
		s.write()
	}
}

// End ends the step; ok reports whether all of it was done, which is the total then: it may have been an estimate.
func (s *Step) End(ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return
	}
	s.ended = true
	switch {
	case s.bar == nil:
		if ok {
			s.total = s.n
		}
		s.write()
	case ok:
		s.bar.SetCurrent(s.total)
	default:
		s.bar.Abort(false)
	}
}

// write writes a line. mu must be held.
func (s *Step) write() {
	spent := time.Since(s.started).Seconds()
	l := line{Step: s.name, Done: s.n, Total: s.total, Seconds: round(spent), Ended: s.ended}
	if l.Seconds > 0 {
		l.Rate = round(float64(s.n) / spent)
	}
	data, err := json.Marshal(l)
	if err != nil {
		return // numbers and a name always encode
	}
	_, _ = s.display.Write(append(data, '\n')) // an error must not stop the operation
}

func round(f float64) float64 { return float64(int64(f*10+0.5)) / 10 }
