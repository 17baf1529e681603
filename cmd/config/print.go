package config

import (
	"bufio"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/millrace/millrace/streams/schedule"
)

// Print writes every setting as YAML, each with its origin as a comment if origins is not nil. Load
// reads the output, except for secrets, which are printed as ***.
func Print(w io.Writer, c *Config, origins *Origins) error {
	return printer{w: bufio.NewWriter(w), origins: origins}.all(c)
}

// Save writes every setting as YAML that Load reads, including the references of secrets. Write it
// only to a file that its owner alone can read.
func Save(w io.Writer, c *Config) error {
	return printer{w: bufio.NewWriter(w), references: true}.all(c)
}

type printer struct {
	w          *bufio.Writer // records the first error; Flush returns it
	origins    *Origins
	references bool // print the references of secrets
}

func (p printer) all(c *Config) error {
	p.table("", "", reflect.ValueOf(c).Elem())
	if err := p.w.Flush(); err != nil {
		return fmt.Errorf("print the configuration: %w", err)
	}
	return nil
}

// line writes one line, with the origin of the setting at path. path is empty if the line has no
// value.
func (p printer) line(text, path string) {
	_, _ = p.w.WriteString(text)
	if p.origins != nil && path != "" {
		_, _ = p.w.WriteString(" # " + p.origins.Of(path))
	}
	_ = p.w.WriteByte('\n')
}

// table writes the settings of a struct. The first line of a list entry starts with its dash.
func (p printer) table(path, indent string, v reflect.Value) {
	for _, f := range fieldsOf(v.Type()) {
		at := strings.TrimPrefix(path+"."+keyOf(f), ".")
		value := v.FieldByIndex(f.Index)
		switch {
		case isTable(f.Type):
			p.line(indent+keyOf(f)+":", "")
			p.table(at, strings.Replace(indent, "-", " ", 1)+"  ", value)
		case isTables(f.Type) && value.Len() > 0:
			p.line(indent+keyOf(f)+":", at)
			for i := range value.Len() {
				p.table(at+"["+strconv.Itoa(i)+"]", strings.Replace(indent, "-", " ", 1)+"  - ", value.Index(i))
			}
		default:
			text := valueText(value)
			if s, ok := value.Interface().(Secret); ok && p.references {
				text = strconv.Quote(s.reference)
			}
			p.line(indent+keyOf(f)+": "+text, at)
		}
		indent = strings.Replace(indent, "-", " ", 1)
	}
}

// valueText writes a setting's value as YAML.
func valueText(v reflect.Value) string {
	if v.Kind() == reflect.Slice {
		parts := make([]string, v.Len())
		for i := range parts {
			parts[i] = valueText(v.Index(i))
		}
		return "[" + strings.Join(parts, ", ") + "]"
	}
	switch v := v.Interface().(type) {
	case time.Duration:
		return formatDuration(v)
	case Size:
		return v.String()
	case Share:
		return v.String()
	case Active:
		return v.String()
	case schedule.Schedule:
		return strconv.Quote(v.String())
	case Secret:
		return strconv.Quote(v.String())
	case string:
		return strconv.Quote(v)
	default:
		return fmt.Sprint(v)
	}
}
