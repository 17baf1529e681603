package clickhouse

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"strconv"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse/match"
)

// A RowKey identifies the row of a message in a table.
type RowKey struct {
	Key   match.Key
	Month uint16 // a monthNumber
}

// A Matcher finds the rows of a topic's records in one table.
type Matcher struct {
	Table string
	// Identify returns the key of the row of a record. hasRow is false if the table stores no row for it. An error means
	// that the record cannot become a row.
	Identify func(*schemas.Delivery) (k RowKey, hasRow bool, err error)
	// KeySuffix is SQL for the part of the key that distinguishes rows with the same id; empty if the id is the whole key.
	KeySuffix string
	RowBinary string   // SQL for the bytes that the sum of a row covers
	Topics    []string // all topics that the table stores
}

// Matchers returns the Matchers of every topic.
func Matchers() map[schemas.Topic][]Matcher {
	letters, results := deadLetters(), duplicationLog()
	all := map[schemas.Topic][]Matcher{
		schemas.Changes:            {rowMatcherOf(auditLog())},
		schemas.DuplicationResults: {rowMatcherOf(results)},
		schemas.FixityResults:      {rowMatcherOf(bitLog())},
		schemas.Incidents:          {incidentMatcher()},
		schemas.Reports:            {rowMatcherOf(reports())},
		schemas.Jobs:               {rowMatcherOf(jobLog())},
		schemas.Policies:           {rowMatcherOf(policyHistory())},
		schemas.Accounts:           {rowMatcherOf(accountHistory())},
		schemas.Admin:              {rowMatcherOf(adminLog())},
		schemas.Dead: {
			{Table: letters.name, RowBinary: letters.rowBinary(), Identify: func(d *schemas.Delivery) (RowKey, bool, error) {
				k, err := rowKeyIn(letters, row[deadLetter]{d, readDead(d)})
				return k, true, err
			}},
			{Table: results.name, RowBinary: results.rowBinary(), Identify: func(d *schemas.Delivery) (RowKey, bool, error) {
				l := readDead(d)
				k, err := rowKeyIn(results, row[*pb.DuplicationResult]{d, l.result(d)})
				return k, l.isCommand(), err
			}},
		},
	}
	feeding := map[string][]string{}
	for topic, cs := range all {
		for _, c := range cs {
			feeding[c.Table] = append(feeding[c.Table], string(topic))
		}
	}
	for _, cs := range all {
		for i := range cs {
			cs[i].Topics = feeding[cs[i].Table]
		}
	}
	return all
}

func rowMatcherOf[T schemas.Body](t *table[T]) Matcher {
	return Matcher{Table: t.name, RowBinary: t.rowBinary(), Identify: func(d *schemas.Delivery) (RowKey, bool, error) {
		m, ok := d.Body.(T)
		if !ok {
			return RowKey{}, true, fmt.Errorf("is a %T", d.Body)
		}
		k, err := rowKeyIn(t, row[T]{d, m})
		return k, true, err
	}}
}

// incidentMatcher returns the Matcher of incidents. An incident has many records, so the key has the number of
// steps and the time of the record, too.
func incidentMatcher() Matcher {
	c := rowMatcherOf(incidents())
	byID := c.Identify
	c.KeySuffix = "concat(toString(step_count), '/', toString(revision))"
	c.Identify = func(d *schemas.Delivery) (RowKey, bool, error) {
		k, hasRow, err := byID(d)
		if i, ok := d.Body.(*pb.Incident); ok && err == nil {
			suffix := strconv.Itoa(int(i.GetStepCount())) + "/" + strconv.FormatInt(i.GetUpdated().AsTime().UnixMilli(), 10)
			k.Key, err = suffixedKey(k.Key, suffix)
		}
		return k, hasRow, err
	}
	return c
}

// rowKeyIn returns the key of a row in a table.
func rowKeyIn[T any](t *table[T], r row[T]) (k RowKey, err error) {
	if k.Key, err = parseID(t.id(r)); err != nil {
		return k, err
	}
	ts := t.ts(r)
	if _, err := toMillis(ts); err != nil {
		return k, err
	}
	k.Month = MonthNumber(ts.AsTime().Year(), int(ts.AsTime().Month()))
	return k, nil
}

// suffixedKey returns the key of a row with a suffix.
func suffixedKey(id match.Key, suffix string) (match.Key, error) {
	return parseID(schemas.ID(hex.EncodeToString(id[:]), suffix))
}

// KeyOf returns the key of a row.
func (c *Matcher) KeyOf(id, suffix string) (match.Key, error) {
	key, err := parseID(id)
	if err == nil && c.KeySuffix != "" {
		key, err = suffixedKey(key, suffix)
	}
	return key, err
}

// SuffixOrEmpty returns SQL for the suffix of the key, or for an empty string.
func (c *Matcher) SuffixOrEmpty() string { return cmp.Or(c.KeySuffix, "''") }

// WithoutPositions returns SQL that excludes the rows of positions, which three of the tables have.
func (c *Matcher) WithoutPositions() string {
	switch c.Table {
	case "audit_log", "duplication_log", "bit_log":
		return " AND account != ''"
	}
	return ""
}

// Inconsistent returns SQL that is true for a row that no program inserted: its sum is 0 although a hash or the
// value of a later column shows that it was inserted with a sum, or it is a position although it has an account.
func (c *Matcher) Inconsistent() string {
	switch c.Table {
	case "audit_log":
		return "sum = 0 AND hash != 0 OR position != 0"
	case "duplication_log", "bit_log":
		return "sum = 0 AND hash != 0 OR position != 0"
	case "admin_log":
		return "sum = 0 AND (hash != 0 OR incident != '' OR seen != '')"
	case "policy_history":
		return "sum = 0 AND (hash != 0 OR file_sha256 != '' OR came_from != '' OR location != '')"
	}
	return "sum = 0 AND hash != 0"
}

// MonthNumber returns the number of a month in twelve bits.
func MonthNumber(year, month int) uint16 { return uint16((year*12 + month) & 0xfff) }
