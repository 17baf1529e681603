package policy_test

import (
	"testing"

	"github.com/millrace/millrace/streams/policy"
)

type weakening struct{ old, next, want string }

// Each way in which a document protects copies less than the one before, and changes that do not.
func TestWeakens(t *testing.T) {
	t.Parallel()
	const (
		to2   = "defaults: {copy: [{from: 1, to: 2}]}\n"
		to23  = "defaults: {copy: [{from: 1, to: [2, 3]}]}\n"
		chain = "defaults: {copy: [{from: 1, to: 2}, {from: 2, to: 3}]}\n"
		mail3 = "spaces: {mail: {copy: [{from: 1, to: 3}]}}\n"
	)
	rows := map[string]weakening{
		"the first document":         {"{}", to23, ""},
		"nothing is left":            {to23, "{}", "all other spaces: no copies from 1 to 2"},
		"a pair is dropped":          {to23, to2, "all other spaces: no copies from 1 to 3"},
		"another source":             {to23, chain, "all other spaces: no copies from 1 to 3"},
		"a pair is added":            {to2, to23, ""},
		"a space is ignored":         {to23, to23 + "ignore: [mail]", "space mail: no copies from 1 to 2"},
		"a space is ignored no more": {to23 + "ignore: [mail]", to23, ""},
		"a space to fewer stores":    {to23, to23 + mail3, "space mail: no copies from 1 to 2"},
		"a space to more stores":     {to23 + mail3, to23, ""},
		"rules of an ignored space":  {to23 + "ignore: [mail]\nspaces: {mail: {deletes: keep}}", to23, ""},
		"rules of all spaces": {"defaults: {copy: [{from: 1, to: 2}], deletes: keep}", to2,
			"all other spaces: deletes: propagate instead of keep"},
	}
	const (
		deletes  = "brake: {deletes: {maxCount: 5}}"
		rewrites = "brake: {rewrites: {maxShare: 5%}}"
		hold     = "hold: [{until: 2090-01-01}]"
		list     = "excludeLists: [{url: 'https://lists.example/a', of: ids, sha256: aa}]"
		moved    = "excludeLists: [{url: 'https://mirror.example/a', of: ids, sha256: aa}]"
		longer   = "excludeLists: [{url: 'https://lists.example/a', of: ids, sha256: bb}]"
	)
	for name, of := range map[string]weakening{ // the options of a space
		"the same":               {"deletes: keep", "deletes: keep", ""},
		"keep to approve":        {"deletes: keep", "deletes: approve", "deletes: approve instead of keep"},
		"keep to the default":    {"deletes: keep", "", "deletes: propagate instead of keep"},
		"approve to propagate":   {"deletes: approve", "", "deletes: propagate instead of approve"},
		"propagate to approve":   {"", "deletes: approve", ""},
		"approve to keep":        {"deletes: approve", "deletes: keep", ""},
		"a higher limit":         {deletes, "brake: {deletes: {maxCount: 6}}", "another limit of deletes"},
		"a lower limit":          {deletes, "brake: {deletes: {maxCount: 4}}", ""},
		"the default limit":      {deletes, "", "another limit of deletes"},
		"no default limit":       {"", deletes, "another limit of deletes"},
		"a larger share":         {rewrites, "brake: {rewrites: {maxShare: 6%}}", "another limit of rewrites"},
		"a smaller share":        {rewrites, "brake: {rewrites: {maxShare: 4%}}", ""},
		"a hold is removed":      {hold, "", `no hold of "" until 2090-01-01`},
		"a hold is shortened":    {hold, "hold: [{until: 2089-01-01}]", `no hold of "" until 2090-01-01`},
		"a hold is narrowed":     {hold, "hold: [{prefix: a, until: 2090-01-01}]", `no hold of "" until 2090-01-01`},
		"a hold is extended":     {"hold: [{prefix: a, until: 2090-01-01}]", "hold: [{until: 2091-01-01}]", ""},
		"a hold is added":        {"", hold, ""},
		"an exclusion is added":  {"exclude: [a]", "exclude: [a, b]", `exclude "b"`},
		"an exclusion is lifted": {"exclude: [a, b]", "exclude: [b]", ""},
		"a list is added":        {"", list, "excludeLists https://lists.example/a"},
		"a list is replaced":     {list, longer, "excludeLists https://lists.example/a"},
		"a list is moved":        {list, moved, ""},
		"a list is removed":      {list, "", ""},
		"a maximum":              {"", "maxSize: 5", "a smaller maxSize"},
		"a smaller maximum":      {"maxSize: 5", "maxSize: 4", "a smaller maxSize"},
		"a larger maximum":       {"maxSize: 5", "maxSize: 6", ""},
		"no maximum":             {"maxSize: 5", "", ""},
		"a larger minimum":       {"minSize: 5", "minSize: 6", "a larger minSize"},
		"a smaller minimum":      {"minSize: 5", "minSize: 4", ""},
		"a later start":          {"start: 2026-01-01", "start: 2026-01-02", "a later start"},
		"no start":               {"start: 2026-01-01", "", ""},
		"a lower priority":       {"", "priority: low", ""},
	} {
		if of.want != "" {
			of.want = "space mail: " + of.want
		}
		mail := to23 + "spaces: {mail: {"
		rows[name] = weakening{mail + of.old + "}}", mail + of.next + "}}", of.want}
	}
	for name, tt := range rows {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			old, err := policy.Parse([]byte(tt.old))
			if err != nil {
				t.Fatal(err)
			}
			next, err := policy.Parse([]byte(tt.next))
			if err != nil {
				t.Fatal(err)
			}
			if got := old.Weakens(next); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}
