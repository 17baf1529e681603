package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
)

// A module is third-party code in a binary: a module, or the standard library.
type module struct {
	Path, Version, Dir string

	files map[string][]byte // licences and notices, by their path in the module
}

func (m module) names() iter.Seq[string] { return maps.Keys(m.files) }

var (
	legal     = regexp.MustCompile(`(?i)licen[cs]e|copying|^(copyright|notice|patents)`)
	isLicence = regexp.MustCompile(`(?i)licen[cs]e|copying`)
	source    = []string{".go", ".s", ".c", ".h"}
)

// collect returns the modules whose packages the binaries of packages contain, sorted by path, with the licences in
// the folders of these packages and in those above them.
func collect(packages ...string) ([]module, error) {
	cmd := exec.Command("go", append([]string{"list", "-deps", "-json=Dir,Module,Standard"}, packages...)...)
	cmd.Env, cmd.Stderr = append(os.Environ(), "CGO_ENABLED=0"), os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("list the packages: %w", err)
	}
	goroot, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return nil, fmt.Errorf("find the standard library: %w", err)
	}
	all := map[string]module{}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct {
			Dir      string
			Standard bool
			Module   *struct {
				Path, Version, Dir string
				Main               bool
			}
		}
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("read the packages: %w", err)
		}
		m := module{Path: "std", Version: runtime.Version(), Dir: strings.TrimSpace(string(goroot))}
		switch {
		case p.Standard:
			p.Dir = m.Dir
		case p.Module == nil || p.Module.Main:
			continue
		default:
			m = module{Path: p.Module.Path, Version: p.Module.Version, Dir: p.Module.Dir}
		}
		if known, ok := all[m.Path]; ok {
			m = known
		} else {
			m.files = map[string][]byte{}
		}
		if err := m.read(p.Dir); err != nil {
			return nil, err
		}
		all[m.Path] = m
	}
	return slices.SortedFunc(maps.Values(all), func(a, b module) int { return strings.Compare(a.Path, b.Path) }), nil
}

// read reads the licences and notices in dir and in the folders above it, up to the folder of the module.
func (m module) read(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("read %s: %w", m.Path, err)
	}
	for _, e := range entries {
		if e.IsDir() || !legal.MatchString(e.Name()) || slices.Contains(source, filepath.Ext(e.Name())) {
			continue
		}
		file := filepath.Join(dir, e.Name())
		name, err := filepath.Rel(m.Dir, file)
		if err != nil {
			return err
		}
		if m.files[filepath.ToSlash(name)], err = os.ReadFile(file); err != nil {
			return fmt.Errorf("read %s: %w", m.Path, err)
		}
	}
	if dir == m.Dir || !strings.HasPrefix(dir, m.Dir) {
		return nil
	}
	return m.read(filepath.Dir(dir))
}

// licences returns the SPDX ids of the module's licences. All of them must be known and permissive.
func (m module) licences() (ids []string, err error) {
	for _, name := range slices.Sorted(m.names()) {
		if words := demands(m.files[name]); words != "" {
			err = errors.Join(err, fmt.Errorf("%s %s: %s is not permissive (%q): do without the module", m.Path, m.Version,
				name, words))
			continue
		}
		if !isLicence.MatchString(filepath.Base(name)) {
			continue
		}
		found := classify(m.files[name])
		if len(found) == 0 {
			err = errors.Join(err, fmt.Errorf("%s %s: %s is not a permissive licence that is known: do without the module, "+
				"or have the licence reviewed and add it to internal/licences", m.Path, m.Version, name))
		}
		ids = append(ids, found...)
	}
	slices.Sort(ids)
	if ids = slices.Compact(ids); len(ids) == 0 && err == nil {
		err = fmt.Errorf("%s %s has no licence: do without it", m.Path, m.Version)
	}
	return ids, err
}

// A permissive licence is recognised by words that no other has.
type permissive struct {
	id    string
	words string
}

func known() []permissive {
	return []permissive{
		{"Apache-2.0", "apache license version 2.0"},
		{"Apache-2.0", "licensed under the apache license, version 2.0"},
		{"MIT-0", "mit no attribution"},
		{"MIT", "permission is hereby granted, free of charge, to any person obtaining a copy"},
		{"ISC", "permission to use, copy, modify, and/or distribute this software for any purpose"},
		{"BSD-3-Clause", "nor the names of its contributors may be used to endorse or promote"},
		{"BSD-2-Clause", "redistribution and use in source and binary forms"},
		{"Unlicense", "this is free and unencumbered software released into the public domain"},
	}
}

// refused are words of licences that ask for more than to be named.
func refused() []string {
	return []string{"general public license", "mozilla public license", "eclipse public license", "european union public",
		"common development and distribution", "server side public license", "business source license", "commons clause",
		"elastic license", "noncommercial", "non-commercial", "good, not evil", "advertising materials"}
}

var notWord = regexp.MustCompile(`[\s*#/"“”]+`)

func normal(text []byte) string { return notWord.ReplaceAllString(strings.ToLower(string(text)), " ") }

// demands returns the words in a text that are refused; "" if there are none.
func demands(text []byte) string {
	plain := strings.ReplaceAll(normal(text), "commercial or non-commercial", "") // Unlicense: for both
	for _, words := range refused() {
		if strings.Contains(plain, words) {
			return words
		}
	}
	return ""
}

// classify returns the SPDX ids of the licences in a text; none if one of them is not permissive.
func classify(text []byte) (ids []string) {
	if demands(text) != "" {
		return nil
	}
	plain := normal(text)
	for _, l := range known() {
		covered := l.id == "MIT" && slices.Contains(ids, "MIT-0") ||
			l.id == "BSD-2-Clause" && slices.Contains(ids, "BSD-3-Clause")
		if strings.Contains(plain, l.words) && !covered && !slices.Contains(ids, l.id) {
			ids = append(ids, l.id)
		}
	}
	return ids
}
