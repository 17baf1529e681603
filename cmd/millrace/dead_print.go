package main

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka/deadletter"
)

// A deadCause is a group of dead letters with a common cause.
type deadCause struct {
	Role  schemas.Role  `json:"role"`
	Topic schemas.Topic `json:"topic"`
	Class string        `json:"class"`
	Error string        `json:"error"` // its first line
}

// A causeRow is a cause and the numbers of its dead letters.
type causeRow struct {
	deadCause
	Open      int       `json:"open"`
	Redriven  int       `json:"redriven"`
	Discarded int       `json:"discarded"`
	First     time.Time `json:"first"`
	Last      time.Time `json:"last"`
	Example   string    `json:"example"` // id of the newest dead letter
}

// maxCauses bounds the number of causes, since error texts may contain the names of items. Further
// dead letters count as otherErrors of their role, topic and class.
const (
	maxCauses   = 10_000
	otherErrors = "(other errors)"
)

// causesOf groups the dead letters that q selects by cause, the largest group first.
func causesOf(ctx context.Context, d *deadletter.Letters, q deadletter.Query) ([]*causeRow, error) {
	byCause := map[deadCause]*causeRow{}
	err := d.Each(ctx, q, func(l *deadletter.Letter) error {
		line, _, _ := strings.Cut(l.Error, "\n")
		key := deadCause{l.Role, l.Topic, l.Class, line}
		r := byCause[key]
		if r == nil && len(byCause) >= maxCauses {
			key.Error = otherErrors
			r = byCause[key]
		}
		if r == nil {
			key.Error = strings.Clone(key.Error) // releases the rest of the text
			r = &causeRow{deadCause: key, First: l.Time}
			byCause[key] = r
		}
		switch l.State {
		case deadletter.Redriven:
			r.Redriven++
		case deadletter.Discarded:
			r.Discarded++
		default:
			r.Open++
		}
		if l.Time.Before(r.First) {
			r.First = l.Time
		}
		if !l.Time.Before(r.Last) {
			r.Last, r.Example = l.Time, l.ID
		}
		return nil
	})
	rows := make([]*causeRow, 0, len(byCause))
	for _, r := range byCause {
		r.First, r.Last = r.First.UTC(), r.Last.UTC()
		rows = append(rows, r)
	}
	slices.SortFunc(rows, func(a, b *causeRow) int {
		return cmp.Or(cmp.Compare(b.Open, a.Open), b.Last.Compare(a.Last), cmp.Compare(a.Example, b.Example))
	})
	return rows, err
}

// rolesOf returns the roles of the dead letters of the causes.
func rolesOf(causes []*causeRow) (roles []schemas.Role) {
	for _, c := range causes {
		if !slices.Contains(roles, c.Role) {
			roles = append(roles, c.Role)
		}
	}
	return roles
}

// causeTable returns the table of causes.
func causeTable() table[*causeRow] {
	const columns = "OPEN\tCLOSED\tROLE\tTOPIC\tCLASS\tFIRST\tLAST\tFOR EXAMPLE\tERROR"
	return table[*causeRow]{columns, func(r *causeRow) []string {
		closed := r.Redriven + r.Discarded
		return []string{strconv.Itoa(r.Open), strconv.Itoa(closed), string(r.Role), string(r.Topic), r.Class,
			r.First.Format(time.RFC3339), r.Last.Format(time.RFC3339), r.Example, firstLine(r.Error)}
	}}
}

// A letterRow is a dead letter in a list.
type letterRow struct {
	ID        string           `json:"id"`
	State     deadletter.State `json:"state"`
	Time      time.Time        `json:"time"`
	Role      schemas.Role     `json:"role"`
	Topic     schemas.Topic    `json:"topic"`
	Partition int32            `json:"partition"`
	Offset    int64            `json:"offset"`
	Class     string           `json:"class"`
	Error     string           `json:"error"`
	Attempts  int              `json:"attempts"`
	Key       string           `json:"key"`
	Decided   *time.Time       `json:"decided,omitempty"`
	By        string           `json:"by,omitempty"`
	Reason    string           `json:"reason,omitempty"`
}

func rowOf(l *deadletter.Letter) letterRow {
	r := letterRow{l.ID, l.State, l.Time.UTC(), l.Role, l.Topic, l.Partition, l.Offset, l.Class, l.Error, l.Attempts,
		strings.ToValidUTF8(string(l.Key), "\uFFFD"), nil, l.By, l.Reason}
	if !l.Decided.IsZero() {
		at := l.Decided.UTC()
		r.Decided = &at
	}
	return r
}

// sortedLetters is the number of dead letters that are buffered, and sorted by time, before they
// are printed.
const sortedLetters = 5_000

// listLetters prints each dead letter: as ndjson in the order of reading, otherwise sorted by time
// in batches of sortedLetters.
func listLetters(ctx context.Context, out io.Writer, d *deadletter.Letters, q deadletter.Query, o *output) error {
	if o.form == formNDJSON {
		enc := json.NewEncoder(out)
		return d.Each(ctx, q, func(l *deadletter.Letter) error { return enc.Encode(rowOf(l)) })
	}
	var rows []letterRow
	l := list[letterRow]{w: out, form: o.form, table: letterTable()}
	flush := func() error {
		slices.SortFunc(rows, func(a, b letterRow) int {
			return cmp.Or(a.Time.Compare(b.Time), cmp.Compare(a.ID, b.ID))
		})
		err := l.print(rows)
		rows = rows[:0]
		return err
	}
	err := d.Each(ctx, q, func(l *deadletter.Letter) error {
		row := rowOf(l)
		if o.form == formTable {
			row.Error = strings.Clone(row.Error[:min(len(row.Error), 1<<10)]) // more than a line of the table shows
		}
		if rows = append(rows, row); len(rows) >= sortedLetters {
			return flush()
		}
		return nil
	})
	if err == nil {
		err = flush()
	}
	if err != nil {
		return err
	}
	return l.end()
}

