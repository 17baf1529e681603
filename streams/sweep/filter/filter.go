// Package filter selects spaces and their items by patterns.
package filter

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/bmatcuk/doublestar/v4"
)

// A Filter selects spaces, and items in them. The zero value selects all.
type Filter struct{ include, exclude []pattern }

// A pattern has an account, a store and a space, each as a pattern of path.Match. Those that are missing match all.
// items is a pattern of doublestar.Match; empty: it matches all items.
type pattern struct {
	space []string
	items string
}

// Check checks a pattern of spaces, of the form ACCOUNT[/STORE[/SPACE]], with or without a slash before it.
func Check(text string) error {
	p, err := parsePattern(text)
	if err == nil && p.items != "" {
		err = fmt.Errorf("%q has more parts than ACCOUNT/STORE/SPACE", text)
	}
	return err
}

// CheckStores checks a pattern of stores, of the form ACCOUNT[/STORE].
func CheckStores(text string) error {
	p, err := parsePattern(text)
	if err == nil && len(p.space) > 2 {
		err = fmt.Errorf("%q has more parts than ACCOUNT/STORE", text)
	}
	return err
}

// CheckItems checks a pattern of spaces, or of items in them: ACCOUNT/STORE/SPACE/ITEM.
func CheckItems(text string) error {
	_, err := parsePattern(text)
	return err
}

func parsePattern(text string) (p pattern, err error) {
	parts := strings.SplitN(strings.TrimPrefix(text, "/"), "/", 4)
	if slices.Contains(parts, "") {
		return p, fmt.Errorf("%q has an empty part: want ACCOUNT[/STORE[/SPACE[/ITEM]]], of names or patterns such as *",
			text)
	}
	p.space = parts[:min(len(parts), 3)]
	for _, part := range p.space {
		if _, err := path.Match(part, ""); err != nil {
			return p, fmt.Errorf("%q: %q is not a pattern: %w", text, part, err)
		}
	}
	if len(parts) == 4 {
		if p.items = parts[3]; !doublestar.ValidatePattern(p.items) {
			return p, fmt.Errorf("%q: %q is not a pattern", text, p.items)
		}
	}
	return p, nil
}

// New returns the filter that selects what one of include matches, or all if there is none, and none of exclude.
func New(include, exclude []string) (f Filter, err error) {
	for _, list := range []struct {
		texts []string
		to    *[]pattern
	}{{include, &f.include}, {exclude, &f.exclude}} {
		for _, text := range list.texts {
			p, err := parsePattern(text)
			if err != nil {
				return Filter{}, err
			}
			*list.to = append(*list.to, p)
		}
	}
	return f, nil
}

// Selects reports whether items of a space in a store are selected.
func (f Filter) Selects(account, store, space string) bool {
	matches := func(p pattern) bool { return p.matches(account, store, space) }
	return (len(f.include) == 0 || slices.ContainsFunc(f.include, matches)) &&
		!slices.ContainsFunc(f.exclude, func(p pattern) bool { return p.items == "" && matches(p) })
}

// Items returns what reports whether an item of a selected space is selected; nil: all items are.
func (f Filter) Items(account, store, space string) func(item string) bool {
	of := func(all []pattern) (globs []string, whole bool) {
		for _, p := range all {
			if p.matches(account, store, space) {
				globs, whole = append(globs, p.items), whole || p.items == ""
			}
		}
		return globs, whole
	}
	only, whole := of(f.include)
	except, _ := of(f.exclude)
	if whole {
		only = nil
	}
	if len(only) == 0 && len(except) == 0 {
		return nil
	}
	return func(item string) bool {
		matches := func(glob string) bool { return doublestar.MatchUnvalidated(glob, item) }
		return (len(only) == 0 || slices.ContainsFunc(only, matches)) && !slices.ContainsFunc(except, matches)
	}
}

// matches reports whether a pattern matches a space.
func (p pattern) matches(names ...string) bool {
	for i, part := range p.space {
		if ok, _ := path.Match(part, names[i]); !ok { // parsePattern has checked it
			return false
		}
	}
	return true
}
