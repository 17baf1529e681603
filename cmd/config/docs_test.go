package config

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/streams/schedule"
)

var update = flag.Bool("update", false, "write docs/configuration.md")

const docsHead = `# Configuration

Generated from the structs in 'cmd/config' by 'go test ./cmd/config -update'.
'examples/millrace.yaml' is a commented example.

Settings come from four layers. A later layer overrides an earlier one: defaults, the file (YAML),
variables, the command line. An unknown setting is an error. All errors are reported at once, each
with its file and line or its variable.

| command | prints |
|---|---|
| 'millrace config check' | the errors of the configuration and of the policies |
| 'millrace config print --origin' | the settings in effect, and the origin of each |

| form | values |
|---|---|
| variable | the path in upper case, with '__' for each dot: 'MILLRACE_KAFKA__TOPIC_PREFIX' sets 'kafka.topic_prefix' |
| list in a variable | values separated by commas; tables in JSON: '[{"name": "5m", "delay": "5m"}]' |
| duration | a number with a unit: '500ms', '30s', '5m', '2h', '90d', '1w', '1d12h' |
| schedule | 'off', 'every 20m', 'cron 0 3 * * mon-fri': see [Schedules](#schedules) |
| share | a percentage: '10%', '2.5%' |
| size | a number with a unit: '512KiB', '200MB', '5GiB' |
| secret | a reference, resolved when it is used: 'env:NAME', 'file:PATH', 'exec:COMMAND'; printed as '***' |

## Schedules

'off' is never; a round that is unfinished then stays so. Otherwise a schedule has these parts, on
one line:

- 'every PERIOD': a period after the start of the last round. It is a duration of which a month
  ('mo'), a week or a day is one of the calendar. A round that was missed begins late, and once.
- Or 'cron MINUTE HOUR DAY MONTH WEEKDAY', with lists, ranges, steps and names of three letters; 0
  and 7 are Sunday. If both fields of days are restricted, either suffices.
- 'start HH:MM', after 'every' and whole days, weeks or months: the time of day.
- 'window HH:MM-HH:MM': work begins and goes on only in this part of the day, which may include
  midnight. Several are possible. What is at work when a window ends is completed: one page.
- 'zone NAME': the time zone of all these times, UTC by default.

For example 'every 1w start 20:00 window 22:00-06:00 zone Europe/Zurich', or 'cron 0 3 * * mon-fri'.
A round never begins before the last one has ended. One that ends later than the next is due is
logged: *sweep overran its period*.

'millrace schedule set fixity every 12h --reason TEXT' replaces the schedule of a sweep or job while
processes run. It is an action in topic 'admin', which counts for all processes, also after a
restart, until 'millrace schedule reset fixity'. 'millrace schedule list' shows what counts.

Some spaces may have other schedules, of the sweeps 'fixity', 'reconcile', 'duplication' and
'groups':

'''yaml
sweep:
  reconcile: every 1d
  schedules:
    - {sweep: reconcile, spaces: acme/nas, schedule: every 1h}
    - {sweep: reconcile, spaces: "*/glacier", schedule: cron 0 3 1 * *}
'''

'millrace schedule set reconcile every 2h --spaces acme/nas/busy --reason TEXT' sets one while
processes run, and 'schedule reset reconcile --spaces acme/nas/busy' withdraws it. Of a space, the
first of these counts:

1. those set with '--spaces' whose pattern matches it: with a SPACE before those with a STORE before
   those with an ACCOUNT alone, and the newest first;
2. the entries of 'sweep.schedules' whose pattern matches it, in their order;
3. the one set for the sweep without '--spaces';
4. the setting of the sweep, such as 'sweep.reconcile'.

So a schedule that was set replaces the entry of 'sweep.schedules' with the same pattern, and
'schedule set reconcile off' stops the rounds only in spaces that match no pattern. To stop all, use
'millrace sweep pause reconcile'. 'schedule list' has the rows of a sweep in this order. Of a pair
of stores, in the sweep 'duplication', one that matches suffices, since a round lists both.

## Settings

`

// docs/configuration.md is generated from the fields, comments and defaults of the structs.
func TestConfigurationDocument(t *testing.T) {
	defaults := Default()
	d := &document{comments: comments(t)}
	d.WriteString(strings.ReplaceAll(docsHead, "'", "`"))
	d.table("", reflect.ValueOf(defaults))
	file := filepath.Join("..", "..", "docs", "configuration.md")
	if *update {
		must(t, os.WriteFile(file, []byte(d.String()), 0o644))
	}
	got, err := os.ReadFile(file)
	must(t, err)
	if string(got) != d.String() {
		t.Errorf("%s is out of date: go test ./cmd/config -update", file)
	}
}

