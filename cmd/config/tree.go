package config

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/millrace/millrace/internal/nearest"
	"github.com/millrace/millrace/streams/schedule"
)

var errNoList = errors.New("it is not a list in JSON")

// fieldsOf returns the fields of a table that are settings, in the order of the struct.
func fieldsOf(t reflect.Type) []reflect.StructField {
	fields := make([]reflect.StructField, 0, t.NumField())
	for i := range t.NumField() {
		if f := t.Field(i); keyOf(f) != "" {
			fields = append(fields, f)
		}
	}
	return fields
}

func keyOf(f reflect.StructField) string { return f.Tag.Get("key") }

// isTable reports whether t is a table: a struct with named settings.
func isTable(t reflect.Type) bool {
	return t.Kind() == reflect.Struct && t != reflect.TypeFor[Secret]() && t != reflect.TypeFor[schedule.Schedule]()
}

func isTables(t reflect.Type) bool { return t.Kind() == reflect.Slice && isTable(t.Elem()) }

// settingPaths returns the paths of all settings outside of lists.
func settingPaths() []string {
	var paths []string
	var walk func(prefix string, t reflect.Type)
	walk = func(prefix string, t reflect.Type) {
		for _, f := range fieldsOf(t) {
			if isTable(f.Type) {
				walk(prefix+keyOf(f)+".", f.Type)
			} else {
				paths = append(paths, prefix+keyOf(f))
			}
		}
	}
	walk("", reflect.TypeFor[Config]())
	return paths
}

// typeAt returns the type of the setting or table at a path outside of lists.
func typeAt(path string) (reflect.Type, bool) {
	t := reflect.TypeFor[Config]()
	for key := range strings.SplitSeq(path, ".") {
		if !isTable(t) {
			return nil, false
		}
		fields := fieldsOf(t)
		i := slices.IndexFunc(fields, func(f reflect.StructField) bool { return keyOf(f) == key })
		if i < 0 {
			return nil, false
		}
		t = fields[i].Type
	}
	return t, true
}

// treeOf converts a table to nested maps. The values keep their Go types, except for schedules, whose fields koanf
// would not copy; zero values are left out.
func treeOf(v reflect.Value) map[string]any {
	m := map[string]any{}
	for _, f := range fieldsOf(v.Type()) {
		switch value := v.FieldByIndex(f.Index); {
		case isTable(f.Type):
			m[keyOf(f)] = treeOf(value)
		case f.Type == reflect.TypeFor[schedule.Schedule]():
			m[keyOf(f)] = value.Interface().(schedule.Schedule).String()
		case !value.IsZero():
			m[keyOf(f)] = value.Interface()
		}
	}
	return m
}

// A decoder reads one layer into the structs. It removes faulty values from the layer.
type decoder struct {
	text   bool                      // scalar values are text, as in variables
	origin func(path string) string  // of a value; nil: unknown
	set    func(path, origin string) // is called for every valid value
}

func (d decoder) from(path string) string {
	if d.origin == nil {
		return ""
	}
	return d.origin(path)
}

// table reads a map into a struct.
func (d decoder) table(path string, values map[string]any, into reflect.Value, faults *Faults) {
	fields := fieldsOf(into.Type())
	for _, key := range slices.Sorted(maps.Keys(values)) {
		at := key
		if path != "" {
			at = path + "." + key
		}
		i := slices.IndexFunc(fields, func(f reflect.StructField) bool { return keyOf(f) == key })
		switch {
		case i < 0:
			meant, hint := suggestion(key, fields)
			faults.add(at, nil, d.from(at), "unknown setting"+hint)
			(*faults)[len(*faults)-1].meant = strings.TrimSuffix(at, key) + meant
			delete(values, key)
		case values[key] == nil: // a key without a value is not set
			delete(values, key)
		default:
			if !d.value(at, values[key], into.FieldByIndex(fields[i].Index), faults) {
				delete(values, key)
			}
		}
	}
}

// suggestion returns what an unknown key was probably meant to be: as text for the fault, and, if
// it is one of fields, as its key.
func suggestion(key string, fields []reflect.StructField) (meant, hint string) {
	siblings := make([]string, len(fields))
	for i, f := range fields {
		siblings[i] = keyOf(f)
	}
	if meant := nearest.Of(key, siblings); meant != "" {
		return meant, "; did you mean " + meant + "?"
	}
	for _, leaf := range settingPaths() {
		if strings.HasSuffix(leaf, "."+key) {
			return "", "; did you mean " + leaf + "?"
		}
	}
	return "", "; known here: " + strings.Join(siblings, ", ")
}

