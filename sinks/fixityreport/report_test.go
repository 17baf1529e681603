package fixityreport

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/digest"
)

var at = time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)

// round returns a round with a pass and a failure, in a space with odd names.
func round(counts map[string]int64, complete bool) Round {
	all := []read.RoundCheck{
		{Item: "a", Started: at, StoreKind: "file", Verdict: "pass", Row: 1, Finding: "pass", Level: 4, Bytes: 7,
			Content: digest.Set{digest.MD5: "00ff", digest.SHA256: "aa"}, Stored: digest.Set{},
			Manifest: digest.Set{digest.SHA256: "aa"}},
		{Item: "b\t<i>\n", Started: at, StoreKind: "s3", Verdict: "fail", Row: 2, Finding: "content-corrupt", Level: 4,
			Metadata: "damaged", MetadataDetail: "media type", Detail: "read twice",
			Content: digest.Set{digest.MD5: "01"}, Stored: digest.Set{digest.MD5: "02"}, Manifest: digest.Set{digest.MD5: "02"}},
	}
	report := read.RoundReport{Kind: "fixity", Account: "acme", Store: "1", Space: "photos", Round: "r", Started: at,
		Finished: at.Add(time.Minute), Counts: counts, Complete: complete}
	return Round{RoundReport: report,
		Checks: func(findings bool, each func(read.RoundCheck) error) error {
			for _, c := range all {
				if findings && c.Verdict == "pass" {
					continue
				}
				if err := each(c); err != nil {
					return err
				}
			}
			return nil
		}}
}

// A round is a success only if it is complete and covers the space.
func TestResult(t *testing.T) {
	for name, tt := range map[string]struct {
		counts   map[string]int64
		complete bool
		want     string
	}{
		"all verified":           {map[string]int64{"pass": 2, "live": 2, "verified": 2}, true, Success},
		"verified by others":     {map[string]int64{"pass": 1, "live": 2, "verified": 2, "skipped": 1}, true, Success},
		"an empty space":         {map[string]int64{"moot": 1, "live": 0}, true, Success},
		"a part":                 {map[string]int64{"pass": 1, "live": 2, "verified": 1}, true, Incomplete},
		"checks are outstanding": {map[string]int64{"pass": 2, "live": 2, "verified": 2}, false, Incomplete},
		"unread":                 {map[string]int64{"pass": 2, "live": 2, "unread": 2}, true, Incomplete},
		"coverage is not known":  {map[string]int64{"pass": 2}, true, Incomplete},
		"a failure":              {map[string]int64{"pass": 1, "fail": 1, "live": 2, "verified": 1}, true, Findings},
		"missing":                {map[string]int64{"missing": 1, "live": 2, "verified": 2}, true, Findings},
		"lost properties": {map[string]int64{"pass": 2, "live": 2, "verified": 2, "metadata-damaged": 1}, true,
			Findings},
	} {
		if got := round(tt.counts, tt.complete).Result(); got != tt.want {
			t.Errorf("%s: got %s, want %s", name, got, tt.want)
		}
	}
	part := round(map[string]int64{"pass": 2, "live": 2, "verified": 2}, true)
	if part.Part = true; part.Result() != Incomplete {
		t.Errorf("of the items with a prefix: got %s, want %s", part.Result(), Incomplete)
	}
	if !strings.Contains(write(t, HTML, part), "photos (some items)") ||
		!strings.Contains(write(t, JSON, part), `"part": true`) {
		t.Error("a report does not say that the round is over a part of the space")
	}
	r := round(map[string]int64{"pass": 5, "fail": 1, "missing": 1, "skipped": 3, "live": 10, "verified": 5,
		"metadata-damaged": 2}, true)
	if r.Checked() != 7 || r.Found() != 4 {
		t.Errorf("checked %d, found %d, want 7 and 4", r.Checked(), r.Found())
	}
}

