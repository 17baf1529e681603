// Package fixityreport writes the reports of fixity rounds, for people and for other programs.
package fixityreport

import (
	"cmp"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/digest"
)

// A Format is the form of a report.
type Format string

// The formats.
const (
	JSON Format = "json" // rounds with their counts and findings
	CSV  Format = "csv"  // every checked copy, by RFC 4180
	TSV  Format = "tsv"  // every checked copy, in the 11 columns of older tools
	HTML Format = "html" // a page with the rounds and their findings, without scripts
)

// Formats returns all formats.
func Formats() []Format { return []Format{JSON, CSV, TSV, HTML} }

// Results of a round.
const (
	Success    = "success"    // it is complete, every copy of the space is verified, and there are no findings
	Findings   = "findings"   // a copy has failed its check, or has lost its properties
	Incomplete = "incomplete" // no findings, but checks have no final result, copies are not verified, or it is of a part
)

// A Round is a round with the results of its checks.
type Round struct {
	read.RoundReport
	// Part says that the round is over some items of the space, to which its counts refer. It is never a success.
	Part bool
	// Checks calls a function for the results of the round, in the order of items, until it returns an error. With
	// findings only those of copies that have not passed, or have lost their properties, and results that are not final.
	Checks func(findings bool, each func(read.RoundCheck) error) error
	// Compared is the newest comparison of the listing of the space with the records; nil: it was not compared.
	Compared *Comparison
}

// Counts of a report.
const (
	countLive     = "live"
	countVerified = "verified"
	countDamaged  = "metadata-damaged"
)

// Checked returns the number of copies with a final result, without those that were skipped.
func (r Round) Checked() int64 {
	return r.sum("pass", "moot", "unverified", "fail", "missing", "not_captured")
}

// Found returns the number of findings.
func (r Round) Found() int64 { return r.sum("fail", "missing", "not_captured", countDamaged) }

func (r Round) sum(counts ...string) int64 { return sum(r.Counts, counts...) }

func sum(of map[string]int64, counts ...string) (n int64) {
	for _, c := range counts {
		n += of[c]
	}
	return n
}

// findings calls each for the findings of the round, and for the results that are not final.
func (r Round) findings(each func(read.RoundCheck) error) error {
	if r.Complete && r.Found() == 0 && r.Counts["unverified"] == 0 {
		return nil // there are none, in a space that may be large
	}
	return r.Checks(true, each)
}

// Coverage returns the share of the copies of the space that have passed a check of their bytes within the period;
// false if the report does not say it.
func (r Round) Coverage() (share float64, ok bool) {
	live, ok := r.Counts[countLive]
	if !ok || live == 0 {
		return 1, ok
	}
	return float64(r.Counts[countVerified]) / float64(live), true
}

// Result returns the result of the round. A part of a space is never a success.
func (r Round) Result() string {
	share, known := r.Coverage()
	switch {
	case r.Found() > 0:
		return Findings
	case !r.Complete, !known, share < 1, r.Part:
		return Incomplete
	}
	return Success
}

// Write writes rounds in their order.
func (f Format) Write(w io.Writer, rounds []Round) error {
	switch f {
	case JSON:
		return writeJSON(w, rounds)
	case CSV:
		return writeCSV(w, rounds)
	case TSV:
		return writeTSV(w, rounds)
	case HTML:
		return writeHTML(w, rounds)
	}
	return fmt.Errorf("no such format: %q", f)
}

// timeForm is the form of times: UTC, with milliseconds.
const timeForm = "2006-01-02T15:04:05.000Z"

// tsvEscaper keeps a value in its column and its line.
var tsvEscaper = strings.NewReplacer("\\", "\\\\", "\t", "\\t", "\n", "\\n", "\r", "\\r")

// resultOf returns the word of older tools for the verdict of a check.
func resultOf(c read.RoundCheck) string {
	switch c.Verdict {
	case "pass":
		return "success"
	case "fail", "missing", "not_captured":
		return "failure"
	case "unknown", "undecided":
		return "error"
	}
	return "ignore" // moot, skipped, unverified
}

// checksum returns the digest that older tools know: the MD5, or else the first one with its algorithm.
func checksum(d digest.Set) string {
	if md5 := d[digest.MD5]; md5 != "" {
		return md5
	}
	for _, algorithm := range d.Algorithms() {
		return algorithm + ":" + d[algorithm]
	}
	return ""
}

// details describes a check in words.
func details(c read.RoundCheck) string {
	var words []string
	if c.Verdict != "pass" && c.Finding != "" {
		words = append(words, c.Finding)
	}
	if c.Row > 0 && c.Row != 1 {
		words = append(words, "row "+strconv.Itoa(int(c.Row)))
	}
	if c.Detail != "" {
		words = append(words, c.Detail)
	}
	if c.Metadata == "damaged" {
		words = append(words, "metadata-damaged: "+c.MetadataDetail)
	}
	return strings.Join(words, "; ")
}

