package config

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
)

// ParseAccount reads the document of one account: an entry of accounts, as YAML or JSON. It validates the document as
// the entries of cfg are, together with its accounts, which are the other ones. name is that of the file. It returns
// all faults; the origin of each is NAME:LINE:COLUMN.
func ParseAccount(name string, content []byte, cfg *Config) (a Account, faults Faults) {
	values, positions, f := parseYAML(content)
	if f != nil {
		f.Origin = name + f.Origin
		return a, Faults{*f}
	}
	origin := func(path string) string {
		for path != "" {
			if at, ok := positions[path]; ok {
				return fmt.Sprintf("%s:%d:%d", name, at.line, at.column)
			}
			path = path[:max(strings.LastIndexAny(path, ".["), 0)]
		}
		return name
	}
	a, faults = readAccount(values, origin)
	for _, f := range append(validateAccount(a, cfg.Accounts), cfg.AccountTopic.faults(a)...) {
		if !slices.ContainsFunc(faults, func(known Fault) bool {
			return sameSetting(known.Key, f.Key) || known.meant != "" && known.meant == f.Key
		}) {
			f.Origin = origin(f.Key)
			faults = append(faults, f)
		}
	}
	slices.SortStableFunc(faults, func(x, y Fault) int { return compareOrigins(x.Origin, y.Origin) })
	return a, faults
}

// compareOrigins compares the line and column at the end of two origins.
func compareOrigins(a, b string) int {
	numbers := func(s string) (n []int) {
		for part := range strings.SplitSeq(s, ":") {
			i, err := strconv.Atoi(part)
			if err == nil {
				n = append(n, i)
			}
		}
		return n
	}
	return slices.Compare(numbers(a), numbers(b))
}

func readAccount(values map[string]any, origin func(path string) string) (a Account, faults Faults) {
	decoder{origin: origin}.table("", values, reflect.ValueOf(&a).Elem(), &faults)
	for i := range a.Stores {
		a.Stores[i] = a.Stores[i].withDefaults()
	}
	return a, faults
}

// validateAccount returns the faults of an account among others, without origins.
func validateAccount(a Account, others []Account) (faults Faults) {
	all := append(slices.Clone(others), a)
	mine := fmt.Sprintf("accounts[%d]", len(others))
	names := []string{} // of the paths in reasons
	for i, o := range all {
		for j, s := range o.Stores {
			names = append(names, fmt.Sprintf("accounts[%d].stores[%d]", i, j), "store "+o.ID+"/"+s.ID)
		}
	}
	names = append(names, mine+".", "")
	readable := strings.NewReplacer(names...)
	report := func(key string, value any, reason string) {
		if rest, ok := strings.CutPrefix(key, mine); ok {
			faults.add(strings.TrimPrefix(rest, "."), value, "", readable.Replace(reason))
		}
	}
	validateWords(mine, reflect.ValueOf(&a).Elem(), report)
	validateAccounts(all, report)
	return faults
}

// An AccountDocument is the document of an account as a process reads it from a topic.
type AccountDocument struct {
	Account
	// Faults are why this version of the program cannot use a store, by the id of the store.
	Faults map[string]error
}

// ReadAccount reads a document that was validated before it was published. Settings that this version does not know, or
// that it does not accept, and secrets that t does not allow, are faults of the stores that they are about. The error
// reports a document that is not one of the account.
func (t AccountTopic) ReadAccount(account, document string) (d AccountDocument, err error) {
	values, _, f := parseYAML([]byte(document))
	if f != nil {
		return d, Faults{*f}
	}
	a, faults := readAccount(values, nil)
	faults = append(append(faults, validateAccount(a, nil)...), t.faults(a)...)
	if a.ID != account {
		return d, fmt.Errorf("the document is of account %q", a.ID)
	}
	d = AccountDocument{Account: a}
	for i, s := range a.Stores {
		var all Faults
		for _, f := range faults {
			at := fmt.Sprintf("stores[%d]", i)
			if sameSetting(f.Key, at) || !strings.HasPrefix(f.Key, "stores[") {
				all = append(all, f)
			}
		}
		if len(all) > 0 {
			if d.Faults == nil {
				d.Faults = map[string]error{}
			}
			d.Faults[s.ID] = all
		}
	}
	return d, nil
}

