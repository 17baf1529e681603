package app

import (
	"testing"
	"time"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/storage"
)

func TestRecordOfSpace(t *testing.T) {
	hour := func(h int) *time.Time { return knownTime(time.Date(2026, 9, 1, h, 0, 0, 0, time.UTC)) }
	for name, tt := range map[string]struct {
		summary read.SpaceSummary
		want    string
	}{
		"nothing":                  {read.SpaceSummary{}, spaceNone},
		"created":                  {read.SpaceSummary{First: hour(1), Created: hour(1)}, SpaceEmpty},
		"made with its first item": {read.SpaceSummary{First: hour(1), Items: 1}, SpaceLive},
		"emptied":                  {read.SpaceSummary{First: hour(1)}, SpaceEmpty},
		"deleted":                  {read.SpaceSummary{First: hour(1), Created: hour(1), Deleted: hour(2)}, SpaceDeleted},
		"created since":            {read.SpaceSummary{First: hour(1), Created: hour(3), Deleted: hour(2)}, SpaceEmpty},
		"declared gone": {read.SpaceSummary{First: hour(1), Created: hour(1), Items: 2,
			Gone: hour(2)}, SpaceGone},
		"declared gone, created since": {read.SpaceSummary{First: hour(1), Created: hour(3), Items: 2,
			Gone: hour(2)}, SpaceLive},
	} {
		if got := recordOf(tt.summary); got != tt.want {
			t.Errorf("%s: got %s, want %s", name, got, tt.want)
		}
	}
}

func TestNotCopied(t *testing.T) {
	pairs := policy.Rules{Pairs: []policy.Pair{{Source: "1", Destination: "2"}}}
	for name, tt := range map[string]struct {
		info SpaceInfo
		want string
	}{
		"a source":      {SpaceInfo{Scope: policy.ScopeOwn, Rules: pairs, CopiedTo: []string{"2"}}, ""},
		"a destination": {SpaceInfo{Scope: policy.ScopeDefault, Rules: pairs, CopyOf: []string{"1"}}, ""},
		"another store": {SpaceInfo{Scope: policy.ScopeOwn, Rules: pairs}, "no pair of the policy has the store"},
		"no policy":     {SpaceInfo{}, "the account has no policy in force"},
		"no default": {SpaceInfo{Scope: policy.ScopeDefault},
			"the policy has no pairs for the space, and no default"},
		"ignored":  {SpaceInfo{Scope: policy.ScopeIgnored}, "the policy ignores the space"},
		"reserved": {SpaceInfo{Scope: policy.ScopeReserved}, "spaces whose name begins with x- are not copied"},
	} {
		if got := tt.info.notCopied(); got != tt.want {
			t.Errorf("%s: got %q, want %q", name, got, tt.want)
		}
	}
}

// A space is absent only in a store whose marker can be read.
func TestSpaceState(t *testing.T) {
	s := newSite(t)
	s.cfg.HTTP.Listen = ""
	a := s.run(schemas.RoleChecker)
	st, err := a.stores.configured(StoreName{"acme", "2"})
	must(t, err)
	about := storage.Space{Name: "there", Properties: map[string]string{"of": "ann"}}
	must(t, st.CreateSpace(t.Context(), about))
	for name, tt := range map[string]struct {
		of    schemas.Copy
		state string
	}{
		"exists":                     {schemas.Copy{Account: "acme", Store: "2", Space: "there"}, SpaceExists},
		"absent":                     {schemas.Copy{Account: "acme", Store: "2", Space: "photos"}, SpaceAbsent},
		"a store without its marker": {schemas.Copy{Account: "acme", Store: "3", Space: "photos"}, SpaceUnknown},
		"no such store":              {schemas.Copy{Account: "acme", Store: "9", Space: "photos"}, SpaceUnknown},
	} {
		state, space, err := a.stores.spaceState(t.Context(), tt.of)
		if state != tt.state || (err != nil) != (tt.state == SpaceUnknown) ||
			tt.state == SpaceExists && space.Properties["of"] != "ann" {
			t.Errorf("%s: got %s, %+v, %v, want %s", name, state, space, err, tt.state)
		}
	}
}
