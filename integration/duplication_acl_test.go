package integration

import (
	"maps"
	"testing"

	"github.com/millrace/millrace/streams/storage/record"
)

// TestItemACLsAreNotCarried checks that the ACL of an item, which a client reports, stays in its Change: the Changes of
// the copy have none, also if the ACL changes.
func TestItemACLsAreNotCarried(t *testing.T) {
	t.Parallel()
	w := newCopyWorld(t, fileStore, fileStore)
	for i, acl := range []map[string]string{{"everyone": "r"}, {"everyone": ""}} {
		c := record.Content(w.at("1"), w.write("1", "one", named))
		c.Acl = acl
		command := w.reported(c)
		if got := w.run(command); i == 0 && got[0] != "C5 copied" || i == 1 && got[0] != "C2 in-sync" {
			t.Errorf("ended as %s", got)
		}
		if !maps.Equal(c.GetAcl(), acl) {
			t.Errorf("the client's Change has the ACL %v, want %v", c.GetAcl(), acl)
		}
	}
	if got := w.changed(); got != "2 ADD" {
		t.Errorf("changes: %s", got)
	}
	for _, c := range w.changes {
		if len(c.GetAcl()) > 0 {
			t.Errorf("the copy's Change has the ACL %v", c.GetAcl())
		}
	}
}
