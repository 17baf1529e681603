package filter

import (
	"slices"
	"strings"
	"testing"
)

func TestFilter(t *testing.T) {
	spaces := []string{"acme/1/photos", "acme/1/scratch-1", "acme/2/photos", "bell/1/photos", "bell/1/*"}
	for name, tt := range map[string]struct {
		include, exclude []string
		want             []string
	}{
		"none":                     {nil, nil, spaces},
		"an account":               {[]string{"acme"}, nil, spaces[:3]},
		"with a slash before":      {[]string{"/acme"}, nil, spaces[:3]},
		"a store":                  {[]string{"acme/1"}, nil, spaces[:2]},
		"a space":                  {[]string{"/acme/2/photos"}, nil, spaces[2:3]},
		"a space in all stores":    {[]string{"*/*/photos"}, nil, []string{spaces[0], spaces[2], spaces[3]}},
		"two":                      {[]string{"acme/2", "bell"}, nil, spaces[2:]},
		"excluded":                 {nil, []string{"*/*/scratch-?"}, []string{spaces[0], spaces[2], spaces[3], spaces[4]}},
		"included and excluded":    {[]string{"acme"}, []string{"acme/1"}, spaces[2:3]},
		"of another account":       {[]string{"none"}, nil, nil},
		"a name that is a pattern": {[]string{`bell/1/\*`}, nil, spaces[4:]},
	} {
		t.Run(name, func(t *testing.T) {
			f, err := New(tt.include, tt.exclude)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, s := range spaces {
				p := strings.Split(s, "/")
				if f.Selects(p[0], p[1], p[2]) {
					got = append(got, s)
				}
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("selected %q, want %q", got, tt.want)
			}
		})
	}
}

func TestFaultyPatterns(t *testing.T) {
	for text, says := range map[string]string{
		"": "an empty part", "/": "an empty part", "acme//photos": "an empty part", "acme/1/": "an empty part",
		"acme/[": "is not a pattern", "acme/1/photos/[": "is not a pattern", "acme/1/photos/": "an empty part",
	} {
		err := CheckItems(text)
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: got %v, want %q", text, err, says)
		}
		if _, err := New(nil, []string{text}); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
}

func TestItems(t *testing.T) {
	if err := Check("acme/1/photos/a"); err == nil || !strings.Contains(err.Error(), "more parts") {
		t.Errorf("a pattern of items as one of spaces: %v", err)
	}
	if err := CheckStores("acme/1/photos"); err == nil || !strings.Contains(err.Error(), "more parts") {
		t.Errorf("a pattern of spaces as one of stores: %v", err)
	}
	items := []string{"a.tif", "a.tmp", "2026/b.tif", "2026/b.tmp"}
	for name, tt := range map[string]struct {
		include, exclude []string
		space            string
		want             []string // nil: the space is not selected
		all              bool     // Items returns nil
	}{
		"no pattern": {nil, nil, "photos", items, true},
		"the space":  {[]string{"acme/1/photos"}, nil, "photos", items, true},
		"excluded items": {nil, []string{"*/*/photos/*.tmp"}, "photos",
			[]string{"a.tif", "2026/b.tif", "2026/b.tmp"}, false},
		"of all folders":   {nil, []string{"acme/*/*/**/*.tmp"}, "photos", []string{"a.tif", "2026/b.tif"}, false},
		"of another space": {nil, []string{"acme/1/maps/**"}, "photos", items, true},
		"only a folder": {[]string{"acme/1/photos/2026/**"}, nil, "photos",
			[]string{"2026/b.tif", "2026/b.tmp"}, false},
		"a folder, and the space": {[]string{"acme/1/photos/2026/**", "acme/1"}, nil, "photos", items, true},
		"another space":           {[]string{"acme/1/photos/2026/**"}, nil, "maps", nil, false},
		"a folder without some": {[]string{"acme/1/photos/2026/**"}, []string{"acme/1/photos/2026/*.tmp"}, "photos",
			[]string{"2026/b.tif"}, false},
		"the space is excluded": {[]string{"acme/1/photos/2026/**"}, []string{"acme/1/photos"}, "photos", nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			f, err := New(tt.include, tt.exclude)
			if err != nil {
				t.Fatal(err)
			}
			if got := f.Selects("acme", "1", tt.space); got != (tt.want != nil) {
				t.Fatalf("the space is selected: %t", got)
			}
			if tt.want == nil {
				return
			}
			selects := f.Items("acme", "1", tt.space)
			if (selects == nil) != tt.all {
				t.Fatalf("all items are selected: %t, want %t", selects == nil, tt.all)
			}
			var got []string
			for _, item := range items {
				if tt.all || selects(item) {
					got = append(got, item)
				}
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("selected %q, want %q", got, tt.want)
			}
		})
	}
}
