package demo

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/millrace/millrace/cmd/statedir"
)

// The steps, in order. A stopped demo resumes with the first step that is not done.
const (
	stepWrite = iota + 1
	stepCopy
	stepDamage
	stepSweep
	stepRepair
	stepAdopt
	stepDone
)

// A checkpoint is the progress of a demo in its state directory, from which it resumes after a stop
// or a kill.
type checkpoint struct {
	path string

	Dir       string              `json:"dir"`
	Step      int                 `json:"step"`
	Files     []file              `json:"files"`
	Skipped   []skip              `json:"skipped"`
	Picks     picks               `json:"picks"`
	Originals map[string]original `json:"before,omitempty"` // of the copies whose files are changed, by item
	Started   time.Time           `json:"started"`
	Kind      string              `json:"stores,omitempty"` // of stores 2 and 3; empty: file
	Port      int                 `json:"port,omitempty"`   // of the S3 server in the last run
	// Rounds has the times of the fixity rounds by name. The time identifies a round.
	Rounds  map[string]time.Time `json:"rounds"`
	Damaged time.Time            `json:"damaged"`
	// Spent is the time in seconds from the first write to the last check.
	Spent float64 `json:"spent,omitempty"`
}

// original is the state of a copy's file before it was changed.
type original struct {
	First    byte      `json:"first"` // its first byte
	Modified time.Time `json:"modified"`
}

// picks are the five items that the demo damages, each in a different way.
type picks struct {
	Flip     string `json:"flip"`
	Truncate string `json:"truncate"`
	Remove   string `json:"remove"`
	Replace  string `json:"replace"`
	Delete   string `json:"delete"`
}

// loadCheckpoint reads the checkpoint from the state directory. A new one has Step 0.
func loadCheckpoint(path string) (*checkpoint, error) {
	m := &checkpoint{path: path}
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return m, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the demo's checkpoint: %w", err)
	}
	if err := json.Unmarshal(data, m); err != nil {
		return nil, fmt.Errorf("read the demo's checkpoint %s: %w", path, err)
	}
	return m, nil
}

// save writes the checkpoint atomically.
func (m *checkpoint) save() error {
	data, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if err := statedir.WriteFile(m.path, data); err != nil {
		return fmt.Errorf("write the demo's checkpoint: %w", err)
	}
	return nil
}

// completed records that a step is completed.
func (m *checkpoint) completed(step int) error {
	m.Step = step
	return m.save()
}
