package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka/deadletter"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
)

// manyLetters returns n dead letters, each with a different error and a stack of 8 KiB.
func manyLetters(t *testing.T, n int) *deadletter.Letters {
	t.Helper()
	b := kafkatest.New(t, kafkatest.Options{Partitions: 2, RealTime: true, Loopback: true})
	began, stack := time.Now().Add(-time.Hour), strings.Repeat("goroutine 1 [running]: ", 8<<10/23)
	header := func(key, value string) schemas.Header { return schemas.Header{Key: key, Value: []byte(value)} }
	var recs []kafkatest.Record
	for i := range n {
		recs = append(recs, kafkatest.Record{
			Record: schemas.Record{Topic: schemas.Dead, Key: []byte("k"), Value: []byte("v"), Headers: []schemas.Header{
				header(schemas.HeaderOriginTopic, "changes"), header(schemas.HeaderRole, "planner"), header(schemas.HeaderClass,
					"permanent"),
				header(schemas.HeaderOriginPartition, "0"), header(schemas.HeaderOriginOffset, fmt.Sprint(i)),
				header(schemas.HeaderError, fmt.Sprintf("item %d is refused\n%s", i, stack)),
			}},
			Partition: int32(i % 2), Timestamp: began.Add(time.Duration(i) * time.Millisecond),
		})
		if len(recs) == 1000 || i == n-1 {
			b.Write(recs...)
			recs = nil
		}
	}
	d, err := deadletter.New(b.Config())
	must(t, err)
	t.Cleanup(d.Close)
	return d
}

// A gauge is a writer that samples the heap size.
type gauge struct {
	io.Writer
	writes       int
	before, most int64
}

func (g *gauge) heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func (g *gauge) Write(p []byte) (int, error) {
	if g.writes++; g.writes%5_000 == 1 {
		g.most = max(g.most, g.heap()-g.before)
	}
	return g.Writer.Write(p)
}

// Long lists of dead letters are printed in batches and are complete; causes beyond the maximum are
// counted together.
func TestManyDeadLetters(t *testing.T) {
	need.Full(t)
	n := need.Amount(12_000, 100_000, 300_000)
	d := manyLetters(t, n)
	const bound = 80 << 20 // with the errors of sortedLetters, and what was read ahead
	for form, check := range map[string]func(t *testing.T, out io.Reader){
		formTable: func(t *testing.T, out io.Reader) {
			lines := bufio.NewScanner(out)
			for range n + 1 { // a line of titles
				if !lines.Scan() {
					t.Fatalf("the list ends early: %v", lines.Err())
				}
			}
			if lines.Scan() {
				t.Errorf("one line more: %s", lines.Text())
			}
		},
		formJSON: func(t *testing.T, out io.Reader) {
			d := json.NewDecoder(out)
			if _, err := d.Token(); err != nil {
				t.Fatal(err)
			}
			ids, last := map[string]bool{}, time.Time{}
			for d.More() {
				var row letterRow
				must(t, d.Decode(&row))
				if len(ids)%sortedLetters > 0 && row.Time.Before(last) {
					t.Errorf("letter %s of %v is listed behind one of %v", row.ID, row.Time, last)
				}
				ids[row.ID], last = true, row.Time
			}
			if _, err := d.Token(); err != nil || len(ids) != n {
				t.Errorf("%d letters are listed, %v, want %d", len(ids), err, n)
			}
		},
	} {
		t.Run(form, func(t *testing.T) {
			out, err := os.Create(filepath.Join(t.TempDir(), "list"))
			must(t, err)
			defer out.Close()
			g := &gauge{Writer: out}
			g.before = g.heap()
			must(t, listLetters(t.Context(), g, d, deadletter.Query{}, &output{form: form}))
			t.Logf("%d letters: %d MiB at most", n, g.most>>20)
			if g.most > bound {
				t.Errorf("a list of %d letters took %d MiB, want at most %d", n, g.most>>20, bound>>20)
			}
			if _, err := out.Seek(0, io.SeekStart); err != nil {
				t.Fatal(err)
			}
			check(t, out)
		})
	}
	t.Run("causes", func(t *testing.T) {
		before := (&gauge{}).heap()
		causes, err := causesOf(t.Context(), d, deadletter.Query{})
		took := (&gauge{}).heap() - before
		open := 0
		for _, c := range causes {
			open += c.Open
		}
		last := slices.IndexFunc(causes, func(c *causeRow) bool { return c.Error == otherErrors })
		if err != nil || len(causes) != maxCauses+1 || open != n || last != 0 || causes[0].Open != n-maxCauses {
			t.Errorf("%d causes of %d letters, %v, want %d of %d: the others are at %d", len(causes), open, err, maxCauses+1, n,
				last)
		}
		if took > 16<<20 {
			t.Errorf("%d causes take %d MiB", len(causes), took>>20)
		}
	})
}

// A list that is printed in batches equals one that is printed at once.
func TestListOfPieces(t *testing.T) {
	rows := []deadCause{{Role: "a<b", Error: "one"}, {Role: "b"}, {Role: "c", Error: "\"three\""}}
	cells := table[deadCause]{"ROLE\tERROR", func(c deadCause) []string { return []string{string(c.Role), c.Error} }}
	for n := range len(rows) + 1 {
		for form, want := range map[string]func(w io.Writer) error{
			formJSON: func(w io.Writer) error { return writeJSON(w, append([]deadCause{}, rows[:n]...)) },
			formNDJSON: func(w io.Writer) error {
				for _, r := range rows[:n] {
					if err := json.NewEncoder(w).Encode(r); err != nil {
						return err
					}
				}
				return nil
			},
		} {
			var got, whole bytes.Buffer
			l := list[deadCause]{w: &got, form: form, table: cells}
			for i := range n {
				must(t, l.print(rows[i:i+1]))
			}
			must(t, l.end())
			must(t, want(&whole))
			if got.String() != whole.String() {
				t.Errorf("%d rows as %s: %q, want %q", n, form, got.String(), whole.String())
			}
		}
	}
}
