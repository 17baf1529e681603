package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/sinks/clickhouse/verify"
)

// The number of entries that the text output lists for one finding.
const (
	maxRanges = 20
	maxCopies = 50
)

// writeTables writes a table of the verifications, and the details of each.
func writeTables(b *strings.Builder, verifications []*verify.TableReport) {
	tw := tabwriter.NewWriter(b, 2, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "TOPIC\tTABLE\tRECORDS\tMESSAGES\tROWS\tMISSING\tDOUBLED\tEXTRA\tALTERED\tDEAD\tPENDING\t")
	for _, p := range verifications {
		fmt.Fprintf(tw, "%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t\n", p.Topic, p.Table, p.Records, p.Messages, p.Rows,
			p.Missing.Messages, p.Doubled.Messages, p.Extra.Messages, p.Altered.Messages,
			p.Dead.Messages, p.Pending.Messages)
	}
	tw.Flush() // into memory
	for _, p := range verifications {
		writeDiscrepancy(b, p, "no row", p.Missing)
		writeDiscrepancy(b, p, "several rows in the view", p.Doubled)
		writeDiscrepancy(b, p, "a row, and no message in Kafka", p.Extra)
		writeDiscrepancy(b, p, "a row that differs from what was stored, or from its record in Kafka", p.Altered)
		writeDiscrepancy(b, p, "no row, but a dead letter (millrace dead list --role sink)", p.Dead)
		writeDiscrepancy(b, p, "no row yet: not committed by the sink", p.Pending)
		writeNotCompared(b, p)
	}
}

func writeDiscrepancy(b *strings.Builder, p *verify.TableReport, what string, d verify.Discrepancy) {
	if d.Messages == 0 {
		return
	}
	fmt.Fprintf(b, "%s, %s: %s: %d\n", p.Topic, p.Table, what, d.Messages)
	for i, r := range d.Ranges {
		if i == maxRanges {
			fmt.Fprintf(b, "  and %d more ranges\n", len(d.Ranges)-i+d.MoreRanges)
			break
		}
		fmt.Fprintf(b, "  partition %d, offsets %d to %d (incarnation %08x)\n", r.Partition, r.First, r.Last, r.Incarnation)
	}
	for i, x := range d.Examples {
		if x.ID != "" && i < 3 {
			fmt.Fprintf(b, "  such as %s at %d@%d\n", x.ID, x.Partition, x.Offset)
		}
	}
}

// writeNotCompared writes the rows that were not compared, and the reasons.
func writeNotCompared(b *strings.Builder, p *verify.TableReport) {
	for _, t := range p.Trimmed {
		fmt.Fprintf(b, "%s, %s: retention has removed partition %d below offset %d; %d rows from there were not compared\n",
			p.Topic, p.Table, t.Partition, t.Before, t.Rows)
		if t.Unread > 0 {
			fmt.Fprintf(b, "  the sink had not stored %d of these offsets: their records are lost\n", t.Unread)
		}
	}
	for _, g := range []struct {
		rows int64
		why  string
	}{
		{p.Uncompared.Compaction, "of records that were compacted"},
		{p.Uncompared.Incarnations, "of a topic of the same name that was deleted"},
		{p.Uncompared.Later, "of records after the end of the comparison"},
	} {
		if g.rows > 0 {
			fmt.Fprintf(b, "%s, %s: %d rows %s were not compared\n", p.Topic, p.Table, g.rows, g.why)
		}
	}
}

func writeManifest(b *strings.Builder, m *app.ManifestReport) {
	fmt.Fprintf(b, "%d copies compared with the state that the logs give\n", m.Copies)
	writeCopies(b, "differ, but have records in flight", m.InFlight)
	writeCopies(b, "differ", m.Differ)
	if m.Stopped {
		b.WriteString("the comparison stopped at this number: there may be more\n")
	}
}

func writeCopies(b io.Writer, what string, copies []verify.CopyDifference) {
	if len(copies) == 0 {
		return
	}
	fmt.Fprintf(b, "%d copies %s:\n", len(copies), what)
	for i, d := range copies {
		if i == maxCopies {
			fmt.Fprintf(b, "  and %d more\n", len(copies)-i)
			break
		}
		fmt.Fprintf(b, "  %s\n", schemas.Key(d.Account, d.Store, d.Space, d.Item))
		for _, c := range d.Columns {
			if c.Column == "*" {
				fmt.Fprintf(b, "    state: %s; logs: %s\n", c.State, c.Logs)
				continue
			}
			fmt.Fprintf(b, "    %s: state %.120q, logs %.120q\n", c.Column, c.State, c.Logs)
		}
	}
}
