package clickhouse

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse/match"
)

// A Matcher finds the rows of a topic's records in one table.
type Matcher struct {
	Table string
	// Identify returns the key and the sum of the row of a record. hasRow is false if the table stores no row for it. An
	// error means that the record cannot become a row.
	Identify func(*schemas.Delivery) (k match.Key, sum uint64, hasRow bool, err error)
	// KeySuffix is SQL for the part of the key that distinguishes rows with the same id; empty if the id is the whole key.
	KeySuffix string
	RowBinary string   // SQL for the bytes that the sum of a row covers
	Topics    []string // all topics that the table stores
	// EveryReport is set if each record has a row of its own, and the view unites the rows of one id.
	EveryReport bool
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
			{Table: letters.name, RowBinary: letters.rowBinary(),
				Identify: func(d *schemas.Delivery) (match.Key, uint64, bool, error) {
					return identify(letters, row[deadLetter]{d, readDead(d)}, true)
				}},
			{Table: results.name, RowBinary: results.rowBinary(),
				Identify: func(d *schemas.Delivery) (match.Key, uint64, bool, error) {
					l := readDead(d)
					return identify(results, row[*pb.DuplicationResult]{d, l.result(d)}, l.isCommand())
				}},
		},
	}
	feeding := map[string][]string{}
	for topic, cs := range all {
		for _, c := range cs {
			feeding[c.Table] = append(feeding[c.Table], string(topic))
		}
	}
	for topic, cs := range all {
		for i := range cs {
			cs[i].Topics, cs[i].EveryReport = feeding[cs[i].Table], topic == schemas.Changes
		}
	}
	return all
}

func rowMatcherOf[T schemas.Body](t *table[T]) Matcher {
	return Matcher{Table: t.name, RowBinary: t.rowBinary(),
		Identify: func(d *schemas.Delivery) (match.Key, uint64, bool, error) {
			m, ok := d.Body.(T)
			if !ok {
				return match.Key{}, 0, true, fmt.Errorf("is a %T", d.Body)
			}
			return identify(t, row[T]{d, m}, true)
		}}
}

// incidentMatcher returns the Matcher of incidents. An incident has many records, so the key has the number of
// steps and the time of the record, too.
func incidentMatcher() Matcher {
	c := rowMatcherOf(incidents())
	byID := c.Identify
	c.KeySuffix = "concat(toString(step_count), '/', toString(revision))"
	c.Identify = func(d *schemas.Delivery) (match.Key, uint64, bool, error) {
		k, sum, hasRow, err := byID(d)
		if i, ok := d.Body.(*pb.Incident); ok && err == nil {
			suffix := strconv.Itoa(int(i.GetStepCount())) + "/" + strconv.FormatInt(i.GetUpdated().AsTime().UnixMilli(), 10)
			k, err = suffixedKey(k, suffix)
		}
		return k, sum, hasRow, err
	}
	return c
}

// identify returns the key and the sum of a row in a table.
func identify[T any](t *table[T], r row[T], hasRow bool) (k match.Key, sum uint64, _ bool, err error) {
	if !hasRow {
		return k, 0, false, nil
	}
	if k, err = parseID(t.id(r)); err == nil {
		sum, err = t.sumOf(r)
	}
	return k, sum, true, err
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
	if slices.Contains(PositionTables(), c.Table) {
		return " AND account != ''"
	}
	return ""
}