type document struct {
	strings.Builder
	comments map[string]string // by Struct.Field
}

// table writes the settings of one table, then the tables in it.
func (d *document) table(path string, v reflect.Value) {
	var inner []func()
	rows := 0
	for _, f := range fieldsOf(v.Type()) {
		at := strings.TrimPrefix(path+"."+keyOf(f), ".")
		comment := d.comments[v.Type().Name()+"."+f.Name]
		value := v.FieldByIndex(f.Index)
		switch {
		case isTable(f.Type):
			inner = append(inner, func() { d.section(at, comment, value) })
			continue
		case isTables(f.Type):
			inner = append(inner, func() { d.section(at+"[]", comment, exampleOf(f.Type.Elem())) })
		}
		if rows++; rows == 1 {
			d.WriteString("| setting | form | default | meaning |\n|---|---|---|---|\n")
		}
		fmt.Fprintf(d, "| `%s` | %s | %s | %s |\n", at, form(f), d.defaultOf(value), comment)
	}
	if rows > 0 {
		d.WriteByte('\n')
	}
	for _, write := range inner {
		write()
	}
}

func (d *document) section(path, comment string, v reflect.Value) {
	fmt.Fprintf(d, "## %s\n\n%s\n\n", path, wrap(comment))
	d.table(path, v)
}

// wrap breaks text into lines of at most 100 columns.
func wrap(text string) string {
	var b strings.Builder
	column := 0
	for _, word := range strings.Fields(text) {
		switch {
		case column == 0:
		case column+1+len(word) > 100:
			b.WriteByte('\n')
			column = 0
		default:
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column += len(word)
	}
	return b.String()
}

// exampleOf returns an entry of a list with its defaults.
func exampleOf(t reflect.Type) reflect.Value {
	if t == reflect.TypeFor[Store]() {
		s := Store{}.withDefaults()
		s.Repair = "" // depends on primary
		return reflect.ValueOf(s)
	}
	return reflect.New(t).Elem()
}

func (d *document) defaultOf(v reflect.Value) string {
	if v.IsZero() && v.Kind() != reflect.Bool && v.Type() != reflect.TypeFor[time.Duration]() {
		return ""
	}
	if isTables(v.Type()) {
		var entries []string
		for i := range v.Len() {
			var parts []string
			for _, f := range fieldsOf(v.Type().Elem()) {
				parts = append(parts, keyOf(f)+": "+strings.Trim(valueText(v.Index(i).FieldByIndex(f.Index)), `"`))
			}
			entries = append(entries, "`{"+strings.Join(parts, ", ")+"}`")
		}
		return strings.Join(entries, ", ")
	}
	return "`" + strings.ReplaceAll(valueText(v), `"`, "") + "`"
}

func form(f reflect.StructField) string {
	if words := f.Tag.Get("oneof"); words != "" {
		return "`" + strings.ReplaceAll(words, "|", "`, `") + "`"
	}
	return typeName(f.Type)
}

func typeName(t reflect.Type) string {
	switch t {
	case reflect.TypeFor[time.Duration]():
		return "duration"
	case reflect.TypeFor[Share]():
		return "share"
	case reflect.TypeFor[Size]():
		return "size"
	case reflect.TypeFor[schedule.Schedule]():
		return "schedule"
	case reflect.TypeFor[Secret]():
		return "secret"
	}
	switch {
	case isTables(t):
		return "list of tables"
	case t.Kind() == reflect.Slice:
		return "list of " + typeName(t.Elem()) + "s"
	case t.Kind() == reflect.Bool:
		return "true or false"
	case t.Kind() == reflect.Int:
		return "number"
	}
	return "text"
}

// comments returns the comments of the fields of the structs of this package, by Struct.Field.
func comments(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob("*.go")
	must(t, err)
	found := map[string]string{}
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		must(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			if spec, ok := n.(*ast.TypeSpec); ok {
				addComments(found, spec)
			}
			return true
		})
	}
	return found
}

// addComments adds the comments of the fields of a struct to found.
func addComments(found map[string]string, spec *ast.TypeSpec) {
	fields, ok := spec.Type.(*ast.StructType)
	if !ok {
		return
	}
	for _, f := range fields.Fields.List {
		for _, name := range f.Names {
			found[spec.Name.Name+"."+name.Name] = strings.Join(strings.Fields(f.Doc.Text()), " ")
		}
	}
}