// value reads one setting, table or list into a field, and reports whether all of it was valid.
func (d decoder) value(path string, v any, into reflect.Value, faults *Faults) bool {
	switch {
	case reflect.TypeOf(v) == into.Type():
		into.Set(reflect.ValueOf(v))
	case isTable(into.Type()):
		m, ok := v.(map[string]any)
		if !ok {
			faults.add(path, nil, d.from(path), "want a table of settings")
			return false
		}
		d.table(path, m, into, faults)
		return true
	case into.Kind() == reflect.Slice:
		list, ok := v.([]any)
		if !ok {
			faults.add(path, nil, d.from(path), "want a list")
			return false
		}
		if d.set != nil {
			d.set(path, d.from(path))
		}
		return d.list(path, list, into, faults)
	default:
		if err := d.scalar(v, into); err != nil {
			if into.Type() == reflect.TypeFor[Secret]() {
				v = nil
			}
			faults.add(path, v, d.from(path), "want "+err.Error())
			return false
		}
	}
	if d.set != nil {
		d.set(path, d.from(path))
	}
	return true
}

func (d decoder) list(path string, list []any, into reflect.Value, faults *Faults) bool {
	good := true
	if len(list) == 0 {
		into.SetZero()
		return true
	}
	into.Set(reflect.MakeSlice(into.Type(), len(list), len(list)))
	for i, v := range list {
		at := path + "[" + strconv.Itoa(i) + "]"
		if v == nil {
			faults.add(at, nil, d.from(at), "is empty")
			good = false
			continue
		}
		d := d
		if !isTables(into.Type()) {
			d.set = nil // the entries have the origin of the list
		}
		good = d.value(at, v, into.Index(i), faults) && good
	}
	return good
}

// scalar reads one value. Its error describes the values that are allowed.
func (d decoder) scalar(v any, into reflect.Value) error {
	text, isText := v.(string)
	switch p := into.Addr().Interface().(type) {
	case *time.Duration:
		if !isText {
			text = fmt.Sprint(v)
		}
		got, err := ParseDuration(text)
		*p = got
		return err
	case *Size:
		if n, ok := integer(v); ok && n >= 0 {
			*p = Size(n)
			return nil
		}
		got, err := parseSize(text)
		*p = got
		return err
	case *Share:
		got, err := parseShare(text)
		*p = got
		return err
	case *Secret:
		got, err := ParseSecret(text)
		if !isText {
			err = errSecret
		}
		*p = got
		return err
	case *schedule.Schedule:
		return p.UnmarshalText([]byte(fmt.Sprint(v)))
	case *bool:
		b, ok := v.(bool)
		if d.text && isText {
			b, ok = text == "true", text == "true" || text == "false"
		}
		*p = b
		return wantTypeUnless(ok, into.Type())
	case *Active:
		var on bool
		err := d.scalar(v, reflect.ValueOf(&on).Elem())
		if *p = 0; !on {
			*p = Inactive
		}
		return err
	case *int:
		n, ok := integer(v)
		if d.text && isText {
			i, err := strconv.Atoi(text)
			n, ok = int64(i), err == nil
		}
		*p = int(n)
		return wantTypeUnless(ok, into.Type())
	case *string:
		*p = text
		if _, number := integer(v); number {
			return errors.New(`a text: numbers go in quotes here, as in "1"`)
		}
		return wantTypeUnless(isText, into.Type())
	}
	return fmt.Errorf("a %s, which is not supported", into.Type())
}

type wantError string

func (e wantError) Error() string { return string(e) }

func wantTypeUnless(ok bool, t reflect.Type) error {
	if ok {
		return nil
	}
	return wantError(wanted(t))
}

// wanted describes the values of a setting of type t.
func wanted(t reflect.Type) string {
	switch {
	case isTables(t):
		return "a list of tables of settings"
	case t.Kind() == reflect.Slice:
		return "a list"
	case isTable(t):
		return "a table of settings"
	case t.Kind() == reflect.Bool:
		return "true or false"
	case t.Kind() == reflect.Int:
		return "a whole number"
	}
	return "a text"
}

// integer returns v as an integer, if it is one.
func integer(v any) (int64, bool) {
	switch n := v.(type) {
	case int:
		return int64(n), true
	case int64:
		return n, true
	case uint64:
		return int64(n), n <= math.MaxInt64
	}
	return 0, false
}
