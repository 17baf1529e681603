package config

import (
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/knadh/koanf/providers/confmap"
	"github.com/knadh/koanf/v2"

	"github.com/millrace/millrace/internal/nearest"
)

const envPrefix = "MILLRACE_"

// Sources are the layers of settings. Later fields override earlier ones.
type Sources struct {
	// File is the path of a YAML file; empty: none.
	File string
	// Env are environment variables in the form NAME=value; nil: those of the process. MILLRACE_A__B
	// sets a.b. Lists of values are separated by commas; lists of tables (accounts, lanes) are JSON.
	Env []string
	// Flags are settings of the command line, by path, such as "kafka.topic_prefix".
	Flags map[string]any
}

// Origins records where each setting came from.
type Origins struct{ byPath map[string]string }

// Of returns the origin of the setting at path: FILE:LINE, the name of a variable, "command line"
// or "default".
func (o *Origins) Of(path string) string {
	for path != "" {
		if origin, ok := o.byPath[path]; ok {
			return origin
		}
		// An entry of a list has the origin of the list, unless it has one of its own.
		i := strings.LastIndexAny(path, "[")
		if i < 0 || strings.Contains(path[i:], ".") {
			break
		}
		path = path[:i]
	}
	return "default"
}

// Load reads the settings of all layers. If there are faults, the error is of type Faults and holds
// all of them.
func Load(s Sources) (*Config, *Origins, error) {
	cfg, l, err := settings(s)
	if err != nil {
		return nil, nil, err
	}
	if len(l.faults) > 0 {
		return nil, nil, l.faults
	}
	return cfg, l.origins, nil
}

// Check is Load with additional validation: its error holds the faults of the settings and those
// that more returns. more gets the settings that could be read; sound reports whether accounts was
// read without a fault.
func Check(s Sources, more func(cfg *Config, sound bool) Faults) (*Config, error) {
	cfg, l, err := settings(s)
	if err != nil {
		return nil, err
	}
	sound := !slices.ContainsFunc(l.faults, func(f Fault) bool {
		return f.Key == "" || sameSetting("accounts", f.Key) || sameSetting("accounts", f.meant)
	})
	if faults := append(l.faults, more(cfg, sound)...); len(faults) > 0 {
		return nil, faults
	}
	return cfg, nil
}

// settings reads the settings of all layers, without those that have a fault. The faults are in the
// loader.
func settings(s Sources) (*Config, *loader, error) {
	l := &loader{koanf: koanf.New("."), origins: &Origins{map[string]string{}}}
	if err := l.layer(treeOf(reflect.ValueOf(Default())), decoder{}); err != nil {
		return nil, nil, err
	}
	if s.File != "" {
		data, err := os.ReadFile(s.File)
		if err != nil {
			return nil, nil, fmt.Errorf("read the configuration: %w", err)
		}
		if err := l.file(s.File, data); err != nil {
			return nil, nil, err
		}
	}
	env := s.Env
	if env == nil {
		env = os.Environ()
	}
	if err := l.env(env); err != nil {
		return nil, nil, err
	}
	if err := l.flags(s.Flags); err != nil {
		return nil, nil, err
	}
	cfg := new(Config)
	decoder{text: true}.table("", l.koanf.Raw(), reflect.ValueOf(cfg).Elem(), &l.faults)
	for i := range cfg.Accounts {
		for j, st := range cfg.Accounts[i].Stores {
			cfg.Accounts[i].Stores[j] = st.withDefaults()
		}
	}
	l.validate(cfg)
	return cfg, l, nil
}

type loader struct {
	koanf   *koanf.Koanf
	origins *Origins
	faults  Faults
}

// check records the faults of one layer, removes the faulty settings from values, and records the
// origin of the others.
func (l *loader) check(values map[string]any, d decoder) {
	d.set = func(path, origin string) {
		maps.DeleteFunc(l.origins.byPath, func(p, _ string) bool { return strings.HasPrefix(p, path+"[") })
		l.origins.byPath[path] = origin
	}
	d.table("", values, reflect.New(reflect.TypeFor[Config]()).Elem(), &l.faults)
}

func (l *loader) layer(values map[string]any, d decoder) error {
	if d.origin != nil {
		l.check(values, d)
	}
	if err := l.koanf.Load(confmap.Provider(values, ""), nil); err != nil {
		return fmt.Errorf("merge the configuration: %w", err)
	}
	return nil
}

