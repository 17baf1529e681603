package config

import (
	"path/filepath"
	"testing"
)

// The examples have no fault, independently of the environment of the test.
func TestExamples(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("..", "..", "examples", "*.yaml"))
	if err != nil || len(files) < 2 {
		t.Fatalf("examples: %q, %v", files, err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			cfg, _, err := Load(Sources{File: file, Env: []string{}})
			must(t, err)
			if len(cfg.Accounts) == 0 || len(cfg.Accounts[0].Stores) == 0 {
				t.Errorf("it has no stores: %+v", cfg.Accounts)
			}
		})
	}
}
