package config

import (
	"encoding/hex"
	"path/filepath"
)

const layoutPlain = "plain"

// validateLayout checks the settings that depend on the layout of a store of driver file.
func validateLayout(at string, s Store, fault report) {
	if s.Layout != layoutPlain {
		for _, setting := range [...][2]string{{"space", s.Space}, {"expect", s.Expect}, {"expect_sha256", s.ExpectSHA256}} {
			if key, value := setting[0], setting[1]; value != "" {
				fault(at+"."+key, value, "is for layout plain only")
			}
		}
		return
	}
	if s.Driver != "file" {
		fault(at+".layout", s.Layout, "is for driver file only")
		return
	}
	switch {
	case s.Expect == "":
		fault(at+".expect", nil, "is missing: a plain tree has no marker; name a file or directory in it that identifies it")
	case !filepath.IsLocal(s.Expect) || filepath.Clean(s.Expect) == ".":
		fault(at+".expect", s.Expect, "want a path below root")
	}
	if b, err := hex.DecodeString(s.ExpectSHA256); err != nil || len(b) != 0 && len(b) != 32 {
		fault(at+".expect_sha256", s.ExpectSHA256, "want a sha256 in hex: 64 digits")
	}
	if s.Repair != "off" {
		fault(at+".repair", s.Repair, "want off: a plain tree is only read")
	}
}
