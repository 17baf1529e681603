package demo

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/millrace/millrace/cmd/app"
)

// The steps, in order. A demo that was stopped goes on with the first that is not done.
const (
	stepWrite = iota + 1
	stepCopy
	stepDamage
	stepSweep
	stepRepair
	stepDone
)

// A memo is what the demo remembers in its state directory: which step it is at and what
// it chose, so that it goes on after a stop or a kill as if nothing had happened.
type checkpoint struct {
	path string

	Dir       string              `json:"dir"`
	Step      int                 `json:"step"`
	Files     []file              `json:"files"`
	Skipped   []skip              `json:"skipped"`
	Picks     picks               `json:"picks"`
	Originals map[string]original `json:"before,omitempty"` // what the copies that are harmed quietly were, by item
	Started   time.Time           `json:"started"`
	Kind      string              `json:"stores,omitempty"` // of stores 2 and 3; empty: file
	Port      int                 `json:"port,omitempty"`   // of the S3 server, the last time
	// Rounds are the fixity rounds that were begun, by name, with the time that makes each round one.
	Rounds  map[string]time.Time `json:"rounds"`
	Damaged time.Time            `json:"damaged"`
	// Spent is how long the way from the first write to the last check took, in seconds.
	Spent float64 `json:"spent,omitempty"`
}

// before is what a copy was before it was harmed quietly.
type original struct {
	First    byte      `json:"first"` // its first byte
	Modified time.Time `json:"modified"`
}

// picks are the five items that the demo harms, one in each way.
type picks struct {
	Flip     string `json:"flip"`
	Truncate string `json:"truncate"`
	Remove   string `json:"remove"`
	Replace  string `json:"replace"`
	Delete   string `json:"delete"`
}

// recall reads the memo in the state directory; a new one has Step 0.
func loadCheckpoint(path string) (*checkpoint, error) {
	m := &checkpoint{path: path}
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return m, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the demo's memo: %w", err)
	}
	if err := json.Unmarshal(data, m); err != nil {
		return nil, fmt.Errorf("read the demo's memo %s: %w", path, err)
	}
	return m, nil
}

// save writes the memo so that it is there whole, whenever the process dies.
func (m *checkpoint) save() error {
	data, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if err := app.WriteFile(m.path, data); err != nil {
		return fmt.Errorf("write the demo's memo: %w", err)
	}
	return nil
}

// done notes that a step is done.
func (m *checkpoint) completed(step int) error {
	m.Step = step
	return m.save()
}