// letterTable returns the table of dead letters.
func letterTable() table[letterRow] {
	return table[letterRow]{"ID\tSTATE\tTIME\tROLE\tTOPIC\tCLASS\tATTEMPTS\tKEY\tERROR", func(r letterRow) []string {
		return []string{r.ID, string(r.State), r.Time.Format(time.RFC3339), string(r.Role), string(r.Topic), r.Class,
			strconv.Itoa(r.Attempts), firstLine(r.Key), firstLine(r.Error)}
	}}
}

// A header is a header, with its value as text if it is valid UTF-8.
type header struct {
	Name   string `json:"name"`
	Value  string `json:"value"`
	Base64 bool   `json:"base64,omitempty"`
}

// A letterView is a dead letter with its message or, if that cannot be decoded, its value.
type letterView struct {
	letterRow
	Waits   int                  `json:"waits"`
	History []deadletter.Failure `json:"history"`
	Headers []header             `json:"headers"`
	Size    int                  `json:"size"`
	Type    string               `json:"type,omitempty"`
	Message json.RawMessage      `json:"message,omitempty"`
	Broken  string               `json:"broken,omitempty"` // why there is no message
	Value   []byte               `json:"value,omitempty"`
}

func fullLetter(l *deadletter.Letter) letterView {
	v := letterView{letterRow: rowOf(l), Waits: l.Waits, History: l.History, Headers: []header{}, Size: len(l.Value)}
	for _, h := range l.Headers {
		text, isText := string(h.Value), utf8.Valid(h.Value)
		if !isText {
			text = base64.StdEncoding.EncodeToString(h.Value)
		}
		v.Headers = append(v.Headers, header{h.Key, text, !isText})
	}
	body, err := l.Decode()
	if err == nil {
		v.Type = string(body.ProtoReflect().Descriptor().FullName())
		v.Message, err = protojson.Marshal(body)
	}
	if err != nil {
		v.Broken, v.Value = err.Error(), l.Value
	}
	return v
}

// maxHexBytes is the number of bytes shown of a value that is not a message.
const maxHexBytes = 2048

func showLetter(out io.Writer, l *deadletter.Letter) error {
	v := fullLetter(l)
	fmt.Fprintf(out, "dead letter %s: %s", l.ID, l.State)
	if v.Decided != nil {
		fmt.Fprintf(out, " by %s on %s", printable(l.By), v.Decided.Format(time.RFC3339))
		if l.Reason != "" {
			fmt.Fprintf(out, ": %s", printable(l.Reason))
		}
	}
	fmt.Fprintf(out, "\n\ntime   %s, after %d attempts and %d waits\nrole   %s\n",
		v.Time.Format(time.RFC3339Nano), l.Attempts, l.Waits, orDash(string(l.Role)))
	fmt.Fprintf(out, "from   %s, partition %d, offset %d\nkey    %s\nclass  %s\nerror  %s\n",
		orDash(string(l.Topic)), l.Partition, l.Offset, printable(v.Key), orDash(l.Class),
		strings.ReplaceAll(printable(l.Error), "\n", "\n       "))
	tw := tabwriter.NewWriter(out, 2, 0, 2, ' ', 0)
	if len(l.History) > 0 {
		fmt.Fprintln(out, "\nhistory")
		for _, f := range l.History {
			fmt.Fprintf(tw, "  %s\t%s\t%d times\t%s\t%s\t%s\n",
				f.First.UTC().Format(time.RFC3339), f.Last.UTC().Format(time.RFC3339), f.Times,
				orDash(f.Class), orDash(f.By), firstLine(f.Error))
		}
		if err := tw.Flush(); err != nil {
			return err
		}
	}
	fmt.Fprintln(out, "\nheaders")
	for _, h := range v.Headers {
		fmt.Fprintf(tw, "  %s\t%s\n", printable(h.Name), firstLine(h.Value))
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	if v.Broken == "" {
		text, err := json.MarshalIndent(v.Message, "", "  ")
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(out, "\nmessage, a %s of %d bytes\n%s\n", v.Type, v.Size, text)
		return err
	}
	fmt.Fprintf(out, "\nvalue of %d bytes, which is not a message: %s\n%s",
		v.Size, printable(v.Broken), hex.Dump(l.Value[:min(v.Size, maxHexBytes)]))
	if v.Size > maxHexBytes {
		fmt.Fprintf(out, "and %d more bytes: show -o json prints all\n", v.Size-maxHexBytes)
	}
	return nil
}

// printable replaces control characters, which could control the terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || unicode.IsPrint(r) {
			return r
		}
		return '\uFFFD'
	}, s)
}

// orDash returns s in one line, or a dash if s is empty.
func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return strings.ReplaceAll(printable(s), "\n", " ")
}

// firstLine returns the first line of s, shortened to 120 characters.
func firstLine(s string) string {
	const most = 120
	line, rest, _ := strings.Cut(printable(s), "\n")
	if runes := []rune(line); len(runes) > most {
		return string(runes[:most]) + "…"
	}
	if rest != "" {
		return line + " …"
	}
	return line
}
