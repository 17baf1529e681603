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
	"github.com/knadh/koanf/providers/rawbytes"
	"github.com/knadh/koanf/v2"

	"github.com/millrace/millrace/internal/nearest"
)

const envPrefix = "MILLRACE_"

// Sources are where settings come from. Later fields win.
type Sources struct {
	// File is the path of a YAML file; empty: none.
	File string
	// Env are variables, as NAME=value; nil: those of the process. MILLRACE_A__B sets a.b. Lists are separated by
	// commas, lists of settings (accounts, lanes) are JSON.
	Env []string
	// Flags are settings of the command line, by path: "kafka.topic_prefix".
	Flags map[string]any
}

// Origins say where each setting came from, by its path.
type Origins struct{ of map[string]string }

// Of returns where the setting at path came from: FILE:LINE, a variable, the command line, or default.
func (o *Origins) Of(path string) string {
	for path != "" {
		if origin, ok := o.of[path]; ok {
			return origin
		}
		// What stands in a list came with the list, unless it has an origin of its own.
		i := strings.LastIndexAny(path, "[")
		if i < 0 || strings.Contains(path[i:], ".") {
			break
		}
		path = path[:i]
	}
	return "default"
}

// Load reads the settings. What is wrong with them comes back as one error of type Faults.
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

// Check is Load for a person who wants to see every fault at once: those of the settings, and those that more returns.
// more is called with the settings that could be read; sound reports whether all of accounts could be.
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

// settings reads the settings that are not faulty. The faults are the loader's.
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
		if err := l.koanf.Load(rawbytes.Provider(data), fileParser{l, s.File}); err != nil {
			return nil, nil, fmt.Errorf("read the configuration %s: %w", s.File, err)
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

// check finds the faults of one layer, takes out what is faulty, and notes where the rest came from.
func (l *loader) check(values map[string]any, d decoder) {
	d.set = func(path, origin string) {
		maps.DeleteFunc(l.origins.of, func(p, _ string) bool { return strings.HasPrefix(p, path+"[") })
		l.origins.of[path] = origin
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

// validate adds the faults that only show in the whole, but for settings that have one already.
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

// sameSetting reports whether one of two paths is, or holds, the other.
func sameSetting(a, b string) bool {
	if len(a) > len(b) {
		a, b = b, a
	}
	rest, ok := strings.CutPrefix(b, a)
	return ok && a != "" && (rest == "" || rest[0] == '.' || rest[0] == '[')
}

// fileParser reads YAML for koanf, checked.
type fileParser struct {
	loader *loader
	name   string
}

// Unmarshal reads the good part of a file; the faults go to the loader.
func (p fileParser) Unmarshal(data []byte) (map[string]any, error) {
	values, lines, f := parseYAML(data)
	if f != nil {
		f.Origin = p.name + f.Origin
		p.loader.faults = append(p.loader.faults, *f)
		return map[string]any{}, nil
	}
	before := len(p.loader.faults)
	p.loader.check(values, decoder{origin: func(path string) string {
		if line, ok := lines[path]; ok {
			return p.name + ":" + strconv.Itoa(line)
		}
		return p.name
	}})
	slices.SortStableFunc(p.loader.faults[before:], func(a, b Fault) int { return lines[a.Key] - lines[b.Key] })
	return values, nil
}

// Marshal is not used: Print writes what is in force.
func (p fileParser) Marshal(map[string]any) ([]byte, error) {
	return nil, fmt.Errorf("write %s: %w", p.name, os.ErrInvalid)
}

// env reads the variables that are settings. Those without a double underscore are
// none, unless they look like one that lacks it.
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
			if meant := withoutDots(path); meant != "" {
				l.faults.add("", nil, name, "sets nothing; did you mean "+variable(meant)+"?")
			}
			continue
		case ok && isTable(kind):
			l.faults.add("", nil, name, "is a table of settings: set those, such as "+variable(path+"."+keyOf(kind.Field(0))))
			continue
		case !ok:
			reason := "sets nothing"
			if meant := nearest.Of(path, leaves()); meant != "" {
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
		nest(values, path, value)
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

// withoutDots finds the setting whose path is name with underscores for dots.
func withoutDots(name string) string {
	for _, leaf := range leaves() {
		if strings.ReplaceAll(leaf, ".", "_") == name {
			return leaf
		}
	}
	return ""
}

// fromText turns a variable's text into what a file would say.
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
		nest(values, path, v)
	}
	return l.layer(values, decoder{text: true, origin: func(string) string { return "command line" }})
}

// nest puts value at a dotted path.
func nest(m map[string]any, path string, value any) {
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
