package config

import (
	"errors"
	"strings"
	"testing"
)

func TestValidateLayout(t *testing.T) {
	for text, want := range map[string]string{ // settings of a store, and the fault after its origin; empty: no fault
		"":                                 "",
		"layout: millrace":                 "",
		"layout: plain, expect: bagit.txt": "",
		"layout: plain, expect: a/b, space: archive, expect_sha256: " + strings.Repeat("0A", 32): "",
		"layout: tree":                                  ".layout",
		"layout: plain":                                 ".expect: is missing: a plain tree has no marker",
		"layout: plain, expect: ../x":                   ".expect = ../x: want a path below root",
		"layout: plain, expect: /x":                     ".expect = /x: want a path below root",
		"layout: plain, expect: .":                      ".expect = .: want a path below root",
		"layout: plain, expect: x, expect_sha256: 0a":   ".expect_sha256 = 0a: want a sha256 in hex",
		"layout: plain, expect: x, repair: auto":        ".repair = auto: want off",
		"layout: plain, expect: x, repair: off":         "",
		"expect: x":                                     ".expect = x: is for layout plain only",
		"space: x":                                      ".space = x: is for layout plain only",
		"requests: {at_once: -1}":                       ".requests.at_once = -1: want 0, for no limit, or more",
		"read: sampled, sample_percent: 101":            ".sample_percent = 101: want 1 to 100, with read: sampled",
		"read: sampled":                                 "",
		"sample_percent: 5":                             ".sample_percent = 5: want 1 to 100, with read: sampled",
		"requests: {per_second: -1}":                    ".requests.per_second = -1: want 0, for no limit, or more",
		"requests: {at_once: 4, bytes_per_second: 1GB}": "",
	} {
		t.Run(text, func(t *testing.T) {
			if text != "" {
				text = ", " + text
			}
			cfg, _, err := load(t, "accounts: [{id: a, stores: [{id: \"1\", root: /r"+text+"}]}]\n")
			if want == "" {
				must(t, err)
				s := cfg.Accounts[0].Stores[0]
				if plain := s.Layout == layoutPlain; plain != (s.Repair == "off") || plain == (s.Layout == "millrace") {
					t.Errorf("got layout %q, repair %q", s.Layout, s.Repair)
				}
				return
			}
			var faults Faults
			want = "accounts[0].stores[0]" + want
			if !errors.As(err, &faults) || len(faults) != 1 || !strings.Contains(faults[0].String(), want) {
				t.Errorf("got %v, want %s", err, want)
			}
		})
	}
}