// validate adds the faults that depend on several settings, except for settings that have a fault
// already.
func (l *loader) validate(cfg *Config) {
	var found Faults
	validate(cfg, func(key string, value any, reason string) {
		found.add(key, value, l.origins.Of(key), reason)
	})
	for _, f := range found {
		if !slices.ContainsFunc(l.faults, func(known Fault) bool {
			return sameSetting(known.Key, f.Key) || known.meant == f.Key
		}) {
			l.faults = append(l.faults, f)
		}
	}
}

// sameSetting reports whether two paths are equal, or one contains the other.
func sameSetting(a, b string) bool {
	if len(a) > len(b) {
		a, b = b, a
	}
	rest, ok := strings.CutPrefix(b, a)
	return ok && a != "" && (rest == "" || rest[0] == '.' || rest[0] == '[')
}

// file reads the settings of a YAML file.
func (l *loader) file(name string, data []byte) error {
	values, positions, f := parseYAML(data)
	if f != nil {
		f.Origin = name + f.Origin
		l.faults = append(l.faults, *f)
		return nil
	}
	before := len(l.faults)
	err := l.layer(values, decoder{origin: func(path string) string {
		if at, ok := positions[path]; ok {
			return name + ":" + strconv.Itoa(at.line)
		}
		return name
	}})
	slices.SortStableFunc(l.faults[before:], func(a, b Fault) int {
		return positions[a.Key].line - positions[b.Key].line
	})
	return err
}

// env reads the variables that are settings. Other variables with the prefix are ignored, unless
// they contain a double underscore or match a setting that is written with single ones.
func (l *loader) env(env []string) error {
	values := map[string]any{}
	names := map[string]string{} // by path
	for _, e := range slices.Sorted(slices.Values(env)) {
		name, text, _ := strings.Cut(e, "=")
		key, ours := strings.CutPrefix(name, envPrefix)
		if !ours {
			continue
		}
		path := strings.ReplaceAll(strings.ToLower(key), "__", ".")
		kind, ok := typeAt(path)
		switch {
		case !ok && !strings.Contains(path, "."):
			if meant := withSingleUnderscores(path); meant != "" {
				l.faults.add("", nil, name, "sets nothing; did you mean "+variable(meant)+"?")
			}
			continue
		case ok && isTable(kind):
			l.faults.add("", nil, name, "is a table of settings: set those, such as "+variable(path+"."+keyOf(kind.Field(0))))
			continue
		case !ok:
			reason := "sets nothing"
			if meant := nearest.Of(path, settingPaths()); meant != "" {
				reason += "; did you mean " + variable(meant) + "?"
			}
			l.faults.add("", nil, name, reason)
			continue
		}
		value, err := fromText(text, kind)
		if err != nil {
			l.faults.add(path, nil, name, "want "+wanted(kind)+": "+err.Error())
			continue
		}
		names[path] = name
		setPath(values, path, value)
	}
	return l.layer(values, decoder{text: true, origin: func(path string) string {
		for i := len(path); i > 0; i = strings.LastIndexAny(path[:i], ".[") {
			if name, ok := names[path[:i]]; ok {
				return name
			}
		}
		return envPrefix + "*"
	}})
}

func variable(path string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(path, ".", "__"))
}

// withSingleUnderscores returns the path of the setting that name spells with single underscores
// for dots; "" if there is none.
func withSingleUnderscores(name string) string {
	for _, leaf := range settingPaths() {
		if strings.ReplaceAll(leaf, ".", "_") == name {
			return leaf
		}
	}
	return ""
}

// fromText converts the text of a variable to the value that a file would have.
func fromText(text string, kind reflect.Type) (any, error) {
	if kind.Kind() != reflect.Slice {
		return text, nil
	}
	if kind.Elem().Kind() != reflect.Struct && !strings.HasPrefix(strings.TrimSpace(text), "[") {
		list := []any{}
		for part := range strings.SplitSeq(text, ",") {
			if part = strings.TrimSpace(part); part != "" {
				list = append(list, part)
			}
		}
		return list, nil
	}
	var list []any
	if err := yaml.Unmarshal([]byte(text), &list); err != nil { // JSON is YAML
		return nil, errNoList
	}
	return list, nil
}

func (l *loader) flags(flags map[string]any) error {
	values := map[string]any{}
	for path, v := range flags {
		setPath(values, path, v)
	}
	return l.layer(values, decoder{text: true, origin: func(string) string { return "command line" }})
}

// setPath sets the value at a dotted path.
func setPath(m map[string]any, path string, value any) {
	for {
		head, rest, deeper := strings.Cut(path, ".")
		if !deeper {
			m[head] = value
			return
		}
		next, ok := m[head].(map[string]any)
		if !ok {
			next = map[string]any{}
			m[head] = next
		}
		m, path = next, rest
	}
}