func writeTSV(w io.Writer, rounds []Round) error {
	row := func(columns ...string) error {
		for i := range columns {
			columns[i] = tsvEscaper.Replace(columns[i])
		}
		_, err := io.WriteString(w, strings.Join(columns, "\t")+"\n")
		return err
	}
	err := row("date-checked", "account", "store-id", "store-type", "space-id", "content-id", "result",
		"content-checksum", "provider-checksum", "manifest-checksum", "details")
	if err != nil {
		return err
	}
	return eachCheck(rounds, func(r Round, c read.RoundCheck) error {
		return row(c.Started.UTC().Format(timeForm), r.Account, r.Store, c.StoreKind, r.Space, c.Item, resultOf(c),
			checksum(c.Content), checksum(c.Stored), checksum(c.Manifest), details(c))
	})
}

func writeCSV(w io.Writer, rounds []Round) error {
	out := csv.NewWriter(w)
	err := out.Write([]string{"round", "started", "account", "store", "store_kind", "space", "item", "verdict", "row",
		"final", "finding", "evidence_level", "bytes_read", "content", "stored", "manifest", "metadata", "detail"})
	if err != nil {
		return err
	}
	err = eachCheck(rounds, func(r Round, c read.RoundCheck) error {
		return out.Write([]string{r.Round, c.Started.UTC().Format(timeForm), r.Account, r.Store, c.StoreKind, r.Space,
			c.Item, c.Verdict, strconv.Itoa(int(c.Row)), strconv.FormatBool(c.Final), c.Finding, strconv.Itoa(int(c.Level)),
			strconv.FormatInt(c.Bytes, 10), digests(c.Content), digests(c.Stored), digests(c.Manifest), c.Metadata, c.Detail})
	})
	out.Flush()
	if err != nil {
		return err
	}
	return out.Error()
}

// digests returns digests as algorithm:hex, sorted.
func digests(d digest.Set) string {
	var words []string
	for _, algorithm := range d.Algorithms() {
		words = append(words, algorithm+":"+d[algorithm])
	}
	return strings.Join(words, " ")
}

func eachCheck(rounds []Round, each func(Round, read.RoundCheck) error) error {
	for _, r := range rounds {
		if err := r.Checks(false, func(c read.RoundCheck) error { return each(r, c) }); err != nil {
			return err
		}
	}
	return nil
}

// A jsonRound is a round in JSON.
type jsonRound struct {
	Account  string    `json:"account"`
	Store    string    `json:"store"`
	Space    string    `json:"space"`
	Part     bool      `json:"part"` // of some items
	Round    string    `json:"round"`
	Started  time.Time `json:"started"`
	Finished time.Time `json:"finished"`
	Result   string    `json:"result"`
	Complete bool      `json:"complete"`
	Checked  int64     `json:"checked"`
	Coverage *float64  `json:"coverage"`
	// Detection is of damage that a period finds; null: all bytes are read.
	Detection []Detection      `json:"detection"`
	Counts    map[string]int64 `json:"counts"`
	Detail    string           `json:"detail"`
	Compared  *Comparison      `json:"comparison"` // null: not compared
	Findings  []jsonFinding    `json:"findings"`
}

// A jsonFinding is a finding in JSON.
type jsonFinding struct {
	Item     string     `json:"item"`
	Checked  time.Time  `json:"checked"`
	Verdict  string     `json:"verdict"`
	Row      uint8      `json:"row"`
	Finding  string     `json:"finding"`
	Level    uint8      `json:"evidence_level"`
	Content  digest.Set `json:"content"`
	Stored   digest.Set `json:"stored"`
	Manifest digest.Set `json:"manifest"`
	Metadata string     `json:"metadata"`
	Detail   string     `json:"detail"`
}

// writeJSON writes an array. It holds the findings of one round in memory at once.
func writeJSON(w io.Writer, rounds []Round) error {
	before := "[\n  "
	for _, r := range rounds {
		j := jsonRound{Account: r.Account, Store: r.Store, Space: r.Space, Part: r.Part, Round: r.Round,
			Started: r.Started, Finished: r.Finished, Result: r.Result(), Complete: r.Complete, Checked: r.Checked(),
			Detection: r.Detections(), Counts: r.Counts, Detail: r.Detail, Compared: r.Compared, Findings: []jsonFinding{}}
		if share, ok := r.Coverage(); ok {
			j.Coverage = &share
		}
		err := r.findings(func(c read.RoundCheck) error {
			j.Findings = append(j.Findings, jsonFinding{c.Item, c.Started, c.Verdict, c.Row, c.Finding, c.Level, c.Content,
				c.Stored, c.Manifest, c.Metadata, details(c)})
			return nil
		})
		if err != nil {
			return err
		}
		text, err := json.MarshalIndent(j, "  ", "  ")
		if err != nil {
			return fmt.Errorf("write round %s as JSON: %w", r.Round, err)
		}
		if _, err := fmt.Fprintf(w, "%s%s", before, text); err != nil {
			return err
		}
		before = ",\n  "
	}
	end := "\n]\n"
	if len(rounds) == 0 {
		end = "[]\n"
	}
	_, err := io.WriteString(w, end)
	return err
}

// Sort sorts rounds by account, store, space and start.
func Sort(rounds []Round) {
	slices.SortFunc(rounds, func(a, b Round) int {
		return cmp.Or(cmp.Compare(a.Account, b.Account), cmp.Compare(a.Store, b.Store), cmp.Compare(a.Space, b.Space),
			a.Started.Compare(b.Started))
	})
}