// faults returns the faults of a document that are none in a configuration.
func (t AccountTopic) faults(a Account) (faults Faults) {
	if t.AllowExec {
		return nil
	}
	for i, s := range a.Stores {
		for key, secret := range map[string]Secret{"access_key": s.Credentials.AccessKey,
			"secret_key": s.Credentials.SecretKey, "session_token": s.Credentials.SessionToken} {
			if secret.isCommand() {
				faults.add(fmt.Sprintf("stores[%d].credentials.%s", i, key), nil, "", "exec:COMMAND is not allowed in the "+
					"topic of accounts: use env:NAME or file:PATH, or set account_topic.allow_exec in the configurations")
			}
		}
	}
	return faults
}

// Equal reports whether two documents have the same settings, whether they are written out or left to their defaults.
func (a Account) Equal(b Account) bool {
	return a.ID == b.ID && a.Limits == b.Limits && a.Active == b.Active && a.Allocation == b.Allocation &&
		slices.EqualFunc(a.Stores, b.Stores, func(x, y Store) bool { return x.withDefaults() == y.withDefaults() })
}

// YAML returns the document in a form that ParseAccount reads: the settings that differ from their defaults, and
// references of secrets.
func (a Account) YAML() (string, error) {
	text, err := yaml.Marshal(a.settings())
	return string(text), err
}

// MarshalJSON returns the document as JSON, with references of secrets.
func (a Account) MarshalJSON() ([]byte, error) {
	return yaml.MarshalWithOptions(a.settings(), yaml.JSON())
}

// settings returns the settings of an account that differ from their defaults.
func (a Account) settings() yaml.MapSlice {
	for i, s := range a.Stores {
		if i == 0 {
			a.Stores = slices.Clone(a.Stores)
		}
		a.Stores[i] = s.withoutDefaults()
	}
	return settingsOf(reflect.ValueOf(a))
}

// withoutDefaults empties the fields of a store that have their defaults, except the driver.
func (s Store) withoutDefaults() Store {
	d := Store{Driver: s.Driver, Layout: s.Layout, Read: s.Read, Primary: s.Primary, Watch: s.Watch}.withDefaults()
	for _, of := range []struct {
		is      *string
		without string
	}{{&s.Repair, d.Repair}, {&s.ExternalWrites, d.ExternalWrites}, {&s.Corrections, d.Corrections},
		{&s.Layout, "millrace"}, {&s.Read, "always"}} {
		if *of.is == of.without {
			*of.is = ""
		}
	}
	if s.SamplePercent == d.SamplePercent {
		s.SamplePercent = 0
	}
	return s
}

// settingsOf returns the settings of a table that are not zero, in the order of the struct.
func settingsOf(v reflect.Value) yaml.MapSlice {
	all := yaml.MapSlice{}
	for _, f := range fieldsOf(v.Type()) {
		value := v.FieldByIndex(f.Index)
		if value.IsZero() {
			continue
		}
		var is any
		switch x := value.Interface().(type) {
		case Secret:
			is = x.reference
		case Active:
			is = x != Inactive
		case Size:
			is = x.String()
		default:
			switch {
			case isTable(f.Type):
				is = settingsOf(value)
			case isTables(f.Type):
				list := make([]yaml.MapSlice, value.Len())
				for i := range list {
					list[i] = settingsOf(value.Index(i))
				}
				is = list
			default:
				is = x
			}
		}
		all = append(all, yaml.MapItem{Key: keyOf(f), Value: is})
	}
	return all
}
