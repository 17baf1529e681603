package mill

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"
	"time"
)

// A producer is a looping task producer of the Mill: its name in properties and files, the sweep that does its work,
// and the setting that says how often.
type producer struct{ name, sweep, period string }

func producers() []producer {
	return []producer{{"dup", "duplication", "sweep.duplication"}, {"bit", "fixity", "fixity.period"},
		{"storagestats", "stats", "sweep.stats"}}
}

func (p producer) file() string { return p.name + "-producer-state.json" }

// A state is what a producer writes to its state file.
type state struct {
	Morsels []morsel `json:"morsels"`
	Next    *int64   `json:"nextRunStartDate"` // in milliseconds since 1970; nil: the run has not ended, or was the last
}

// A morsel is a space of which a run has not queued all items yet.
type morsel struct {
	Account string    `json:"account"`
	Space   string    `json:"spaceId"`
	Marker  *string   `json:"marker"`  // the last item that was queued; nil: none
	Store   string    `json:"storeId"` // of bit and storagestats
	Policy  *struct { // of dup
		From string `json:"srcStoreId"`
		To   string `json:"destStoreId"`
	} `json:"storePolicy"`
}

func (m morsel) String() string {
	stores, queued := fmt.Sprintf("in store %q", m.Store), "nothing was queued"
	if m.Policy != nil {
		stores = fmt.Sprintf("from store %q to %q", m.Policy.From, m.Policy.To)
	}
	if m.Marker != nil {
		queued = fmt.Sprintf("queued up to %q", *m.Marker)
	}
	return fmt.Sprintf("space %q %s, %s", m.Account+"/"+m.Space, stores, queued)
}

// A namedState is a state file that a line of the result names.
type namedState struct {
	producer producer
	file     string
	line     int
}

func stateFile(p producer) conversion {
	return func(c *converter, value string) (string, error) {
		c.states = append(c.states, namedState{p, value, len(c.result.Lines) - 1})
		return "not needed: the rounds of sweeps are in the topic checkpoints", nil
	}
}

func workdir(c *converter, value string) (string, error) {
	for _, p := range producers() {
		c.states = append(c.states, namedState{p, path.Join(value, p.file()), len(c.result.Lines) - 1})
	}
	return "not needed: copies are streamed", nil
}

// named adds what a state file has become, or that it is absent or cannot be read, to the line that names it.
func (c *converter) named(p producer, file string, line int) {
	r, err := c.open(file)
	var text []byte
	if err == nil {
		defer r.Close()
		text, err = io.ReadAll(r)
	}
	if err == nil && len(text) > 0 { // for the Mill an empty one is none
		err = c.state(p, file, text)
	}
	l := &c.result.Lines[line]
	if errors.Is(err, fs.ErrNotExist) {
		l.Became += fmt.Sprintf("; there is no %s, as before the first run", file)
	} else if err != nil {
		l.Became, l.Failed = fmt.Sprintf("%s; not converted: %v", l.Became, err), true
	}
}

// state adds what a state has become. No setting comes of it: a round begins anew, and repeats no copy that exists. A
// producer without a name is that of the name of the file, or of what the state has.
func (c *converter) state(p producer, file string, text []byte) error {
	var s state
	err := json.Unmarshal(text, &s)
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		err = fmt.Errorf("at byte %d: %w", syntax.Offset, err)
	}
	for i, known := range producers() {
		if p.name == "" && (path.Base(file) == known.file() || i == 0 && len(s.Morsels) > 0 && s.Morsels[0].Policy != nil) {
			p = known
		}
	}
	if err == nil && (s.Morsels == nil || p.name == "") {
		err = errors.New("it is not that of a looping task producer, or has not the name that a producer gives it")
	}
	if err != nil {
		return fmt.Errorf("read the state file %s: %w", file, err)
	}
	schedule := c.schedule(p)
	became := "nothing: the first round of the sweep " + p.sweep + " begins anew and covers it"
	if strings.HasSuffix(schedule, ": off") {
		became = "nothing: to finish it, run millrace sweep start " + p.sweep
	}
	for i, m := range s.Morsels {
		c.result.Lines = append(c.result.Lines, Line{File: file, Text: fmt.Sprintf("morsels[%d]: %s", i, m), Became: became})
	}
	next := "none"
	if s.Next != nil {
		next = time.UnixMilli(*s.Next).UTC().Format(time.RFC3339)
	}
	c.result.Lines = append(c.result.Lines, Line{File: file, Text: "nextRunStartDate: " + next, Became: schedule})
	return nil
}

// schedule returns the setting that takes the place of the date of the next run.
func (c *converter) schedule(p producer) string {
	for _, key := range []string{"sweep." + p.sweep, p.period} {
		if s := c.settings[key]; len(s.Values) > 0 {
			return "not this date, but " + key + ": " + s.Values[0]
		}
	}
	return fmt.Sprintf("not this date, but the default of %s: looping.%s.frequency is not given", p.period, p.name)
}
