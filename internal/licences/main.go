// Command licences collects the licences of all modules that binaries contain, for "make sbom". It refuses a module
// without a licence that it knows, and a licence that is not permissive.
//
//	licences DIR PACKAGE...
//
// It writes the texts to DIR/LICENSES.txt, and completes the SBOM of each package, DIR/NAME.cdx.json: the licences of
// its components, libchdb in that of millrace-clickhouse, which loads it, and no time, so that the same source gives
// the same bytes.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/millrace/millrace/sinks/clickhouse/embedded"
)

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: licences DIR PACKAGE...")
		os.Exit(2)
	}
	if err := write(os.Args[1], os.Args[2:]...); err != nil {
		fmt.Fprintln(os.Stderr, "licences:", err)
		os.Exit(1)
	}
}

func write(dir string, packages ...string) error {
	modules, err := collect(packages...)
	if err != nil {
		return err
	}
	licences := map[string][]string{}
	for _, m := range modules {
		ids, bad := m.licences()
		licences[m.Path], err = ids, errors.Join(err, bad)
	}
	if err != nil {
		return err
	}
	for _, p := range packages {
		var loaded []any
		if path.Base(p) == "millrace-clickhouse" {
			loaded = []any{libchdb()}
		}
		if err := complete(filepath.Join(dir, path.Base(p)+".cdx.json"), licences, loaded); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(dir, "LICENSES.txt"), texts(modules), 0o644)
}

// libchdb returns the component of the embedded ClickHouse. It is loaded at run time, so that it is not in the binary
// from which the SBOM is made.
func libchdb() map[string]any {
	name, version, sum := embedded.Library()
	group, short, _ := strings.Cut(name, "/")
	purl := "pkg:npm/" + strings.Replace(name, "@", "%40", 1) + "@" + version
	return map[string]any{
		"bom-ref": purl, "purl": purl, "type": "library", "group": group, "name": short, "version": version,
		"description": "libchdb.so, the embedded ClickHouse, loaded at run time; the hash is that of this file",
		"hashes":      []any{map[string]any{"alg": "SHA-256", "content": sum}},
		"licenses":    []any{map[string]any{"license": map[string]any{"id": "Apache-2.0"}}},
		"scope":       "required",
	}
}

// complete writes the licences of the components into an SBOM, and adds the components that are loaded at run time. It
// removes the time.
func complete(file string, licences map[string][]string, loaded []any) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if text, err = completed(text, licences, loaded); err != nil {
		return fmt.Errorf("complete %s: %w", file, err)
	}
	return os.WriteFile(file, text, 0o644)
}

func completed(text []byte, licences map[string][]string, loaded []any) ([]byte, error) {
	var bom map[string]any
	if err := json.Unmarshal(text, &bom); err != nil {
		return nil, err
	}
	metadata, _ := bom["metadata"].(map[string]any)
	components, _ := bom["components"].([]any)
	if metadata == nil || len(components) == 0 {
		return nil, errors.New("it has no metadata, or no components")
	}
	delete(metadata, "timestamp")
	for _, c := range components {
		component, _ := c.(map[string]any)
		name, _ := component["name"].(string)
		if len(licences[name]) == 0 {
			return nil, fmt.Errorf("no licence of its component %q is known", name)
		}
		var list []any
		for _, id := range licences[name] {
			list = append(list, map[string]any{"license": map[string]any{"id": id}})
		}
		component["licenses"] = list
	}
	bom["components"] = append(components, loaded...)
	out, err := json.MarshalIndent(bom, "", "  ")
	return append(out, '\n'), err
}

// texts returns the licences and notices of all modules as one text.
func texts(modules []module) []byte {
	out := []byte("Licences and notices of the third-party code in the programs of millrace.\n")
	for _, m := range modules {
		for _, name := range slices.Sorted(m.names()) {
			out = fmt.Appendf(out, "\n%s\n%s %s: %s\n\n%s\n", rule, m.Path, m.Version, name, m.files[name])
		}
	}
	return out
}

const rule = "--------------------------------------------------------------------------------"
