package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/millrace/millrace/cmd/millrace/usage"
)

// Row is one row of the table. PeerValue is nil if there is no peer or it is not installed. Ratio is Value divided by
// PeerValue, nil without it. Met is nil if there is no target or the target needs a missing ratio.
type Row struct {
	Name      string   `json:"name"`
	Value     float64  `json:"value"`
	Unit      string   `json:"unit"`
	Peer      string   `json:"peer"`
	PeerValue *float64 `json:"peer_value"`
	Ratio     *float64 `json:"ratio"`
	Target    string   `json:"target"`
	Met       *bool    `json:"met"`
}

// target is a bound on a value or on its ratio to the peer's value. The zero value means no target.
type target struct {
	op    string // ">=" or "<="
	bound float64
	ratio bool
}

func (t target) String() string {
	switch {
	case t.op == "":
		return ""
	case t.ratio:
		return "ratio " + t.op + " " + number(t.bound)
	}
	return t.op + " " + number(t.bound)
}

// met reports whether the target is met. It returns nil if there is no target or the target needs a missing ratio.
func (t target) met(value float64, ratio *float64) *bool {
	if t.op == "" || t.ratio && ratio == nil {
		return nil
	}
	if t.ratio {
		value = *ratio
	}
	yes := value <= t.bound
	if t.op == ">=" {
		yes = value >= t.bound
	}
	return &yes
}

// measurement holds the results of the rounds, ours and the peer's.
type measurement struct {
	ours, peers []float64
	absent      string // how to install the missing peer; empty: nothing is missing
}

func (f figure) row(m measurement) Row {
	r := Row{Name: f.name, Value: significant(median(m.ours)), Unit: f.unit, Peer: f.peer, Target: f.target.String()}
	if m.absent != "" {
		r.Peer += " (absent: " + m.absent + ")"
	}
	if len(m.peers) > 0 {
		peer := significant(median(m.peers))
		r.PeerValue = &peer
		if median(m.peers) > 0 {
			ratio := median(m.ours) / median(m.peers)
			shown := significant(ratio)
			r.Ratio = &shown
			r.Met = f.target.met(median(m.ours), &ratio)
			return r
		}
	}
	r.Met = f.target.met(median(m.ours), nil)
	return r
}

// Table holds the rows of one area.
type Table struct {
	Area string
	Rows []Row
}

// forms returns the output formats of Write.
func forms() []string { return []string{"table", "json", "markdown"} }

// CheckForm returns an error if Write does not support form.
func CheckForm(form string) error {
	if !slices.Contains(forms(), form) {
		return fmt.Errorf("%w: --output is table, json or markdown, not %q", usage.Err, form)
	}
	return nil
}

// Write writes tables in one of the forms: "table" is one text table, "json" one object {"rows": [...]}, and "markdown"
// one Markdown table per area, with headings if there are several areas.
func Write(w io.Writer, form string, tables []Table) error {
	var rows []Row
	for _, t := range tables {
		rows = append(rows, t.Rows...)
	}
	switch form {
	case "json":
		return writeJSON(w, rows)
	case "markdown":
		return writeMarkdown(w, tables)
	}
	return writeTable(w, rows)
}

func writeJSON(w io.Writer, rows []Row) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false) // targets are bounds
	enc.SetIndent("", "  ")
	return enc.Encode(struct {
		Rows []Row `json:"rows"`
	}{rows})
}

func writeTable(w io.Writer, rows []Row) error {
	tw := tabwriter.NewWriter(w, 2, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "FIGURE\tVALUE\tUNIT\tPEER\tITS VALUE\tRATIO\tTARGET\tMET\t")
	for _, r := range rows {
		fmt.Fprintln(tw, strings.Join(r.cells(), "\t")+"\t")
	}
	return tw.Flush()
}

func writeMarkdown(w io.Writer, tables []Table) error {
	var b strings.Builder
	for i, t := range tables {
		if i > 0 {
			b.WriteString("\n")
		}
		if len(tables) > 1 {
			fmt.Fprintf(&b, "## %s\n\n", t.Area)
		}
		b.WriteString("| figure | value | unit | peer | its value | ratio | target | met |\n")
		b.WriteString("|---|--:|---|---|--:|--:|---|---|\n")
		for _, r := range t.Rows {
			fmt.Fprintf(&b, "| %s |\n", strings.Join(r.cells(), " | "))
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// cells returns the columns of a row as text.
func (r Row) cells() []string {
	met := ""
	if r.Met != nil {
		met = map[bool]string{true: "yes", false: "no"}[*r.Met]
	}
	return []string{r.Name, number(r.Value), r.Unit, r.Peer, optional(r.PeerValue), optional(r.Ratio), r.Target, met}
}

func optional(f *float64) string {
	if f == nil {
		return ""
	}
	return number(*f)
}

func number(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }

// significant rounds to four significant digits, more than the precision of any measurement here.
func significant(f float64) float64 {
	if r, err := strconv.ParseFloat(strconv.FormatFloat(f, 'g', 4, 64), 64); err == nil {
		return r
	}
	return f
}