func write(t *testing.T, f Format, rounds ...Round) string {
	t.Helper()
	var b bytes.Buffer
	if err := f.Write(&b, rounds); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// The TSV has eleven columns, whatever the names have.
func TestTSV(t *testing.T) {
	want := "date-checked\taccount\tstore-id\tstore-type\tspace-id\tcontent-id\tresult\tcontent-checksum\t" +
		"provider-checksum\tmanifest-checksum\tdetails\n" +
		"2026-11-28T12:00:00.000Z\tacme\t1\tfile\tphotos\ta\tsuccess\t00ff\t\tsha256:aa\t\n" +
		"2026-11-28T12:00:00.000Z\tacme\t1\ts3\tphotos\tb\\t<i>\\n\tfailure\t01\t02\t02\t" +
		"content-corrupt; row 2; read twice; metadata-damaged: media type\n"
	if got := write(t, TSV, round(nil, true)); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	words := map[string]string{"pass": "success", "fail": "failure", "missing": "failure", "not_captured": "failure",
		"unknown": "error", "undecided": "error", "moot": "ignore", "skipped": "ignore", "unverified": "ignore"}
	for verdict, want := range words {
		if got := resultOf(read.RoundCheck{Verdict: verdict}); got != want {
			t.Errorf("%s: got %s, want %s", verdict, got, want)
		}
	}
}

func TestCSV(t *testing.T) {
	rows, err := csv.NewReader(strings.NewReader(write(t, CSV, round(nil, true)))).ReadAll()
	if err != nil || len(rows) != 3 || rows[2][6] != "b\t<i>\n" || rows[1][13] != "md5:00ff sha256:aa" {
		t.Errorf("got %q, %v", rows, err)
	}
}

func TestJSON(t *testing.T) {
	if got := write(t, JSON); got != "[]\n" {
		t.Errorf("without rounds: %q", got)
	}
	var got []jsonRound
	counts := map[string]int64{"pass": 1, "fail": 1, "live": 4, "verified": 1}
	text := write(t, JSON, round(counts, true), round(counts, false))
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 || got[0].Result != Findings || got[0].Coverage == nil || *got[0].Coverage != 0.25 ||
		len(got[0].Findings) != 1 || got[0].Findings[0].Item != "b\t<i>\n" || got[1].Complete {
		t.Errorf("got %s", text)
	}
}

// The page escapes names, has no scripts, and lists a limited number of findings.
func TestHTML(t *testing.T) {
	text := write(t, HTML, round(map[string]int64{"fail": 1, "live": 2, "verified": 1}, true))
	for _, want := range []string{"acme/1", "photos", Findings, "b\t&lt;i&gt;", "50.0%", "content-corrupt", "md5:02"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %q:\n%s", want, text)
		}
	}
	if strings.Contains(text, "<script") || strings.Contains(text, "http") || strings.Contains(text, "<i>") {
		t.Errorf("the page has a script, a link or a name that is not escaped:\n%s", text)
	}
	many := round(map[string]int64{"fail": 3000}, true)
	many.Checks = func(_ bool, each func(read.RoundCheck) error) error {
		for range pageFindings + 2 {
			if err := each(read.RoundCheck{Item: "x", Verdict: "fail"}); err != nil {
				return err
			}
		}
		return nil
	}
	if text := write(t, HTML, many); !strings.Contains(text, "2 more findings") {
		t.Error("findings are left out without a word")
	}
	if text := write(t, HTML); !strings.Contains(text, "no reports") {
		t.Errorf("without rounds:\n%s", text)
	}
}

// An error of a read is an error of the report: no part of it looks like the whole.
func TestReadError(t *testing.T) {
	broken := errors.New("away")
	r := round(nil, true)
	r.Checks = func(bool, func(read.RoundCheck) error) error { return broken }
	r.Complete = false
	for _, f := range Formats() {
		if err := f.Write(&bytes.Buffer{}, []Round{r}); !errors.Is(err, broken) {
			t.Errorf("%s: %v", f, err)
		}
	}
	if err := Format("pdf").Write(&bytes.Buffer{}, nil); err == nil {
		t.Error("an unknown format is written")
	}
}

// A page does not say that a space of unknown size has no copies.
func TestPageOfUnknownSize(t *testing.T) {
	r := round(map[string]int64{"pass": 2}, true)
	if text := write(t, HTML, r); !strings.Contains(text, `<td>incomplete</td><td class="n">unknown</td>`) {
		t.Errorf("got\n%s", text)
	}
}
