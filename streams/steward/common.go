package steward

import (
	"fmt"
	"strings"
	"time"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/incident"
)

// A common is what incidents of copies have in common, which may be their cause. The zero value is that of none.
type common struct {
	count    int
	prefix   string    // of their items, up to a slash
	worker   string    // that found them
	host     string    // of the worker
	modified time.Time // the hour in which the objects were modified
}

// add adds an incident.
func (c *common) add(i *pb.Incident) {
	host, _, _ := strings.Cut(i.GetWorker(), "/")
	prefix, hour := i.GetItem(), time.Time{}
	if m := i.GetObject().GetModified(); m != nil {
		hour = m.AsTime().Truncate(time.Hour)
	}
	if c.count++; c.count == 1 {
		c.prefix, c.worker, c.host, c.modified = prefix[:strings.LastIndexByte(prefix, '/')+1], i.GetWorker(), host, hour
		return
	}
	for !strings.HasPrefix(prefix, c.prefix) {
		c.prefix = c.prefix[:strings.LastIndexByte(c.prefix[:len(c.prefix)-1], '/')+1]
	}
	if c.worker != i.GetWorker() {
		c.worker = ""
	}
	if c.host != host {
		c.host = ""
	}
	if !c.modified.Equal(hour) {
		c.modified = time.Time{}
	}
}

// String returns the text that follows the number of incidents; empty if they have nothing in common.
func (c common) String() string {
	if c.count < 2 {
		return ""
	}
	text := ""
	if c.prefix != "" {
		text += fmt.Sprintf("; all are under the prefix %q", c.prefix)
	}
	switch {
	case c.worker != "":
		text += "; all were found by the worker " + c.worker
	case c.host != "":
		text += "; all were found on the host " + c.host
	}
	if !c.modified.IsZero() {
		text += "; all objects were modified in the hour from " + c.modified.UTC().Format(time.RFC3339)
	}
	return text
}

// common returns what the children of a parent have in common besides its subject.
func (t *table) common(about incident.Subject) (c common) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if all := t.children[about]; all != nil {
		for _, children := range [...]map[string]*pb.Incident{all.named, all.others} {
			for _, i := range children {
				c.add(i)
			}
		}
	}
	if about.Space == "" { // those of several spaces
		c.prefix = ""
	}
	if about.Store == "" { // those of one worker
		c.worker, c.host = "", ""
	}
	return c
}
