package app

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/streams/policy"
)

// The example policies match the example configuration; there is one in each format.
func TestExamplePolicies(t *testing.T) {
	examples := filepath.Join("..", "..", "examples")
	cfg, _, err := config.Load(config.Sources{File: filepath.Join(examples, "millrace.yaml"), Env: []string{}})
	must(t, err)
	folder := filepath.Join(examples, "policies")
	f, faults := CheckPolicies(cfg, true, folder)
	if len(faults) > 0 || len(f.Ignored) > 0 {
		t.Errorf("got %v, unread %q", faults, f.Ignored)
	}
	if len(f.Documents) != len(cfg.Accounts) {
		t.Errorf("got %d policies for %d accounts", len(f.Documents), len(cfg.Accounts))
	}
	for form, of := range map[string]string{"*-duplication-policy.yaml": "acme", "*-duplication-policy.json": "museum",
		"acme-two-stores.yaml": "acme", "duracloud/*-policy.json": "acme"} {
		found, err := filepath.Glob(filepath.Join(folder, form))
		if err != nil || len(found) != 1 {
			t.Errorf("%s: got %q, %v", form, found, err)
			continue
		}
		content, err := os.ReadFile(found[0])
		if file := CheckPolicy(cfg, "", found[0], content); err != nil || file.Account != of || file.Faults != nil {
			t.Errorf("%s: of account %q, want %q: %v, %v", form, file.Account, of, file.Faults, err)
		}
	}
}

var fence = regexp.MustCompile("(?ms)^```(yaml|json)\n(.*?)^```$")

// Each document in docs/policies.md is valid for an account with three stores.
func TestDocumentedPolicies(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "policies.md"))
	must(t, err)
	blocks := fence.FindAllStringSubmatch(string(text), -1)
	want := strings.Count(string(text), "```yaml") + strings.Count(string(text), "```json")
	if len(blocks) != want || want < 3 {
		t.Fatalf("got %d documents in %d blocks", len(blocks), want)
	}
	for _, b := range blocks {
		doc, err := policy.Parse([]byte(b[2]))
		if err == nil {
			err = doc.Validate([]string{"1", "2", "3"})
		}
		if err != nil {
			t.Errorf("%v in:\n%s", err, b[2])
		}
	}
}
