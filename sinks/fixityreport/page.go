package fixityreport

import (
	_ "embed" // the template
	"fmt"
	"html/template"
	"io"

	"github.com/millrace/millrace/sinks/clickhouse/read"
)

// pageFindings is the number of findings of a round that a page lists.
const pageFindings = 1000

//go:embed page.html
var pageText string

var page = template.Must(template.New("page").Parse(pageText))

// A pageRound is a round on a page.
type pageRound struct {
	Round
	Share     string
	Detection string // empty: all bytes are read
	Findings  []pageFinding
	More      int64 // findings that are not listed
}

// A pageFinding is a finding on a page.
type pageFinding struct {
	read.RoundCheck
	Words                     string
	Content, Stored, Manifest string
}

// writeHTML writes a page that can be printed. It holds the findings in memory.
func writeHTML(w io.Writer, rounds []Round) error {
	var data struct {
		Rounds  []pageRound
		Sampled bool // there is a Detection
	}
	for _, r := range rounds {
		p := pageRound{Round: r, Share: "unknown", Detection: DetectionText(r.Detections())}
		if share, ok := r.Coverage(); ok {
			p.Share = ShareText(share)
		}
		err := r.findings(func(c read.RoundCheck) error {
			if len(p.Findings) == pageFindings {
				p.More++
				return nil
			}
			p.Findings = append(p.Findings,
				pageFinding{c, details(c), digests(c.Content), digests(c.Stored), digests(c.Manifest)})
			return nil
		})
		if err != nil {
			return err
		}
		data.Rounds, data.Sampled = append(data.Rounds, p), data.Sampled || p.Detection != ""
	}
	if err := page.Execute(w, data); err != nil {
		return fmt.Errorf("write the page: %w", err)
	}
	return nil
}
