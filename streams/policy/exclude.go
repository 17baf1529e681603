package policy

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"time"

	"github.com/bmatcuk/doublestar/v4"

	"github.com/millrace/millrace/internal/bytesize"
)

// A Content is what decides whether an item is excluded.
type Content struct {
	Size     int64 // bytes; negative: unknown
	Modified time.Time
	Digests  map[string]string // hex, by algorithm
}

// Excluded returns the reason why the rules exclude an item from being copied; empty if they do not. lists are those of
// ExcludeLists. certain is false if digests that c lacks can exclude the item: MD5 and SHA-256 are always enough.
func (r Rules) Excluded(item string, c Content, lists []*List) (reason string, certain bool) {
	if reason := r.excluded(item, c); reason != "" {
		return reason, true
	}
	certain = true
	for _, l := range lists {
		listed, ok := l.excludes(item, c)
		if listed {
			return "excludeLists " + l.ref.Name(), true
		}
		certain = certain && ok
	}
	return "", certain
}

func (r Rules) excluded(item string, c Content) string {
	glob := slices.IndexFunc(r.Exclude, func(glob string) bool { return doublestar.MatchUnvalidated(glob, item) })
	switch {
	case glob >= 0:
		return fmt.Sprintf("exclude %q", r.Exclude[glob])
	case r.MaxSize > 0 && c.Size > r.MaxSize:
		return fmt.Sprintf("%d bytes are more than maxSize %s", c.Size, bytesize.Format(r.MaxSize))
	case c.Size >= 0 && c.Size < r.MinSize:
		return fmt.Sprintf("%d bytes are less than minSize %s", c.Size, bytesize.Format(r.MinSize))
	case c.Modified.Before(r.Start):
		return fmt.Sprintf("the content of %s is older than start %s",
			c.Modified.UTC().Format(time.RFC3339), r.Start.Format(time.RFC3339))
	}
	return ""
}

// Name returns the URL of the list for messages: without the query, which may have a key.
func (l ExcludeList) Name() string {
	u, err := url.Parse(l.URL)
	if err != nil {
		return "with a malformed URL"
	}
	u.RawQuery, u.User = "", nil
	return u.String()
}

// ExcludeLists returns all exclusion lists of the document.
func (d Document) ExcludeLists() []ExcludeList {
	all := slices.Clone(d.defaults().ExcludeLists)
	for _, space := range slices.Sorted(maps.Keys(d.Options)) {
		for _, l := range d.Options[space].ExcludeLists {
			if !slices.Contains(all, l) {
				all = append(all, l)
			}
		}
	}
	return all
}
