package policy

import (
	"fmt"
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

// Excluded returns the reason why the rules exclude an item from being copied; empty if they do not.
func (r Rules) Excluded(item string, c Content) string {
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
