package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The example of the older form is valid for the stores of the demo, and is published over the demo's policy.
func TestExamplePolicies(t *testing.T) {
	t.Parallel()
	state := filepath.Join(t.TempDir(), "kept")
	must(t, makeDeadState(t.Context(), state, 1))
	const config = `accounts:
  - id: acme
    stores: [{id: "1", root: /srv/1, primary: true}, {id: "2", root: /srv/2}, {id: "3", root: /srv/3}]
log: {level: warn}
`
	const both = `{"defaultPolicies": [{"srcStoreId":"1","destStoreId":"2"}, {"srcStoreId":"1","destStoreId":"3"}]}`
	demo := filepath.Join(t.TempDir(), "demo.json")
	must(t, errors.Join(os.WriteFile(filepath.Join(state, "config.yaml"), []byte(config), 0o600),
		os.WriteFile(demo, []byte(both), 0o600)))
	const examples = "../../examples/policies/"
	for _, step := range []struct {
		args string
		want string
	}{
		{"set acme " + demo, "revision 1 is in force"},
		{"import " + examples + "duracloud", "acme: published: revision 2"},
		{"show --document -o json acme", `"revision": 2`},
		{"set acme " + examples + "acme-two-stores.yaml --base 2", "revision 3 is in force"},
	} {
		var out, stderr bytes.Buffer
		args := append([]string{"policy"}, strings.Fields(step.args)...)
		if code := run(t.Context(), append(args, "--state", state), &out, &stderr); code != exitOK ||
			!strings.Contains(out.String(), step.want) {
			t.Fatalf("policy %s: exit code %d, %s%s, want %q", step.args, code, &out, &stderr, step.want)
		}
	}
}
