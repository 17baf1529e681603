package app

import (
	"maps"
	"testing"

	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/digest"
)

// A content that was only claimed counts when a check has read bytes that agree with it.
func TestProvenContent(t *testing.T) {
	a, b, s := digest.Set{"md5": "a"}, digest.Set{"md5": "b"}, digest.Set{"md5": "a", "sha256": "s"}
	content := func(verified bool, d digest.Set) []read.Content {
		return []read.Content{{Digests: d, Verified: verified}}
	}
	for name, tt := range map[string]struct {
		like             digest.Set
		recorded, passed []read.Content
		want             digest.Set
	}{
		"verified":                  {a, content(true, s), nil, s},
		"another content":           {b, content(true, s), nil, nil},
		"claimed":                   {a, content(false, a), nil, nil},
		"claimed and checked":       {a, content(false, a), content(true, s), s},
		"another one was checked":   {a, content(false, a), content(true, b), nil},
		"checked, and not recorded": {a, nil, content(true, s), nil},
		"no digest in common":       {digest.Set{"sha512": "x"}, content(true, s), nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			if got := provenContent(tt.like, tt.recorded, tt.passed); !maps.Equal(got, tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}
