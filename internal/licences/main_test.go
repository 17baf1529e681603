package main

import (
	"bytes"
	"encoding/json"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/millrace/millrace/sinks/clickhouse/embedded"
)

// shipped returns the programs of images and packages, as the Makefile names them.
func shipped(t *testing.T) (packages []string) {
	t.Helper()
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	_, line, _ := strings.Cut(string(makefile), "\nSHIPPED := ")
	line, _, _ = strings.Cut(line, "\n")
	for _, p := range strings.Fields(line) {
		packages = append(packages, "../."+p)
	}
	if len(packages) < 2 {
		t.Fatalf("the Makefile has %q in SHIPPED", packages)
	}
	return packages
}

// Every module in the programs has licences, all of them permissive, and their texts are in LICENSES.txt.
func TestLicences(t *testing.T) {
	modules, err := collect(shipped(t)...)
	if err != nil {
		t.Fatal(err)
	}
	all := texts(modules)
	for _, m := range modules {
		ids, err := m.licences()
		if err != nil {
			t.Error(err)
		}
		t.Log(m.Path, ids)
		if !bytes.Contains(all, []byte("\n"+m.Path+" "+m.Version+": ")) {
			t.Errorf("no text of %s", m.Path)
		}
	}
	if len(modules) < 20 {
		t.Errorf("%d modules: too few, the search has a fault", len(modules))
	}
}

func TestClassify(t *testing.T) {
	const mit = "Permission is hereby granted, free of charge, to any\nperson obtaining a copy of this software"
	const bsd = "Redistribution and use in source and binary\n// forms, with or without modification"
	for name, tt := range map[string]struct {
		text string
		want []string
	}{
		"MIT":      {mit, []string{"MIT"}},
		"MIT-0":    {"MIT No Attribution\n\n" + mit, []string{"MIT-0"}},
		"BSD, two": {bsd, []string{"BSD-2-Clause"}},
		"BSD, three": {bsd + " nor the names of its\ncontributors may be used to endorse or promote",
			[]string{"BSD-3-Clause"}},
		"Apache":           {"   Apache License\n   Version 2.0, January 2004", []string{"Apache-2.0"}},
		"two":              {"Apache License\nVersion 2.0\n" + mit, []string{"Apache-2.0", "MIT"}},
		"GPL":              {"GNU GENERAL PUBLIC\nLICENSE", nil},
		"MIT beside LGPL":  {mit + "\nGNU Lesser General Public License", nil},
		"MPL":              {"Mozilla Public License Version 2.0", nil},
		"source-available": {mit + " Commons Clause", nil},
		"non-commercial":   {mit + " for Non-Commercial use", nil},
		"JSON":             {mit + " The Software shall be used for Good, not Evil.", nil},
		"BSD, four":        {bsd + " All advertising materials mentioning features", nil},
		"unknown":          {"All rights reserved.", nil},
		"empty":            {"", nil},
	} {
		t.Run(name, func(t *testing.T) {
			if got := classify([]byte(tt.text)); !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestModuleLicences(t *testing.T) {
	mit := []byte("Permission is hereby granted, free of charge, to any person obtaining a copy")
	for name, tt := range map[string]struct {
		files map[string][]byte
		err   string
	}{
		"one":           {map[string][]byte{"LICENSE": mit, "NOTICE": []byte("x")}, ""},
		"none":          {nil, "x v1 has no licence"},
		"only a notice": {map[string][]byte{"NOTICE": mit}, "x v1 has no licence"},
		"one is not known": {map[string][]byte{"LICENSE": mit, "sub/LICENSE": []byte("GNU General Public License")},
			"sub/LICENSE is not"},
		"name with licence in it": {map[string][]byte{"LICENSE": mit, "MIT-LICENSE.txt": []byte("mine")},
			"MIT-LICENSE.txt is not"},
		"a notice asks for more": {map[string][]byte{"LICENSE": mit, "NOTICE": []byte("Parts: GNU General Public License")},
			"NOTICE is not permissive"},
	} {
		t.Run(name, func(t *testing.T) {
			ids, err := module{Path: "x", Version: "v1", files: tt.files}.licences()
			if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("got %v, want %q", err, tt.err)
			}
			if err == nil && !reflect.DeepEqual(ids, []string{"MIT"}) {
				t.Errorf("got %v", ids)
			}
		})
	}
}

func TestCompleted(t *testing.T) {
	const bom = `{"metadata": {"timestamp": "2026-01-02T03:04:05Z"}, "components": [{"name": "a"}]}`
	const want = `{
  "components": [
    {
      "licenses": [
        {
          "license": {
            "id": "MIT"
          }
        }
      ],
      "name": "a"
    }
  ],
  "metadata": {}
}
`
	got, err := completed([]byte(bom), map[string][]string{"a": {"MIT"}}, nil)
	if err != nil || string(got) != want {
		t.Errorf("got %s (%v), want %s", got, err, want)
	}
	for name, tt := range map[string]struct{ bom string }{
		"a component without a licence": {`{"metadata": {}, "components": [{"name": "b"}]}`},
		"no components":                 {`{"metadata": {}}`},
		"not JSON":                      {`<bom/>`},
	} {
		if _, err := completed([]byte(tt.bom), map[string][]string{"a": {"MIT"}}, nil); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// The SBOM of millrace-clickhouse names the library that it loads.
func TestLibraryInSBOM(t *testing.T) {
	const bom = `{"metadata": {}, "components": [{"name": "a"}]}`
	text, err := completed([]byte(bom), map[string][]string{"a": {"MIT"}}, []any{libchdb()})
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Components []struct {
			Group, Name, Version, Purl string
			Hashes                     []struct{ Content string }
			Licenses                   []struct{ License struct{ ID string } }
		}
	}
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	name, version, sum := embedded.Library()
	if len(got.Components) != 2 {
		t.Fatalf("got %s", text)
	}
	l := got.Components[1]
	if l.Group+"/"+l.Name != name || l.Version != version || l.Purl != "pkg:npm/%40"+name[1:]+"@"+version ||
		l.Hashes[0].Content != sum || l.Licenses[0].License.ID != "Apache-2.0" {
		t.Errorf("got %+v", l)
	}
}
