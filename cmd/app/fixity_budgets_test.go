package app

import (
	"testing"

	"github.com/millrace/millrace/cmd/config"
)

func TestCheckRequests(t *testing.T) {
	t.Parallel()
	const part = 16 << 20
	for name, tt := range map[string]struct {
		store      config.Store
		size, want int64
	}{
		"file":                 {config.Store{Driver: "file"}, 10 * part, 3},
		"file, not read":       {config.Store{Driver: "file", Read: "never"}, 10 * part, 2},
		"s3":                   {config.Store{Driver: "s3"}, 1000, 3},
		"s3, of unknown size":  {config.Store{Driver: "s3"}, 0, 3},
		"s3, a part":           {config.Store{Driver: "s3", Read: "always"}, part, 3},
		"s3, more than a part": {config.Store{Driver: "s3", Read: "sampled"}, part + 1, 4},
		"s3, large":            {config.Store{Driver: "s3"}, 100 * part, 102},
		"s3, large, not read":  {config.Store{Driver: "s3", Read: "never"}, 100 * part, 2},
	} {
		if got := checkRequests(tt.store)(tt.size); got != tt.want {
			t.Errorf("%s: got %d, want %d", name, got, tt.want)
		}
	}
}

// The estimated time is that of the budget whose number lasts longest.
func TestSecondsOfBudgets(t *testing.T) {
	t.Parallel()
	s := newSwept(t, 1)
	for name, tt := range map[string]struct {
		budget config.StoreBudget
		want   float64 // days
	}{
		"none":     {config.StoreBudget{}, 0},
		"items":    {config.StoreBudget{Items: 50, Bytes: 1000, Requests: 300}, 2},
		"bytes":    {config.StoreBudget{Items: 100, Bytes: 250, Requests: 300}, 4},
		"requests": {config.StoreBudget{Items: 100, Bytes: 1000, Requests: 100}, 3},
	} {
		tt.budget.Stores = "acme/1"
		s.a.cfg.Fixity.Budgets = []config.StoreBudget{tt.budget}
		if got := s.a.secondsOf(StoreName{"acme", "1"}, 100, 1000); got != tt.want*24*60*60 {
			t.Errorf("%s: got %v, want %v days", name, got, tt.want)
		}
	}
}
