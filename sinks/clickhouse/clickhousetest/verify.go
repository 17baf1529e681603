package clickhousetest

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/verify"
)

// A KafkaTopic is the content of a topic: partition 3, incarnation 7.
type KafkaTopic struct {
	Records    []*schemas.Delivery
	Unreadable map[int64]error // records that cannot be decoded, by offset
	Dead       []int64
	Committed  int64
	Start      int64 // start of the log after the rows have been read
	End        int64 // end of the compared range
	Now        int64 // end of the log after the rows have been read; 0: end
	Recreated  bool
}

// Verify compares the records of a topic with the tables.
func Verify(
	t testing.TB, db *clickhouse.DB, topic schemas.Topic, k KafkaTopic,
) ([]*verify.TableReport, error) {
	t.Helper()
	p, err := verify.NewTopic(db, topic, func(d *schemas.Delivery) bool { return slices.Contains(k.Dead, d.Offset) })
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}()
	for _, d := range k.Records {
		if err := p.Add(d, k.Unreadable[d.Offset]); err != nil {
			t.Fatal(err)
		}
	}
	steps := map[string][2]int64{}
	noted := schemas.OffsetRange{Incarnation: 7, Starts: map[int32]int64{3: 0}, Ends: map[int32]int64{3: k.End}}
	got, err := p.Compare(t.Context(), verify.Offsets{
		Compared: noted, Committed: map[int32]int64{3: k.Committed},
		Now: func(context.Context) (schemas.OffsetRange, error) {
			now := schemas.OffsetRange{Incarnation: 7, Starts: map[int32]int64{3: k.Start},
				Ends: map[int32]int64{3: max(k.Now, k.End)}}
			if k.Recreated {
				now.Incarnation++
			}
			return now, nil
		},
		Progress: func(step string, done, total int64) { steps[step] = [2]int64{done, total} },
	})
	for step, at := range steps {
		if at[0] != at[1] && err == nil {
			t.Errorf("step %q ended at %d of %d", step, at[0], at[1])
		}
	}
	return got, err
}

// Describe returns the findings as text.
func Describe(p *verify.TableReport) string {
	s := fmt.Sprintf("%s: %d records, %d messages, %d rows", p.Table, p.Records, p.Messages, p.Rows)
	for _, f := range []struct {
		name string
		of   verify.Discrepancy
	}{
		{"missing", p.Missing}, {"doubled", p.Doubled}, {"extra", p.Extra},
		{"altered", p.Altered}, {"dead", p.Dead}, {"pending", p.Pending},
	} {
		if f.of.Messages == 0 && len(f.of.Ranges) == 0 {
			continue
		}
		s += fmt.Sprintf("; %s %d", f.name, f.of.Messages)
		for _, r := range f.of.Ranges {
			s += fmt.Sprintf(" %d/%d@%d-%d", r.Incarnation, r.Partition, r.First, r.Last)
		}
	}
	if p.Uncompared != (verify.Uncompared{}) {
		s += fmt.Sprintf("; gone %+v", p.Uncompared)
	}
	for _, x := range p.Trimmed {
		s += fmt.Sprintf("; trimmed %d before %d, %d rows, %d unread", x.Partition, x.Before, x.Rows, x.Unread)
	}
	return s
}
