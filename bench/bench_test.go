package bench

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/cmd/millrace/usage"
	"github.com/millrace/millrace/internal/need"
)

func TestPercentile(t *testing.T) {
	hundred := make([]float64, 100)
	for i := range hundred {
		hundred[i] = float64(100 - i)
	}
	for name, tt := range map[string]struct {
		values []float64
		p      float64
		want   float64
	}{
		"of none":          {nil, 99, 0},
		"of one":           {[]float64{7}, 99, 7},
		"99 of a hundred":  {hundred, 99, 99},
		"100 of a hundred": {hundred, 100, 100},
		"0 of a hundred":   {hundred, 0, 1},
		"half of three":    {[]float64{3, 1, 2}, 50, 2},
		"99 of three":      {[]float64{3, 1, 2}, 99, 3},
	} {
		t.Run(name, func(t *testing.T) {
			if got := percentile(tt.values, tt.p); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

// A percentile is one of the values. At least p percent of the values are not above it, and less than p percent are
// below it.
func TestPercentileProperty(t *testing.T) {
	need.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.Float64Range(-10, 10), 1, 200).Draw(t, "values")
		p := rapid.Float64Range(1, 100).Draw(t, "p")
		got := percentile(values, p)
		below, upTo, there := 0, 0, false
		for _, v := range values {
			if v < got {
				below++
			}
			if v <= got {
				upTo++
			}
			there = there || v == got
		}
		if need := p / 100 * float64(len(values)); !there || float64(upTo) < need || float64(below) >= need {
			t.Fatalf("percentile(%v, %v) = %v", values, p, got)
		}
	})
}

func TestMedian(t *testing.T) {
	for name, tt := range map[string]struct {
		values []float64
		want   float64
	}{
		"of none":  {nil, 0},
		"of three": {[]float64{9, 1, 5}, 5},
		"of four":  {[]float64{9, 1, 5, 6}, 5.5},
	} {
		t.Run(name, func(t *testing.T) {
			if got := median(tt.values); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

func TestRow(t *testing.T) {
	least, most := target{op: ">=", bound: 100}, target{op: "<=", bound: 5}
	twice := target{op: ">=", bound: 2, ratio: true}
	for name, tt := range map[string]struct {
		figure figure
		m      measurement
		want   string
	}{
		"met": {figure{target: least}, measurement{ours: []float64{90, 100, 110}},
			row("100", `""`, "null", "null", ">= 100", "true")},
		"missed": {figure{target: least}, measurement{ours: []float64{99.99}},
			row("99.99", `""`, "null", "null", ">= 100", "false")},
		"at most, met": {figure{target: most}, measurement{ours: []float64{5}},
			row("5", `""`, "null", "null", "<= 5", "true")},
		"at most, missed": {figure{target: most}, measurement{ours: []float64{5.004}},
			row("5.004", `""`, "null", "null", "<= 5", "false")},
		// What is shown is rounded, what is judged is not.
		"missed by less than is shown": {figure{target: most}, measurement{ours: []float64{5.0001}},
			row("5", `""`, "null", "null", "<= 5", "false")},
		"no target": {figure{}, measurement{ours: []float64{123456}},
			row("123500", `""`, "null", "null", "", "null")},
		"ratio met": {figure{target: twice, peer: "p"}, measurement{[]float64{20, 40}, []float64{15}, ""},
			row("30", `"p"`, "15", "2", "ratio >= 2", "true")},
		"ratio missed": {figure{target: twice, peer: "p"}, measurement{[]float64{29}, []float64{15}, ""},
			row("29", `"p"`, "15", "1.933", "ratio >= 2", "false")},
		"peer absent": {figure{target: twice, peer: "p"}, measurement{[]float64{29}, nil, "make peers"},
			row("29", `"p (absent: make peers)"`, "null", "null", "ratio >= 2", "null")},
		"peer of nothing": {figure{target: twice, peer: "p"}, measurement{[]float64{29}, []float64{0}, ""},
			row("29", `"p"`, "0", "null", "ratio >= 2", "null")},
	} {
		t.Run(name, func(t *testing.T) {
			tt.figure.name, tt.figure.unit = "f", "u"
			var out bytes.Buffer
			if err := Write(&out, "json", []Table{{Rows: []Row{tt.figure.row(tt.m)}}}); err != nil {
				t.Fatal(err)
			}
			if got := out.String(); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

// row returns a Row as JSON.
func row(value, peer, peerValue, ratio, target, met string) string {
	return `{
  "rows": [
    {
      "name": "f",
      "value": ` + value + `,
      "unit": "u",
      "peer": ` + peer + `,
      "peer_value": ` + peerValue + `,
      "ratio": ` + ratio + `,
      "target": "` + target + `",
      "met": ` + met + `
    }
  ]
}
`
}

func TestWrite(t *testing.T) {
	peer, ratio, yes := 2.0, 1.5, true
	tables := []Table{
		{"one", []Row{{"a", 3, "ms", "b", &peer, &ratio, "ratio <= 2", &yes}}},
		{"two", []Row{{Name: "c", Value: 1_200_000, Unit: "records/s"}}},
	}
	for form, want := range map[string]string{
		"table": `FIGURE  VALUE    UNIT       PEER  ITS VALUE  RATIO  TARGET      MET  
a       3        ms         b     2          1.5    ratio <= 2  yes  
c       1200000  records/s                                           
`,
		"markdown": `## one

| figure | value | unit | peer | its value | ratio | target | met |
|---|--:|---|---|--:|--:|---|---|
| a | 3 | ms | b | 2 | 1.5 | ratio <= 2 | yes |

## two

| figure | value | unit | peer | its value | ratio | target | met |
|---|--:|---|---|--:|--:|---|---|
| c | 1200000 | records/s |  |  |  |  |  |
`,
	} {
		t.Run(form, func(t *testing.T) {
			var out bytes.Buffer
			if err := Write(&out, form, tables); err != nil {
				t.Fatal(err)
			}
			if got := out.String(); got != want {
				t.Errorf("got\n%s, want\n%s", got, want)
			}
		})
	}
}

func TestCount(t *testing.T) {
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", 12_345_678: "12,345,678"} {
		if got := count(n); got != want {
			t.Errorf("count(%d) = %q, want %q", n, got, want)
		}
	}
}

// The directory of the files may be named by a symbolic link.
func TestFilesBelow(t *testing.T) {
	dir, link := t.TempDir(), filepath.Join(t.TempDir(), "link")
	err := errors.Join(os.Mkdir(filepath.Join(dir, "sub"), 0o700), os.Symlink(dir, link),
		os.WriteFile(filepath.Join(dir, "sub", "file"), nil, 0o600))
	if err != nil {
		t.Fatal(err)
	}
	for _, below := range []string{dir, link} {
		got, err := filesBelow(below)
		if want := []string{filepath.Join("sub", "file")}; err != nil || !slices.Equal(got, want) {
			t.Errorf("below %s: got %v, %v, want %v", below, got, err, want)
		}
	}
}

// The main job needs a directory with files.
func TestNoFiles(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, dir := range map[string]string{"an empty directory": t.TempDir(), "a file": file} {
		t.Run(name, func(t *testing.T) {
			if _, err := (&runner{cfg: Config{Files: dir}}).main(); !errors.Is(err, usage.Err) {
				t.Errorf("got %v, want a usage error", err)
			}
		})
	}
}

func TestRunWhile(t *testing.T) {
	broken := errors.New("broken")
	untilDone := serviceFunc(func(ctx context.Context) error { <-ctx.Done(); return nil })
	for name, tt := range map[string]struct {
		service serviceFunc
		f       func(context.Context) error
		want    error
	}{
		"f returns": {untilDone, func(context.Context) error { return nil }, nil},
		"f fails":   {untilDone, func(context.Context) error { return broken }, broken},
		"the service fails": {func(context.Context) error { return broken },
			func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, broken},
	} {
		t.Run(name, func(t *testing.T) {
			if got := runWhile(t.Context(), tt.service, tt.f); !errors.Is(got, tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}
